"""The initial weights of a recipe."""

from dataclasses import dataclass, field
from typing import Annotated

from uce_edge._util.field_rules import OPTIONAL
from uce_edge._util.records import Record
from uce_edge.metadata import Pretrained


@dataclass(frozen=True)
class Start(Record):
    """A file of trained weights, compared by content."""

    file: str = field(compare=False)
    """As it was given."""
    sha256: str
    """Of the file."""
    seen: Annotated[tuple[str, ...], OPTIONAL] = ()
    """Augmentations of their training, if a run beside the file records them."""
    published: Annotated[Pretrained | None, OPTIONAL] = None
    """Name, licence and source of published weights."""

    def __str__(self) -> str:
        return f"{self.file} (SHA-256 {self.sha256[:8]}...)"
