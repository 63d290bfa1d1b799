"""Choices a user makes at export. No heavy imports: the command line reads them to show its help."""

from enum import StrEnum


class OutputIs(StrEnum):
    """What a classifier's output means."""

    AUTO = "auto"
    """A final Softmax means probabilities; otherwise values that are never negative and sum to 1 do."""
    LOGITS = "logits"
    """Scores before the softmax."""
    PROBABILITIES = "probabilities"
    """After a softmax."""


class Layout(StrEnum):
    """The order of the dimensions of a classifier's input."""

    AUTO = "auto"
    """Channels are where the 1 or the 3 is."""
    NCHW = "nchw"
    """Channels first."""
    NHWC = "nhwc"
    """Channels last."""


class Expand(StrEnum):
    """Where one image becomes N."""

    LATE = "late"
    """At the first noisy layer: what has no noise runs once per image."""
    EARLY = "early"
    """At the image itself, for runtimes that cannot broadcast later."""
