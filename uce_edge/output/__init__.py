"""Pictures, notebook cards, tables and reports."""
