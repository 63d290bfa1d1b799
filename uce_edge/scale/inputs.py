"""What can be scored: folders, patterns, buckets, Parquet files with images, and lists of files; cut into blocks."""

import fnmatch
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from uce_edge import lists
from uce_edge.errors import UsageError, expected
from uce_edge.images import SUFFIXES, is_image_name

_CONTENT = ("image", "bytes", "content")
_NAMES = ("path", "name", "id")


class Kind(StrEnum):
    """What a block is made of."""

    FILES = "files"
    """Image files."""
    ROWS = "rows"
    """A row group of a Parquet file."""


@dataclass(frozen=True)
class Block:
    """Images that are computed together and stored in one file."""

    number: int
    kind: Kind
    addresses: tuple[str, ...]
    """The image files, or the Parquet file."""
    row_group: int = 0

    @property
    def far(self) -> bool:
        """Whether its files lie in a bucket, where each of them is waited for."""
        return self.kind is Kind.FILES and any("://" in address for address in self.addresses)


class Entry(NamedTuple):
    """One image as it lies there, or why it cannot be read."""

    path: str
    content: bytes | None
    error: str | None


def blocks(given: str, images: int) -> list[Block]:
    """Cut an input into blocks.

    Args:
        given: A folder, a pattern, a Parquet file or a folder of them, a list (.csv, .tsv, .jsonl, .txt), or the
            address of any of these in a bucket that pyarrow knows (s3://, gs://, ...).
        images: How many image files one block has.

    Raises:
        UsageError: There is nothing to score.
    """
    if images < 1:
        raise UsageError(expected("`block`", "at least 1", images, "Leave it out for 256"))
    system, place, prefix = _system(given)
    suffix = Path(place).suffix.lower()
    if any(sign in place for sign in "*?["):
        files = _matching(system, place)
    elif suffix in lists.SUFFIXES:
        return _of_files(_listed(system, place, prefix), images)
    elif _info(system, place, given).type is pa_fs.FileType.Directory:
        files = _below(system, place)
    else:
        files = [place]
    tables = [file for file in files if Path(file).suffix.lower() == ".parquet"]
    pictures = [file for file in files if is_image_name(file)]
    if tables and pictures:
        rule = "images or Parquet files, not both"
        raise UsageError(expected("the input", rule, given, "Name one of them by a pattern: 'photos/**/*.jpg'"))
    if not (tables or pictures):
        rule = f"a place with images ({', '.join(sorted(SUFFIXES))}) or Parquet files"
        raise UsageError(expected("the input", rule, given, "Check the path"))
    if tables:
        return _of_tables(system, [(file, prefix + file) for file in tables])
    return _of_files([prefix + file for file in pictures], images)


def fingerprint(found: Sequence[Block]) -> str:
    """SHA-256 of what the blocks are: a job that goes on must go on with the same."""
    digest = hashlib.sha256()
    for block in found:  # one by one: the text of all of them would take gigabytes
        digest.update(json.dumps([block.number, block.kind, block.addresses, block.row_group]).encode())
    return digest.hexdigest()


def sources(block: Block) -> Iterator["str | Entry"]:
    """The images of a block, in order, as `read` takes them: addresses of files, or rows that are read already."""
    return _rows(block) if block.kind is Kind.ROWS else iter(block.addresses)


def read(source: "str | Entry") -> Entry:
    """An image as it lies there; what cannot be read is an entry, too."""
    if isinstance(source, Entry):
        return source
    try:
        system, place = _reached(source)
        with system.open_input_stream(place) as file:
            return Entry(source, file.read(), None)
    except OSError as error:
        return Entry(source, None, f"{source} cannot be read: {_reason(error)}. Check the path and your rights.")


def _reached(address: str) -> tuple[Any, str]:
    """The file system of an image and its place there; a bucket is asked for its region once."""
    scheme, sign, rest = address.partition("://")
    if not sign or scheme == "file":
        return _system(address)[:2]
    bucket, _, key = rest.partition("/")
    system, base = _bucket(f"{scheme}://{bucket}")
    return system, f"{base.rstrip('/')}/{key}"


@cache
def _bucket(address: str) -> tuple[Any, str]:
    return _system(address)[:2]


