"""Choose the gray range of a model from its training images."""

from collections.abc import Sequence
from pathlib import Path

from uce_edge.images import loader
from uce_edge.images.gray_range import Choice
from uce_edge.images.gray_survey import Decided, decide

_LOOKED_AT = 500


def decided(files: Sequence[str | Path], choice: Choice) -> Decided:
    """Decide the gray range of a model.

    Args:
        files: The training images; of many, only some are read.
        choice: The user's choice.
    """
    if choice is None or not files:
        return decide(choice, ())
    some = files[:: -(-len(files) // _LOOKED_AT)]
    return decide(choice, filter(None, map(loader.survey, some)))
