"""The paper's experiments, one function per table or figure; each writes CSV, PNG and a Markdown section."""
