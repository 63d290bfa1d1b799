"""Which gray values of more than 8 bits become black and white, by the files that a model learns from."""

from collections.abc import Sequence
from pathlib import Path

from uce_edge.images import loader
from uce_edge.images.gray_range import Choice
from uce_edge.images.gray_survey import Decided, decide

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
    return decide(choice, filter(None, map(loader.survey, some)))
