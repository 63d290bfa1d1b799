"""Evidence for a device file: one folder about one model file."""
