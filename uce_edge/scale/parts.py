"""The output: one Parquet file per block, each there whole or not at all, and a manifest of the job."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from uce_edge import contract
from uce_edge.errors import UceEdgeError, UsageError
from uce_edge.rejection.rule import COLUMNS

MANIFEST = "_manifest.json"
MODEL = "_model.onnx"
"""The model file lies beside its answers, where every machine that writes them can read it."""
_LOCK = "_lock"
_COUNTS = b"uce_edge_counts"

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

    def to_json(self) -> str:
        """For the head of a file."""
        return json.dumps(self.as_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> "Counts":
        """From the head of a file."""
        values = json.loads(text)
        return cls(values["accepted"], values["rejected"], values["undecided"], Counter(values["errors"]))


class Folder:
    """Where the answers go: a local folder, or a place in a bucket."""

    def __init__(self, address: str) -> None:
        """Find the file system of an address."""
        self.address = address
        try:
            if "://" in address:
                self._system, self._place = pa_fs.FileSystem.from_uri(address)
            else:
                self._system, self._place = pa_fs.LocalFileSystem(), str(Path(address).absolute())
        except (pa.ArrowInvalid, OSError) as error:
            raise UsageError(f"{address} cannot be reached: {error}.") from None
        self._local = isinstance(self._system, pa_fs.LocalFileSystem)

    def name(self, number: int) -> str:
        """The file of a block."""
        return f"part-{number:08d}.parquet"

    def begin(self, manifest: Manifest) -> dict[int, Counts]:
        """Start or go on with a job; gives what is there already.

        Raises:
            UsageError: The folder holds the answers of another job.
        """
        try:
            self._system.create_dir(self._place, recursive=True)
            there = self._read(MANIFEST)
            if there is None:
                if self._files():
                    raise UsageError(f"{self.address} has files and no {MANIFEST}. Name an empty folder with --out.")
                self._write(MANIFEST, json.dumps(asdict(manifest), indent=1).encode())
                return {}
            self._compare(json.loads(there), asdict(manifest))
            return {number: self._counts(number) for number in self._numbers()}
        except OSError as error:
            raise UceEdgeError(f"Cannot write to {self.address}: {error}. Choose another place with --out.") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other jobs on this machine out; a bucket has no lock.

        Two jobs on one bucket write the same files with the same rows.
        """
        if not self._local:
            yield
            return
        import fcntl

        file = os.open(Path(self._place) / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise UceEdgeError(f"Another job writes to {self.address}. Wait for it, or name another --out.") from None
        try:
            yield
        finally:
            os.close(file)

    def write(self, number: int, rows: Sequence[dict[str, Any]]) -> Counts:
        """Store the rows of a block; the file is there whole or not at all."""
        counts = Counts.of(rows)
        schema = SCHEMA.with_metadata({_COUNTS: counts.to_json()})
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(rows), schema), sink, compression="zstd")
        try:
            self._write(self.name(number), sink.getvalue())
        except OSError as error:
            raise UceEdgeError(f"Cannot write to {self.address}: {error}. Make room, and start it again.") from None
        return counts

    def keep(self, name: str, content: bytes) -> None:
        """Store a file for the workers, if it is not there."""
        try:
            if self._read(name) != content:
                self._write(name, content)
        except OSError as error:
            raise UceEdgeError(f"Cannot write to {self.address}: {error}. Make room, and start it again.") from None

    def kept(self, name: str) -> bytes:
        """A file that was stored for the workers."""
        content = self._read(name)
        if content is None:
            raise UceEdgeError(f"{name} is gone from {self.address}. Start the job again.")
        return content

    def clean(self) -> None:
        """Remove what killed workers left."""
        for path in self._files():
            if path.endswith(".tmp"):
                with suppress(OSError):
                    self._system.delete_file(path)

    def _write(self, name: str, content: Any) -> None:
        place = f"{self._place}/{name}"
        if not self._local:  # an object store shows an object when it is whole
            with self._system.open_output_stream(place) as file:
                file.write(content)
            return
        temporary = f"{place}.{os.getpid()}.tmp"
        try:
            with Path(temporary).open("wb") as local:
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
        found = self._system.get_file_info(pa_fs.FileSelector(self._place))
        return [info.path for info in found if info.type is pa_fs.FileType.File and not info.path.endswith(_LOCK)]

    def _numbers(self) -> list[int]:
        names = (Path(path).name for path in self._files())
        return [int(name[5:13]) for name in names if name.startswith("part-") and name.endswith(".parquet")]

    def _counts(self, number: int) -> Counts:
        with self._system.open_input_file(f"{self._place}/{self.name(number)}") as file:
            head = pq.read_schema(file).metadata or {}
        return Counts.from_json(head[_COUNTS])

    def _compare(self, there: dict[str, Any], now: dict[str, Any]) -> None:
        for key, value in now.items():
            if key != "input" and there.get(key) != value:
                what = {"model_sha256": "another model", "fingerprint": "another input", "blocks": "another input"}
                raise UsageError(
                    f"{self.address} holds the answers of {what.get(key, f'another {key}')} "
                    f"({key} {there.get(key)!r}, now {value!r}). Name another folder with --out."
                )
