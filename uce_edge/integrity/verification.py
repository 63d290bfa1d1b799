"""Verify that a model file is the published one."""

import os
import stat
from dataclasses import replace
from pathlib import Path

from uce_edge._util.field_rules import RecordError
from uce_edge._util.records import DocumentError, parse
from uce_edge.contract import KEY
from uce_edge.errors import IntegrityError, ModelFileError, argument
from uce_edge.integrity import protobuf
from uce_edge.integrity.digests import MARK, Digests, of_document, of_file, of_model
from uce_edge.metadata import Metadata
from uce_edge.runtime.providers import not_loadable

_ORT = slice(4, 8), b"ORTM"
"""The mark of ONNX Runtime's own format."""
_LARGEST = 2**31 - 1
"""The largest file in bytes, in either format."""


def read(path: Path) -> bytes:
    """Read a model file once.

    Check, load and log these bytes: the file may be replaced meanwhile.

    Raises:
        ModelFileError: The file does not exist, cannot be read, or is too large.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise FileNotFoundError
            content = file.read(status.st_size) if status.st_size <= _LARGEST else b""
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null byte in its name
        raise ModelFileError(
            f"There is no model file {path}. Check its spelling, leave it out to use the bundled model, or make a "
            "model of your own with: uce-edge export",
            "model.missing",
        ) from None
    except IsADirectoryError:
        raise ModelFileError(
            f"{path} is a folder, not a model file. A training run is exported with: uce-edge export {path}",
            "model.folder",
        ) from None
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be read: {error.strerror}. Check its name and permissions.", "model.unreadable"
        ) from None
    if status.st_size > _LARGEST:
        raise ModelFileError(
            f"{path} has more than 2 GB, so it is not a model. Export it again: uce-edge export", "model.too-large"
        )
    return content


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_again(path: Path, sha256: str) -> bytes:
    """Read a checked model file again.

    Raises:
        IntegrityError: The file has changed since.
    """
    content = read(path)
    if of_file(content) != sha256:
        raise IntegrityError(
            f"{path} was replaced while it was used. Start again with a file that does not change.", "model.replaced"
        )
    return content


def check(path: Path, content: bytes, *, verify: bool = True) -> Digests | None:
    """Reject a file that differs from the published one.

    Args:
        path: A file, in ONNX or in ONNX Runtime's own format.
        content: Its bytes, from `read`.
        verify: Whether to compare digests. A model in several files is always rejected.

    Returns:
        The digests that match; None when there are none, or when they were not compared. For a file in ONNX Runtime's
        own format they are in the description beside it.

    Raises:
        IntegrityError: The digests do not match.
        ModelFileError: It is not an ONNX file, or has weights in other files.
    """
    if is_ort(content):
        return _check_ort(path, content) if verify else None
    try:
        protobuf.check(content)
        return _check_onnx(path, content) if verify else None
    except protobuf.ExternalDataError:
        raise ModelFileError(
            f"{path} keeps weights in other files, but a model must be one file. Export it again: uce-edge export",
            "model.external-data",
        ) from None
    except protobuf.WireError as error:
        raise not_loadable(str(path), str(error)) from None


def is_ort(content: bytes) -> bool:
    """Whether a file is in ONNX Runtime's own format."""
    place, name = _ORT
    return content[place] == name


def check_description(path: Path, metadata: Metadata) -> str | None:
    """Reject a description of another model.

    Such as one from an earlier export.

    Args:
        path: The model file.
        metadata: The metadata in the file.

    Returns:
        The SHA-256 of the description; None where there is none with digests.
    """
    found = _description(path)
    if found is None:
        return None
    description, text = path.with_suffix(".json"), found[0]
    described = Metadata.from_properties({KEY: text.decode()}, str(description))
    if replace(described, digests=None) != replace(metadata, digests=None):
        raise IntegrityError(
            f"{description} describes another model than {path}. {_rewrite(path)}", "description.mismatch"
        )
    return of_file(text)


def _description(path: Path) -> tuple[bytes, Digests] | None:
    """The description beside a file, and its digests.

    None for a missing, older or unreadable one.

    Raises:
        IntegrityError: It was changed.
    """
    description = path.with_suffix(".json")
    try:
        content = read(description)
        digests = _read(content.decode(), str(description), _rewrite(path))
    except IntegrityError:
        raise
    except (ModelFileError, UnicodeDecodeError, DocumentError, RecordError):
        return None
    return None if digests is None else (content, digests)


def _check_onnx(path: Path, content: bytes) -> Digests | None:
    fields = list(protobuf.fields(memoryview(content)))
    entries = [field.entry for field in fields if field.entry is not None]
    documents = [value for key, value in entries if key == KEY]
    if not documents:
        return None  # not a uce-edge model, which reading the metadata reports
    if len(documents) > 1:
        raise IntegrityError(f"{path} was changed: it has its metadata twice. {_remedy()}", "digest.mismatch")
    try:
        digests = _read(documents[0], str(path), _remedy())
    except (DocumentError, RecordError):
        return None  # reading the metadata reports it
    if digests is None:
        if any(key == MARK for key, _ in entries):
            raise IntegrityError(
                f"{path} was changed after it was published: its digests are gone. {_remedy()}", "digest.missing"
            )
        return None
    if of_model(fields) != digests.graph:
        raise IntegrityError(
            f"{path} was changed after it was published: its graph does not match its digest. {_remedy()}",
            "digest.mismatch",
        )
    return digests


def _check_ort(path: Path, content: bytes) -> Digests | None:
    found = _description(path)
    if found is None or found[1].ort is None:
        return None
    digests = found[1]
    if digests.ort != of_file(content):
        raise IntegrityError(
            f"{path} is not the file that {path.with_suffix('.json')} describes: it was changed, or belongs to another "
            f"export. {_remedy()}",
            "digest.mismatch",
        )
    return digests


def _read(text: str, source: str, remedy: str) -> Digests | None:
    """The digests in a document; None without any.

    Raises:
        DocumentError, RecordError: It cannot be read.
        IntegrityError: It was changed.
    """
    found = parse(text).get("digests")
    digests = Digests.from_document(found) if isinstance(found, dict) else None
    if digests is not None and of_document(text, digests.metadata) != digests.metadata:
        raise IntegrityError(
            f"{source} was changed after it was published: its metadata does not match its digest. {remedy}",
            "digest.mismatch",
        )
    return digests


def _remedy() -> str:
    return f"Copy or export it again; {argument('verify', False)} uses it as it is."


def _rewrite(path: Path) -> str:
    description = path.with_suffix(".json")
    command = f"info {path} --json > {description}" if path.suffix == ".onnx" else "export --ort"
    return f"Write it again: uce-edge {command}"
