"""The reject rule: its fields, promises, fitting and description."""
