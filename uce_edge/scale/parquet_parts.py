"""The output: one Parquet file per block, written atomically, and a manifest."""

import hashlib
import json
import os
import re
import secrets
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from uce_edge import contract
from uce_edge._util.atomic_files import lock
from uce_edge.errors import UceEdgeError, UceEdgeWarning, UsageError
from uce_edge.rejection.rule import COLUMNS
from uce_edge.scale.places import Bucket, reached, reason

MANIFEST = "_manifest.json"
MODEL = "_model.onnx"
"""A copy of the model file beside its answers, for all machines."""
_LOCK = "_lock"
_PART = re.compile(r"part-(\d{8})\.parquet")
_TEMPORARY = re.compile(rf"({_PART.pattern}|{re.escape(MANIFEST)}|{re.escape(MODEL)})\.[0-9a-f]+\.tmp")
_KEY = b"uce_edge_key"
_NAMED = 3  # files to list in a message

SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("sha256", pa.string()),
        ("status", pa.string()),
        ("label", pa.string()),
        ("class_id", pa.int32()),
        *((name, pa.float64()) for name in ("confidence", *contract.NUMBERS, *COLUMNS)),
        ("decision", pa.string()),
        ("reason", pa.string()),
        ("set", pa.list_(pa.string())),
        ("samples", pa.int32()),
        ("seed", pa.int32()),
        ("top", pa.list_(pa.struct([("label", pa.string()), ("probability", pa.float64())]))),
        ("error", pa.string()),
        ("error_kind", pa.string()),
        ("model_sha256", pa.string()),
        ("uce_edge", pa.string()),
        ("onnxruntime", pa.string()),
    ]
)
"""The columns: the fields of an answer, the hash of the image, and the versions."""


class AgainWarning(UceEdgeWarning):
    """Stored answers are computed again."""


@dataclass(frozen=True)
class Manifest:
    """The input and settings of a job; a resumed job must have the same."""

    model_sha256: str
    input: str
    """As the user wrote it."""
    blocks: int
    fingerprint: str
    """SHA-256 of the blocks."""
    samples: int | None
    seed: int
    reject: float | str | None

    def key(self, number: int, stamp: str) -> str:
        """Hash the job, the block and the stamp of its files.

        Args:
            number: The number of the block.
            stamp: The stamp of the block.
        """
        same = {name: value for name, value in asdict(self).items() if name != "input"}
        return hashlib.sha256(json.dumps([same, number, stamp]).encode()).hexdigest()