def _rows(block: Block) -> Iterator[Entry]:
    (address,) = block.addresses
    system, place, _ = _system(address)
    with system.open_input_file(place) as file:
        table = pq.ParquetFile(file).read_row_group(block.row_group)
    contents = table.column(_column(table.schema, address))
    names = next((table.column(name) for name in _NAMES if name in table.column_names), None)
    for row in range(len(table)):
        content = contents[row].as_py()
        given = None if names is None else names[row].as_py()
        if isinstance(content, dict):  # as Hugging Face stores images
            given = given or content.get("path")
            content = content.get("bytes")
        path = f"{address}#{block.row_group}/{row}" if given is None else str(given)
        error = None if isinstance(content, bytes) else f"{path} has no image bytes in its row."
        yield Entry(path, content if error is None else None, error)


def _column(schema: pa.Schema, address: str) -> str:
    for name in _CONTENT:
        if name in schema.names:
            kind = schema.field(name).type
            if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_struct(kind):
                return name
    rule = f"to have a column of image bytes called {', '.join(_CONTENT[:-1])} or {_CONTENT[-1]}"
    raise UsageError(f"Expected {address} {rule}, but got {', '.join(schema.names)}. Rename the column.")


def _of_files(addresses: Sequence[str], images: int) -> list[Block]:
    starts = range(0, len(addresses), images)
    return [Block(number, Kind.FILES, tuple(addresses[start : start + images])) for number, start in enumerate(starts)]


def _of_tables(system: Any, tables: Sequence[tuple[str, str]]) -> list[Block]:
    found: list[Block] = []
    for place, address in tables:
        try:
            with system.open_input_file(place) as file:
                table = pq.ParquetFile(file)
                _column(table.schema_arrow, address)
                groups = table.num_row_groups
        except (OSError, pa.ArrowInvalid) as error:
            raise UsageError(f"{address} cannot be read as Parquet: {_reason(error)}.") from None
        found += [Block(len(found) + group, Kind.ROWS, (address,), group) for group in range(groups)]
    if not found:
        raise UsageError("The Parquet files have no rows.")
    return found


def _system(address: str) -> tuple[Any, str, str]:
    """The file system of an address, the place in it, and what makes an address of a place."""
    scheme, sign, _ = address.partition("://")
    if not sign:
        return pa_fs.LocalFileSystem(), str(Path(address).absolute()), ""
    try:
        system, place = pa_fs.FileSystem.from_uri(address)
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{address} cannot be reached: {_reason(error)}.") from None
    return system, place, "" if scheme == "file" else f"{scheme}://"


def _info(system: Any, place: str, given: str) -> Any:
    try:
        info = system.get_file_info(place)
    except OSError as error:
        raise UsageError(f"{given} cannot be reached: {_reason(error)}. Check the address and your rights.") from None
    if info.type is pa_fs.FileType.NotFound:
        raise UsageError(expected("the input", "a place that exists", given, "Check the path"))
    return info


def _below(system: Any, place: str) -> list[str]:
    found = system.get_file_info(pa_fs.FileSelector(place, recursive=True))
    return sorted(info.path for info in found if info.type is pa_fs.FileType.File)


def _matching(system: Any, pattern: str) -> list[str]:
    """Files by a pattern; ** goes through folders."""
    parts = Path(pattern).parts
    first = next(index for index, part in enumerate(parts) if any(sign in part for sign in "*?["))
    base = str(Path(*parts[:first])) if first else "."
    if system.get_file_info(base).type is not pa_fs.FileType.Directory:
        return []
    simple = pattern.replace("**/", "*")  # fnmatch's star goes through folders by itself
    deep = "**" in pattern
    return [
        file
        for file in _below(system, base)
        if fnmatch.fnmatch(file, simple) and (deep or len(Path(file).parts) == len(parts))
    ]


def _listed(system: Any, place: str, prefix: str) -> list[str]:
    """The image files that a list names; relative ones lie beside it."""
    try:
        with system.open_input_stream(place) as file:
            text = file.read().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The list {place} cannot be read: {_reason(error)}.") from None
    rows = lists.parse(text, Path(place).suffix.lower(), place)
    folder = f"{prefix}{Path(place).parent}"
    return [lists.beside(path, folder) for path in lists.paths(rows, place)]


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0].removesuffix(".") if str(error) else type(error).__name__
