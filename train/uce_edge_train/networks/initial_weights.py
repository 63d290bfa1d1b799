"""The file of trained weights that a training starts from, as a recipe remembers it."""

from dataclasses import dataclass, field
from typing import Annotated

from uce_edge._util.field_rules import OPTIONAL
from uce_edge._util.records import Record


@dataclass(frozen=True)
class Start(Record):
    """A file of trained weights; its content counts, not where it lies."""

    file: str = field(compare=False)
    """As it was given."""
    sha256: str
    """Of the file."""
    seen: Annotated[tuple[str, ...], OPTIONAL] = ()
    """What the training of these weights did to its images, where a run beside the file tells."""

    def __str__(self) -> str:
        return f"{self.file} (SHA-256 {self.sha256[:8]}...)"