@dataclass(frozen=True)
class Counts:
    """Numbers of images by outcome."""

    accepted: int = 0
    rejected: int = 0
    undecided: int = 0
    """Answers without a threshold."""
    errors: Counter[str] = field(default_factory=Counter)
    """Images without an answer, by the kind of error."""

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> "Counts":
        """Count rows."""
        decisions = Counter(row["decision"] for row in rows if row["status"] == "ok")
        errors = Counter(row["error_kind"] for row in rows if row["status"] == "error")
        return cls(decisions["accept"], decisions["reject"], decisions[None], errors)

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.accepted + other.accepted,
            self.rejected + other.rejected,
            self.undecided + other.undecided,
            self.errors + other.errors,
        )

    @property
    def images(self) -> int:
        """The number of all images."""
        return self.accepted + self.rejected + self.undecided + sum(self.errors.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return vars(self) | {"errors": dict(self.errors)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Counts":
        """Read plain values."""
        return cls(**values | {"errors": Counter(values["errors"])})


class Folder:
    """The folder of the answers, local or in a bucket."""

    def __init__(self, address: str) -> None:
        """Find the file system of an address."""
        self.address = address
        system, self._place = reached(address)
        self._local = not isinstance(system, Bucket)
        self._system = system.system if isinstance(system, Bucket) else pa_fs.LocalFileSystem()

    def name(self, number: int) -> str:
        """The file name of a block."""
        return f"part-{number:08d}.parquet"

    def begin(self, manifest: Manifest, stamps: Sequence[str]) -> dict[int, Counts]:
        """Start or resume a job; returns the counts of the stored blocks.

        Args:
            manifest: The manifest of the job.
            stamps: The stamps of its blocks.

        Warns:
            AgainWarning: Stored answers are damaged, or their images have changed. They are computed again.

        Raises:
            UsageError: The folder has the answers of another job, or other files.
        """
        with self._writing():
            stored = self._read(MANIFEST)
            if stored is None:
                self._write(MANIFEST, json.dumps(asdict(manifest), indent=1).encode())
                return {}
            self._compare(stored, asdict(manifest))
            return self._stored([manifest.key(number, stamp) for number, stamp in enumerate(stamps)])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and lock it against other jobs on this machine.

        A bucket has no lock, but two jobs write the same files with the same rows.
        """
        with self._writing():
            self._system.create_dir(self._place, recursive=True)
            if self._files() and self._read(MANIFEST) is None:
                message = f"{self.address} has files but no {MANIFEST}. Choose an empty folder with --out."
                raise UsageError(message, "job.not-empty")
        if not self._local:
            yield
            return
        with self._writing():
            file = os.open(Path(self._place) / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            with self._writing():
                lock(file)
            yield
        finally:
            os.close(file)

    def write(self, number: int, key: str, rows: Sequence[dict[str, Any]]) -> Counts:
        """Write the rows of a block atomically."""
        sink = pa.BufferOutputStream()
        table = pa.Table.from_pylist([_storable(row) for row in rows], SCHEMA.with_metadata({_KEY: key}))
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        with self._writing():
            self._write(self.name(number), sink.getvalue())
        return Counts.of(rows)

    def store(self, name: str, content: bytes) -> None:
        """Store a file for the workers, unless it exists."""
        with self._writing():
            if self._read(name) != content:
                self._write(name, content)

    def load(self, name: str) -> bytes:
        """Read a file that was stored for the workers."""
        content = self._read(name)
        if content is None:
            raise UceEdgeError(f"{name} is missing in {self.address}. Start the job again.", "job.model-missing")
        return content

    def clean(self) -> None:
        """Remove temporary files of killed workers."""
        with self._writing():
            for name in self._names():
                if _TEMPORARY.fullmatch(name):
                    self._system.delete_file(f"{self._place}/{name}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Convert errors of the file system."""
        try:
            yield
        except BlockingIOError:
            message = f"Another job writes to {self.address}. Wait for it, or choose another --out."
            raise UceEdgeError(message, "job.locked") from None
        except (OSError, ValueError, pa.ArrowException) as error:
            message = f"Cannot write to {self.address}: {reason(error)}. Make room, or choose another place with --out."
            raise UceEdgeError(message, "job.unwritable") from None

    def _write(self, name: str, content: Any) -> None:
        place = f"{self._place}/{name}"
        if not self._local:  # object stores write atomically
            with self._system.open_output_stream(place) as file:
                file.write(content)
            return
        temporary = f"{place}.{secrets.token_hex(8)}.tmp"  # process ids repeat on the machines of a cluster
        try:
            with Path(temporary).open("xb") as local:
                local.write(content)
                local.flush()
                os.fsync(local.fileno())
            Path(temporary).replace(place)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _read(self, name: str) -> bytes | None:
        place = f"{self._place}/{name}"
        if self._system.get_file_info(place).type is not pa_fs.FileType.File:
            return None
        with self._system.open_input_stream(place) as file:
            content: bytes = file.read()
        return content

    def _files(self) -> list[str]:
        """List the files, without the lock and temporary files."""
        return [name for name in self._names() if name != _LOCK and not _TEMPORARY.fullmatch(name)]

    def _names(self) -> list[str]:
        found = self._system.get_file_info(pa_fs.FileSelector(self._place))
        return sorted(Path(info.path).name for info in found if info.type is pa_fs.FileType.File)

    def _stored(self, keys: Sequence[str]) -> dict[int, Counts]:
        """The counts of the blocks that are stored and valid."""
        there, again = dict[int, Counts](), defaultdict[str, list[str]](list)
        for name in self._files():
            part = _PART.fullmatch(name)
            if part is not None and int(part[1]) < len(keys):
                number = int(part[1])
                found = self._counts(name, keys[number])
                if isinstance(found, Counts):
                    there[number] = found
                else:
                    again[found].append(name)
            elif name.endswith(".parquet"):  # readers of the folder would read it, too
                message = f"{self.address} has {name}, which this job did not write. Move that file away."
                raise UsageError(message, "job.unknown-part", file=name)
        for why, names in again.items():
            named = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
            message = f"{len(names)} of {len(keys)} files in {self.address} are computed again: {why} ({named})."
            warnings.warn(message, AgainWarning, stacklevel=5)
        return there

    def _counts(self, name: str, key: str) -> Counts | str:
        """Count the rows of a part, or return why it is not valid."""
        try:
            content = pa.BufferReader(self._read(name))
            table = pq.read_table(content, page_checksum_verification=True)
            if not table.schema.equals(SCHEMA):
                return "they are damaged"
        except Exception:  # pyarrow raises many kinds of errors for damaged files
            return "they are damaged"
        if (table.schema.metadata or {}).get(_KEY) != key.encode():
            return "their images have changed, or another version wrote them"
        return Counts.of(table.select(["status", "decision", "error_kind"]).to_pylist())

    def _compare(self, manifest: bytes, now: dict[str, Any]) -> None:
        try:
            there = json.loads(manifest)
        except (ValueError, RecursionError):
            there = None
        if not isinstance(there, dict):
            message = f"{MANIFEST} of {self.address} is damaged. Choose another folder with --out."
            raise UsageError(message, "job.damaged")
        for key, value in now.items():
            if key != "input" and there.get(key) != value:
                what = {"model_sha256": "another model", "fingerprint": "another input", "blocks": "another input"}
                raise UsageError(
                    f"{self.address} has the answers of {what.get(key, f'another {key}')} "
                    f"({key} {there.get(key)!r}, now {value!r}). Choose another folder with --out.",
                    "job.another",
                    key=key,
                )


def _storable(row: dict[str, Any]) -> dict[str, Any]:
    """Escape text that is not UTF-8 with backslashes."""
    return row | {
        name: row[name].encode("utf-8", "backslashreplace").decode()
        for name in ("path", "error")
        if row.get(name) is not None
    }
