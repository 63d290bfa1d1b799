"""SHA-256 digests of a graph and its metadata.

They detect damage, a wrong copy and a careless edit. Only a signature proves who made a file: see
`uce_edge.integrity.signing`.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from uce_edge._util.field_rules import OPTIONAL, Rule
from uce_edge._util.records import Record
from uce_edge.contract import KEY
from uce_edge.integrity.protobuf import Field

MARK = "digests"
"""The plain key of a file with digests: a damaged document is not mistaken for an older one."""
_HEX = re.compile("[0-9a-f]{64}")
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[^ \t\r\n"]+')

Sha256 = Annotated[str, Rule("of 64 hexadecimal digits", lambda text: _HEX.fullmatch(text) is not None)]


@dataclass(frozen=True)
class Digests(Record):
    """The published digests."""

    graph: Sha256
    """Of the ONNX file but for the entry `uce_edge` of its metadata."""
    metadata: Sha256
    """Of the document in that entry, this digest left empty; so it covers the others, too."""
    ort: Annotated[Sha256 | None, OPTIONAL] = None
    """Of the whole file in ONNX Runtime's own format; only in the description beside it."""


def of_model(fields: Iterable[Field]) -> str:
    """The digest of an ONNX file without its metadata document."""
    state = hashlib.sha256()
    for field in fields:
        if field.entry is None or field.entry[0] != KEY:
            state.update(field.raw)
    return state.hexdigest()


def of_document(text: str, own: str = "") -> str:
    """The digest of a JSON text, ignoring space between tokens.

    Args:
        text: The document.
        own: The digest that the text holds of itself, which counts as an empty text. It is left out once: a text that
            holds it in a second place does not match.
    """
    return of_file(b"".join(_TOKENS.findall(text.encode())).replace(own.encode(), b"", 1))


def of_file(content: bytes) -> str:
    """The digest of a whole file."""
    return hashlib.sha256(content).hexdigest()
