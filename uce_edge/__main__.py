"""`python -m uce_edge`."""

import sys

# Python would look for modules in the folder that one happens to be in, where a run.json from elsewhere could have the
# code that it names. `uce-edge` does not look there either.
if not sys.flags.safe_path:
    del sys.path[0]

from uce_edge.cli import main

main()
