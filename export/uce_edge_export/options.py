"""Export options, without heavy imports for the command line's help."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from uce_edge._util.records import Record
from uce_edge.contract import Inference, NoiseKind, Precision, Sigma
from uce_edge.errors import UsageError, expected
from uce_edge_export import layer_choice

if TYPE_CHECKING:
    from uce_edge.images.gray_range import Choice
    from uce_edge.images.resize import Resize


class OutputIs(StrEnum):
    """The meaning of a classifier's output."""

    AUTO = "auto"
    """A final Softmax means probabilities; otherwise values that are never negative and sum to 1 do. A final Sigmoid
    of one value means two classes; of several values it is refused."""
    LOGITS = "logits"
    """Scores before the softmax."""
    PROBABILITIES = "probabilities"
    """After a softmax."""
    SIGMOID = "sigmoid"
    """After a sigmoid, of which exactly one class is right: its logits are used as those of a softmax."""


class Layout(StrEnum):
    """The order of the dimensions of a classifier's input."""

    AUTO = "auto"
    """Channels are where the 1 or the 3 is."""
    NCHW = "nchw"
    """Channels first."""
    NHWC = "nhwc"
    """Channels last."""


class PostHoc(StrEnum):
    """A posterior for a network without noise."""

    LAPLACE = "laplace"
    """A Gaussian posterior over the weights of its last layer: the network runs once, whatever N is."""


class ChannelOrder(StrEnum):
    """The channel order of a network; files decode to RGB."""

    RGB = "rgb"
    """Red first."""
    BGR = "bgr"
    """Blue first, as OpenCV and Caffe have it."""


class Expand(StrEnum):
    """Where one image becomes N."""

    LATE = "late"
    """At the first noisy layer: what has no noise runs once per image."""
    EARLY = "early"
    """At the image itself, for runtimes that cannot broadcast later."""


KEEP = "keep"
"""The option value that keeps the network's own dropout random."""


def pattern_and_rate(text: str) -> tuple[str, float]:
    """Parse "PATTERN=0.1" or "0.2"; NaN for no number."""
    pattern, _, number = text.rpartition("=")
    try:
        return pattern, float(number)
    except ValueError:
        return pattern, math.nan


@dataclass(frozen=True)
class Options(Record):
    """How the noise gets into the graph."""

    noisy: tuple[str, ...] = ()
    """The layers with noise, as in `layer_choice`; nothing for all, or for those that a module has."""
    expand: Expand = Expand.LATE
    """Where one image becomes N."""
    bake: bool = False
    """Make the seeds a constant: N is fixed, and the file takes an image alone."""
    sample_from: str | None = None
    """For moments, the weight layer from which on values are drawn; None for the last one."""
    sigma: Sigma | None = None
    """How the standard deviation of the noise is computed; None for the way the network was trained with."""
    dropout: tuple[str, ...] = ()
    """"keep" for dropout that is in the network, PATTERN=RATE for masks on named values; nothing to remove dropout."""
    heatmap: bool = False
    """Add the outputs `heatmap` and `heatmap_spread`: the places that speak for the predicted class."""

    REMEDY: ClassVar[str] = "docs/export.md says what it does."

    def __post_init__(self) -> None:
        super().__post_init__()
        layer_choice.check(self.noisy)
        for text in self.dropout:
            pattern, rate = pattern_and_rate(text)
            if text != KEEP and not (pattern and 0 < rate < 1):
                rule = f"{KEEP}, or PATTERN=RATE with a rate between 0 and 1"
                raise UsageError(expected("`dropout`", rule, text, "For example: --dropout keep"))

    def refuse_noise(self, inference: Inference, rates: Sequence[str] | None = None) -> None:
        """Reject options that a Laplace posterior cannot use.

        Args:
            inference: The requested kind of graph.
            rates: Requested dropout rates, if any.
        """
        requested = {
            "--p": rates,
            "--dropout": self.dropout,
            "--sigma": self.sigma,
            "--noisy": self.noisy,
            "--sample-from": self.sample_from,
            "--expand early": self.expand is Expand.EARLY,
            f"--inference {inference}": inference is not Inference.MC,
        }
        given = [name for name, value in requested.items() if value]
        if given:
            raise UsageError(
                f"{' and '.join(given)} cannot be combined with a Laplace posterior, which draws the last layer of a "
                "network without noise: leave one of the two out.",
                "laplace.noise-given",
            )

    @property
    def of_noise(self) -> "Options":
        """The options that only a file with noise has."""
        return replace(self, bake=False, heatmap=False)

    @property
    def keeps_dropout(self) -> bool:
        """Whether dropout that is in the network keeps its noise."""
        return KEEP in self.dropout

    @property
    def masks(self) -> list[tuple[str, float]]:
        """Patterns of masked values, with their rates."""
        return [pattern_and_rate(text) for text in self.dropout if text != KEEP]


@dataclass(frozen=True)
class FileKind:
    """The kind of model file to write, from any source."""

    inference: Inference = Inference.MC
    """The kind of graph."""
    noise: NoiseKind = NoiseKind.TABLE
    """The source of the noise."""
    samples: int | None = None
    """The default number of passes; None for that of the kind of graph."""
    precision: Precision = Precision.FP32
    """Of the network."""
    options: Options = Options()
    """How the noise gets into the graph."""
    posterior: PostHoc | None = None
    """The posterior of a network without noise."""

    @property
    def suffix(self) -> str:
        """The part of a default name for this kind."""
        kind = "" if self.inference is Inference.MC else f"-{self.inference}"
        kind = kind if self.posterior is None else f"-{self.posterior}"
        return kind if self.precision is Precision.FP32 else f"{kind}-{self.precision}"


@dataclass(frozen=True)
class SourceSpec:
    """How to read a third-party classifier."""

    classes: Sequence[str] | None = None
    """Class names in the order of the outputs; None for those of the labelled images, or numbers."""
    scale: float | None = None
    """Pixels (0 to 255) are divided by it; None for 255."""
    mean: Sequence[float] | None = None
    """Subtracted after `scale`: one number, or one per channel; None for 0."""
    std: Sequence[float] | None = None
    """Divides after `mean`: one number, or one per channel; None for 1."""
    channels: ChannelOrder | None = None
    """The order of the colours; None for RGB."""
    layout: Layout = Layout.AUTO
    """The order of the dimensions of the input."""
    size: tuple[int, int] | None = None
    """Height and width, if the file leaves them open."""
    output_is: OutputIs = OutputIs.AUTO
    """Whether the output is logits or probabilities."""
    output: str | None = None
    """The name of the class scores, if the file has several outputs."""
    range: "Choice" = "auto"
    """For gray images of more than 8 bits, the values of black and white; "auto" looks at the labelled images."""
    resize: "Resize | None" = None
    """How images of another size get that of the network; None for what fits the labelled images, or to stretch."""
    preprocessor: str | Path | None = None
    """A preprocessor_config.json of Hugging Face, or its folder; what is given here replaces what it says."""

    @property
    def gives_scaling(self) -> bool:
        """Whether it states how pixels are scaled."""
        return any(given is not None for given in (self.scale, self.mean, self.std, self.channels))
