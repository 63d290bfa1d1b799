"""Inputs of a scoring job (folders, patterns, buckets, Parquet, lists), split into blocks."""

import fnmatch
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from uce_edge.datasets import image_lists
from uce_edge.errors import UceEdgeError, UsageError, expected
from uce_edge.images.loader import MAX_FILE, SUFFIXES, is_image_name, read_stream
from uce_edge.scale.places import Bucket, File, Local, is_far, reached, reason

_CONTENT = ("image", "bytes", "content")
_NAMES = ("path", "name", "id")
_ROWS = 64
"""Rows of a Parquet file in memory at once."""


class Kind(StrEnum):
    """The content of a block."""

    FILES = "files"
    """Image files."""
    ROWS = "rows"
    """A row group of a Parquet file."""


@dataclass(frozen=True)
class Block:
    """Images whose answers are stored in one file."""

    number: int
    kind: Kind
    addresses: tuple[str, ...]
    """The image files, or the Parquet file."""
    row_group: int = 0
    stamp: str = ""
    """SHA-256 of the sizes and modification times of its files."""

    def to_json(self) -> str:
        """Write as ASCII: Arrow rejects file names that are not UTF-8."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Block":
        """Read from JSON."""
        values = json.loads(text)
        return cls(**values | {"kind": Kind(values["kind"]), "addresses": tuple(values["addresses"])})

    @property
    def far(self) -> bool:
        """Whether its files are in a bucket, where every read takes time."""
        return self.kind is Kind.FILES and any(map(is_far, self.addresses))


class Entry(NamedTuple):
    """The bytes of one image, or why it cannot be read."""

    path: str
    content: bytes | None
    error: str | None


def blocks(given: str, images: int) -> list[Block]:
    """Split an input into blocks.

    Args:
        given: A folder, a pattern, a Parquet file or a folder of them, a list (.csv, .tsv, .jsonl, .txt), or the
            address of any of these in a bucket that pyarrow supports (s3://, gs://, ...).
        images: The number of image files per block.

    Raises:
        UsageError: There is nothing to score.
    """
    if images < 1:
        raise UsageError(expected("`block`", "at least 1", images, "Leave it out for 256"))
    system, place = reached(given)
    try:
        if any(sign in place for sign in "*?["):
            files = _matching(system, place)
        elif Path(place).suffix.lower() in image_lists.SUFFIXES:
            return _of_files(_listed(system, place), images)
        elif system.is_folder(place):
            files = system.below(place)
        else:
            files = [File(place, system.stamp(place))]
    except FileNotFoundError:
        raise UsageError(expected("the input", "an existing path", given, "Check it"), "input.missing") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        message = f"{given} cannot be read: {reason(error)}. Check the address and your permissions."
        raise UsageError(message, "input.unreadable", input=given) from None
    tables = [file for file in files if file.path.lower().endswith(".parquet")]
    pictures = [file for file in files if is_image_name(file.path) or file.path.endswith("/")]
    if tables and pictures:
        rule = "images or Parquet files, not both"
        remedy = "Select one of them with a pattern: 'photos/**/*.jpg'"
        raise UsageError(expected("the input", rule, given, remedy), "input.mixed")
    if not (tables or pictures):
        rule = f"a path with images ({', '.join(sorted(SUFFIXES))}) or Parquet files"
        raise UsageError(expected("the input", rule, given, "Check the path"), "input.empty")
    if tables:
        return _of_tables(system, tables)
    return _of_files([File(system.prefix + file.path, file.stamp) for file in pictures], images)


def fingerprint(found: Sequence[Block]) -> str:
    """SHA-256 of the names in all blocks; a resumed job must have the same."""
    digest = hashlib.sha256()
    for block in found:  # one by one, because all names together may have gigabytes
        digest.update(json.dumps([block.number, block.kind, block.addresses, block.row_group]).encode())
    return digest.hexdigest()


def sources(block: Block) -> Iterator["str | Entry"]:
    """The images of a block in order, for `read`: addresses of files, or rows."""
    return _rows(block) if block.kind is Kind.ROWS else iter(block.addresses)


def read(source: "str | Entry") -> Entry:
    """Read the bytes of an image; a failure is an entry, too."""
    if isinstance(source, Entry):
        return source
    try:
        system, place = reached(source)
        with system.open(place) as file:
            return Entry(source, read_stream(file, source), None)
    except UceEdgeError as error:
        return Entry(source, None, str(error))
    except Exception as error:  # file systems raise many kinds of errors for odd addresses
        return Entry(source, None, f"{source} cannot be read: {reason(error)}. Check the path and your permissions.")


def _rows(block: Block) -> Iterator[Entry]:
    """Read the rows of a row group; a damaged one ends with an error entry."""
    (address,), row = block.addresses, 0
    try:
        system, place = reached(address)
        with system.open(place) as file:
            table = pq.ParquetFile(file)
            content = _column(table.schema_arrow, address)
            named = next((name for name in _NAMES if name in table.schema_arrow.names), None)
            columns = [content, *([] if named is None else [named])]
            # A few rows at a time: a row group may have gigabytes.
            for batch in table.iter_batches(_ROWS, row_groups=[block.row_group], columns=columns):
                for one in batch.to_pylist():
                    yield _row(one[content], one.get(named), f"{address}#{block.row_group}/{row}")
                    row += 1
    except Exception as error:  # pyarrow raises many kinds of errors for damaged files
        path = f"{address}#{block.row_group}"
        yield Entry(path, None, f"{path} cannot be read as Parquet: {reason(error)}. Write that file again.")


def _row(content: object, given: object, number: str) -> Entry:
    if isinstance(content, dict):  # as Hugging Face stores images
        given = given or content.get("path")
        content = content.get("bytes")
    path = number if given is None else str(given)
    if not isinstance(content, bytes):
        return Entry(path, None, f"{path} has no image bytes in its row.")
    if len(content) > MAX_FILE:
        return Entry(path, None, f"{path} has more than {MAX_FILE >> 30} GiB, too much for an image.")
    return Entry(path, content, None)


def _column(schema: pa.Schema, address: str) -> str:
    for name in _CONTENT:
        if name in schema.names:
            kind = schema.field(name).type
            if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_struct(kind):
                return name
    rule = f"to have a column of image bytes called {', '.join(_CONTENT[:-1])} or {_CONTENT[-1]}"
    message = f"Expected {address} {rule}, but got {', '.join(schema.names)}. Rename the column."
    raise UsageError(message, "input.columns", input=address)


def _of_files(files: Sequence[File], images: int) -> list[Block]:
    cut = [files[start : start + images] for start in range(0, len(files), images)]
    return [
        Block(number, Kind.FILES, tuple(file.path for file in some), stamp=_stamp(some))
        for number, some in enumerate(cut)
    ]


def _of_tables(system: Local | Bucket, tables: Sequence[File]) -> list[Block]:
    """Make a block per row group; an unreadable file is a block, too, unless all are unreadable."""
    found, damage = list[Block](), list[str]()
    for table in tables:
        address, groups = system.prefix + table.path, 1
        try:
            with system.open(table.path) as file:
                parquet = pq.ParquetFile(file)
                _column(parquet.schema_arrow, address)
                groups = parquet.num_row_groups
        except UceEdgeError:
            raise
        except Exception as error:  # pyarrow raises many kinds of errors for damaged files
            damage.append(f"{address} cannot be read as Parquet: {reason(error)}. Write that file again.")
        stamp = _stamp([table])
        found += [Block(len(found) + group, Kind.ROWS, (address,), group, stamp) for group in range(groups)]
    if len(damage) == len(tables):
        raise UsageError(damage[0], "input.unreadable")
    if not found:
        raise UsageError("The Parquet files have no rows.", "input.empty")
    return found


def _stamp(files: Sequence[File]) -> str:
    return hashlib.sha256("\n".join(file.stamp for file in files).encode()).hexdigest()


def _matching(system: Local | Bucket, pattern: str) -> list[File]:
    """Find files by a pattern; ** matches folders."""
    parts = Path(pattern).parts
    first = next(index for index, part in enumerate(parts) if any(sign in part for sign in "*?["))
    base = str(Path(*parts[:first])) if first else "."
    if not system.is_folder(base):
        return []
    simple = pattern.replace("**/", "*")  # fnmatch's star also matches slashes
    deep = "**" in pattern
    return [
        file
        for file in system.below(base)
        if fnmatch.fnmatch(file.path, simple) and (deep or len(Path(file.path).parts) == len(parts))
    ]


def _listed(system: Local | Bucket, place: str) -> list[File]:
    """Read the image files of a list; relative paths start at its folder."""
    with system.open(place) as file:
        text = read_stream(file, place).decode("utf-8-sig")
    rows = image_lists.parse(text, Path(place).suffix.lower(), place)
    folder = f"{system.prefix}{Path(place).parent}"
    return [_named(image_lists.beside(path, folder)) for path in image_lists.paths(rows, place)]


def _named(address: str) -> File:
    """A file of a list. In a bucket it has no stamp, because every request takes time."""
    try:
        return File(address, "" if is_far(address) else Local().stamp(reached(address)[1]))
    except UsageError:  # its row has the error
        return File(address, "")
