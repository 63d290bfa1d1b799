"""The output: one Parquet file per block, each there whole or not at all, and a manifest of the job."""

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
from uce_edge.errors import UceEdgeError, UceEdgeWarning, UsageError
from uce_edge.rejection.rule import COLUMNS
from uce_edge.scale.places import Bucket, reached, reason

MANIFEST = "_manifest.json"
MODEL = "_model.onnx"
"""The model file lies beside its answers, where every machine that writes them can read it."""
_LOCK = "_lock"
_PART = re.compile(r"part-(\d{8})\.parquet")
_TEMPORARY = re.compile(rf"({_PART.pattern}|{re.escape(MANIFEST)}|{re.escape(MODEL)})\.[0-9a-f]+\.tmp")
_KEY = b"uce_edge_key"
_NAMED = 3  # files that a message names

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
"""The columns: the fields of an answer, the hash of the image's bytes, and what computed it."""


class AgainWarning(UceEdgeWarning):
    """Answers that are stored already are computed again."""


@dataclass(frozen=True)
class Manifest:
    """What a folder of answers was computed from; a job that goes on must agree with it."""

    model_sha256: str
    input: str
    """What the user named."""
    blocks: int
    fingerprint: str
    """SHA-256 of the blocks."""
    samples: int | None
    seed: int
    reject: float | str | None

    def key(self, number: int, stamp: str) -> str:
        """What a part is computed from: the job, the block, and the content of its files.

        Args:
            number: Of the block.
            stamp: As of the block.
        """
        same = {name: value for name, value in asdict(self).items() if name != "input"}
        return hashlib.sha256(json.dumps([same, number, stamp]).encode()).hexdigest()


@dataclass(frozen=True)
class Counts:
    """What became of images."""

    accepted: int = 0
    rejected: int = 0
    undecided: int = 0
    """Answered without a threshold."""
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
        """All of them."""
        return self.accepted + self.rejected + self.undecided + sum(self.errors.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return vars(self) | {"errors": dict(self.errors)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Counts":
        """From plain values."""
        return cls(**values | {"errors": Counter(values["errors"])})


class Folder:
    """Where the answers go: a local folder, or a place in a bucket."""

    def __init__(self, address: str) -> None:
        """Find the file system of an address."""
        self.address = address
        system, self._place = reached(address)
        self._local = not isinstance(system, Bucket)
        self._system = system.system if isinstance(system, Bucket) else pa_fs.LocalFileSystem()

    def name(self, number: int) -> str:
        """The file of a block."""
        return f"part-{number:08d}.parquet"

    def begin(self, manifest: Manifest, stamps: Sequence[str]) -> dict[int, Counts]:
        """Start or go on with a job; gives what is there already.

        Args:
            manifest: Of the job.
            stamps: Of its blocks.

        Warns:
            AgainWarning: Some of what is there is damaged, or its images have changed. It is computed again.

        Raises:
            UsageError: The folder holds the answers of another job, or files of somebody else.
        """
        with self._writing():
            there = self._read(MANIFEST)
            if there is None:
                self._write(MANIFEST, json.dumps(asdict(manifest), indent=1).encode())
                return {}
            self._compare(there, asdict(manifest))
            return self._stored([manifest.key(number, stamp) for number, stamp in enumerate(stamps)])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other jobs on this machine out; a bucket has no lock.

        Two jobs on one bucket write the same files with the same rows.
        """
        with self._writing():
            self._system.create_dir(self._place, recursive=True)
            if self._files() and self._read(MANIFEST) is None:
                raise UsageError(f"{self.address} has files and no {MANIFEST}. Name an empty folder with --out.")
        if not self._local:
            yield
            return
        import fcntl

        with self._writing():
            file = os.open(Path(self._place) / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            with self._writing():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(file)

    def write(self, number: int, key: str, rows: Sequence[dict[str, Any]]) -> Counts:
        """Store the rows of a block; the file is there whole or not at all."""
        sink = pa.BufferOutputStream()
        table = pa.Table.from_pylist([_storable(row) for row in rows], SCHEMA.with_metadata({_KEY: key}))
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        with self._writing():
            self._write(self.name(number), sink.getvalue())
        return Counts.of(rows)

    def keep(self, name: str, content: bytes) -> None:
        """Store a file for the workers, if it is not there."""
        with self._writing():
            if self._read(name) != content:
                self._write(name, content)

    def kept(self, name: str) -> bytes:
        """A file that was stored for the workers."""
        content = self._read(name)
        if content is None:
            raise UceEdgeError(f"{name} is gone from {self.address}. Start the job again.")
        return content

    def clean(self) -> None:
        """Remove what killed workers left."""
        with self._writing():
            for name in self._names():
                if _TEMPORARY.fullmatch(name):
                    self._system.delete_file(f"{self._place}/{name}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say what is wrong with the place."""
        try:
            yield
        except BlockingIOError:
            raise UceEdgeError(f"Another job writes to {self.address}. Wait for it, or name another --out.") from None
        except (OSError, ValueError, pa.ArrowException) as error:
            said = f"Cannot write to {self.address}: {reason(error)}."
            raise UceEdgeError(f"{said} Make room, or choose another place with --out.") from None

    def _write(self, name: str, content: Any) -> None:
        place = f"{self._place}/{name}"
        if not self._local:  # an object store shows an object when it is whole
            with self._system.open_output_stream(place) as file:
                file.write(content)
            return
        temporary = f"{place}.{secrets.token_hex(8)}.tmp"  # machines of a cluster may share process numbers
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
        """The names of the files, without the lock and what killed workers left."""
        return [name for name in self._names() if name != _LOCK and not _TEMPORARY.fullmatch(name)]

    def _names(self) -> list[str]:
        found = self._system.get_file_info(pa_fs.FileSelector(self._place))
        return sorted(Path(info.path).name for info in found if info.type is pa_fs.FileType.File)

    def _stored(self, keys: Sequence[str]) -> dict[int, Counts]:
        """The counts of what need not be computed again."""
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
            elif name.endswith(".parquet"):  # who reads the folder would read it, too
                raise UsageError(f"{self.address} has {name}, which this job did not write. Move that file away.")
        for why, names in again.items():
            named = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
            said = f"{len(names)} of {len(keys)} files in {self.address} are computed again: {why} ({named})."
            warnings.warn(said, AgainWarning, stacklevel=5)
        return there

    def _counts(self, name: str, key: str) -> Counts | str:
        """What is in a part, or why it does not count."""
        try:
            content = pa.BufferReader(self._read(name))
            table = pq.read_table(content, page_checksum_verification=True)
            if not table.schema.equals(SCHEMA):
                return "they are damaged"
        except Exception:  # the reader raises whatever its parsing ran into
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
            raise UsageError(f"{MANIFEST} of {self.address} is damaged. Name another folder with --out.")
        for key, value in now.items():
            if key != "input" and there.get(key) != value:
                what = {"model_sha256": "another model", "fingerprint": "another input", "blocks": "another input"}
                raise UsageError(
                    f"{self.address} holds the answers of {what.get(key, f'another {key}')} "
                    f"({key} {there.get(key)!r}, now {value!r}). Name another folder with --out."
                )


def _storable(row: dict[str, Any]) -> dict[str, Any]:
    """Names that are no UTF-8 are stored with backslashes."""
    return row | {
        name: row[name].encode("utf-8", "backslashreplace").decode()
        for name in ("path", "error")
        if row.get(name) is not None
    }
