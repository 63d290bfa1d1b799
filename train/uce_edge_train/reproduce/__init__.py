"""The paper's experiments, one module per table or figure.

Each writes CSV, PNG and a Markdown section.
"""
