"""A self-test: synthetic images with published outputs.

A device that gives other outputs is rejected.

A formula makes the images: the file holds no personal data, and a reader in any language can compute them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from uce_edge import contract
from uce_edge._util.field_rules import between
from uce_edge._util.records import Record
from uce_edge.contract import MAX_SAMPLES

if TYPE_CHECKING:
    import numpy.typing as npt

    from uce_edge.metadata import ImageSpec

EXACT = 1e-4
"""The tolerance for float32 on a CPU: ten times the differences between runtimes on the goldens."""
PASSES = 2
"""Passes of a probe, for a file that takes any number."""
NEAR = 1e-2
"""The tolerance otherwise: graphics cards and float16 round products to 10 bits."""
_GOLDEN_RATIO = 2654435761
"""2^32 divided by the golden ratio."""

COMPARED = tuple(output.name for output in contract.OUTPUTS if output.probed)
"""The outputs of a probe."""


class Pattern(StrEnum):
    """How the pixels of a probe image are computed."""

    WEYL = "weyl"
    """Pixel i, counted through rows, columns and channels, is the highest byte of 2654435761 i modulo 2^32."""
    RAMP = "ramp"
    """Row y, column x and channel c have 255 (y + x + c) / (height + width + channels - 3), rounded down."""


@dataclass(frozen=True)
class Probe(Record):
    """One probe image and the answer to it."""

    pattern: Pattern
    samples: Annotated[int, between(1, MAX_SAMPLES)]
    """The passes, of seed 0."""
    outputs: dict[str, list[float]]
    """The outputs of the graph, by name."""


@dataclass(frozen=True)
class SelfTest:
    """The largest difference from the published outputs."""

    images: int
    difference: float
    """The largest one; of the novelty score, as a share of it."""
    allowed: float
    provider: str

    @property
    def passed(self) -> bool:
        """Whether the difference is rounding; false for NaN."""
        return self.difference <= self.allowed

    def sentence(self, source: str) -> str:
        """The message about a failure."""
        return (
            f"On {self.provider}, {source} gives other outputs for its probe images than when it was published: by "
            f"{self.difference:.2g}, and rounding explains {self.allowed:g}."
        )


def image(pattern: Pattern, spec: "ImageSpec") -> "npt.NDArray[Any]":
    """The pixels [height, width, channels] of a probe image."""
    import numpy as np

    shape = (spec.height, spec.width, spec.channels)
    if pattern is Pattern.WEYL:
        number = np.arange(spec.height * spec.width * spec.channels, dtype=np.uint64)
        pixels = ((number * np.uint64(_GOLDEN_RATIO)) & np.uint64(2**32 - 1)) >> np.uint64(24)
        return pixels.reshape(shape).astype(spec.dtype)
    distance = np.asarray(np.indices(shape).sum(axis=0))
    return (255 * distance // max(sum(shape) - 3, 1)).astype(spec.dtype)


def compare(
    probes: Sequence[Probe], actual: Sequence[Mapping[str, list[float]]], provider: str, *, exact: bool
) -> SelfTest:
    """Compare outputs with the published ones.

    Args:
        probes: Those of the file.
        actual: The outputs for each probe image, by name.
        provider: The execution provider.
        exact: Whether a float32 network ran on a processor.
    """
    import numpy as np

    differences = [0.0]
    for one, values in zip(probes, actual, strict=True):
        for name in COMPARED:
            if name not in one.outputs or name not in values:
                continue
            published, got = np.array(one.outputs[name]), np.array(values[name])
            scale = max(1.0, float(np.abs(published).max(initial=0))) if name == contract.NOVELTY_SCORE else 1.0
            differences.append(
                np.abs(got - published).max(initial=0) / scale if got.shape == published.shape else np.inf
            )
    # A NaN among them is the largest one.
    return SelfTest(len(probes), float(np.max(differences)), EXACT if exact else NEAR, provider)
