"""Which gray values of more than 8 bits become black and white, by the files that a model learns from."""

from collections.abc import Sequence
from pathlib import Path

from uce_edge import images
from uce_edge.depth import Decided, decide
from uce_edge.ranges import Choice

_LOOKED_AT = 500


def decided(files: Sequence[str | Path], choice: Choice) -> Decided:
    """The range for a model.

    Args:
        files: The training images; of many, some are looked at.
        choice: What the user asks for.
    """
    if choice is None or not files:
        return decide(choice, ())
    some = files[:: -(-len(files) // _LOOKED_AT)]
    return decide(choice, filter(None, map(images.survey, some)))
