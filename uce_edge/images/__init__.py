"""From image files to the pixels that a model takes."""
