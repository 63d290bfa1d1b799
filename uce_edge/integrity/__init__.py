"""Check that a model file is the published one."""
