"""`python -m uce_edge`."""

from uce_edge.cli import main

main()
