"""A ROS 2 node that classifies camera images and says how far each answer can be trusted."""
