"""Steps and results of an export."""

from dataclasses import dataclass
from pathlib import Path

from uce_edge.images.gray_survey import Decided
from uce_edge.metadata import CalibrationReport, LaplaceFit, Metadata
from uce_edge_export.options import FileKind
from uce_edge_export.pipeline import Built
from uce_edge_export.recalibration import Recalibrated
from uce_edge_export.source.preprocessing import Resizing, Scaling


@dataclass(frozen=True)
class AssumedClasses:
    """Class names of the images, assumed for the outputs."""

    classes: tuple[str, ...]


@dataclass(frozen=True)
class NoNoise:
    """The default for a third-party network with labelled images."""


@dataclass(frozen=True)
class MemberStarted:
    """A member of an ensemble is built from this file."""

    source: Path


@dataclass(frozen=True)
class NoiseCost:
    """Price and effect of untrained noise."""

    times: float | None
    """Multiplications of all passes, relative to the network without noise; None where they are unknown."""
    without: CalibrationReport
    """On the calibration images, without noise."""
    noisy: CalibrationReport
    """On the same images, with noise."""


Step = (
    Decided
    | AssumedClasses
    | NoNoise
    | MemberStarted
    | Scaling
    | Resizing
    | Built
    | LaplaceFit
    | Recalibrated
    | NoiseCost
)
"""A decision or a result of an export, in the order of the work."""


@dataclass(frozen=True)
class ExportedFile:
    """A written file, and how it was made."""

    path: Path
    metadata: Metadata
    kind: FileKind
    """The kind of file, with its defaults filled in."""
    p: tuple[str, ...]
    """Rates of the Gaussian dropout that was added; none for a file without."""
    steps: tuple[Step, ...]
    """All decisions and results, in the order of the work."""

    @property
    def calibrated(self) -> Recalibrated | None:
        """The calibration, its refused promise and costs; None without images."""
        return next((step for step in self.steps if isinstance(step, Recalibrated)), None)

    @property
    def scalings(self) -> tuple[Scaling, ...]:
        """The pixel scaling of each third-party network; none without images."""
        return tuple(step for step in self.steps if isinstance(step, Scaling))

    @property
    def resizing(self) -> Resizing | None:
        """How images are resized, where the labelled images chose it."""
        return next((step for step in self.steps if isinstance(step, Resizing)), None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes to the networks: sentences without their full stops."""
        return tuple(note for step in self.steps if isinstance(step, Built) for note in step.notes)
