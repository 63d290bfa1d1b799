"""A scoring job on Ray Data: a pool of actors, each of which scores whole blocks."""

import hashlib
import json
import logging
import re
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from uce_edge import __version__
from uce_edge._util.prefetch import done_ahead
from uce_edge.errors import ImageError, UceEdgeError, UsageError, expected
from uce_edge.images import loader
from uce_edge.images.gray_survey import Notes
from uce_edge.runtime.answers import AHEAD, CHUNK, Opened, Request, answered
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.model import Model
from uce_edge.runtime.providers import onnxruntime
from uce_edge.scale import cluster  # before Ray: sets its environment variables
from uce_edge.scale.inputs import Block, Entry, blocks, fingerprint, read, sources
from uce_edge.scale.parquet_parts import MODEL, Counts, Folder, Manifest

import ray  # isort: skip
import ray.data  # isort: skip
from ray.exceptions import RayError  # isort: skip

TASKS, TASKS_EACH = 1000, 8
"""The largest number of Ray tasks: in all or per worker, whichever is more."""
_READERS = 16  # threads of a worker that read from a bucket, and mostly wait


@dataclass(frozen=True)
class Machines:
    """The machines of a job."""

    address: str | None = None
    """The address of a Ray cluster; None starts Ray on this machine."""
    workers: int | None = None
    """The number of workers; None for as many as fit."""
    cpus: int = 1
    """Processors per worker, and threads of its ONNX Runtime."""
    device: Device = Device.CPU

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("cpus_per_worker", self.cpus)):
            if value is not None and value < 1:
                raise UsageError(expected(f"`{name}`", "at least 1", value, "Leave it out"))


@dataclass(frozen=True, eq=False)
class Job:
    """An input, a model and a folder of answers, some of which may exist already."""

    blocks: list[Block]
    there: dict[int, Counts]
    """Counts of the stored blocks, by number."""
    shared: "_Shared"

    def run(self, machines: Machines = Machines()) -> Generator[Counts, None, None]:
        """Compute the missing blocks; yields the counts of each once it is stored, in any order.

        Close the generator to end Ray.
        """
        missing = [block for block in self.blocks if block.number not in self.there]
        if missing:
            yield from _computed(missing, self.shared, machines)


@contextmanager
def opened(given: str, model: Path, out: str, request: Request = Request(), block: int = 256) -> Iterator[Job]:
    """Prepare a new or interrupted job, and lock its folder.

    Args:
        given: The input, as in `inputs.blocks`.
        model: The model file.
        out: A folder, local or in a bucket.
        request: The options of the predictions.
        block: Images per Parquet file.
    """
    loaded = Model(model, Device.CPU, threads=1)  # fails before Ray starts
    loaded.reject_rule(request.reject)
    loaded.seeds(request.samples, request.seed)
    content, digest = loaded.content(), loaded.sha256
    found = blocks(given, block)
    manifest = Manifest(digest, given, len(found), fingerprint(found), request.samples, request.seed, request.reject)
    folder = Folder(out)
    with folder.locked():
        folder.clean()
        there = folder.begin(manifest, [one.stamp for one in found])
        folder.store(MODEL, content)
        yield Job(found, there, _Shared(out, request, manifest))


@dataclass(frozen=True)
class _Shared:
    """The settings of every worker."""

    out: str
    request: Request
    manifest: Manifest


def _computed(missing: list[Block], job: _Shared, machines: Machines) -> Iterator[Counts]:
    """Compute blocks; yields the counts of each, in any order."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its log files are complete
    try:
        with cluster.joined(machines.address):
            resources = ray.cluster_resources()
            available, cards = int(resources.get("CPU", 1)), int(resources.get("GPU", 0))
            fit = max(1, available // machines.cpus)
            if machines.device is Device.CUDA:
                fit = max(1, min(fit, cards))
            workers = machines.workers or fit
            rows = [{"block": one.to_json()} for one in missing]
            # Every task costs time in the driver, so a task may have several blocks.
            tasks = min(len(rows), max(TASKS, TASKS_EACH * workers))
            dataset = ray.data.from_items(rows, override_num_blocks=tasks)
            stored = dataset.map(
                _Score,
                fn_constructor_args=(job, machines),
                compute=ray.data.ActorPoolStrategy(size=workers),
                num_cpus=_share(machines.cpus, available, workers),
                num_gpus=1 if machines.device is Device.CUDA else 0,
            )
            for row in stored.iter_rows():
                yield Counts.from_dict(json.loads(row["counts"]))
    except OSError as error:  # also Ray's own ConnectionError
        if machines.address is None:
            raise UceEdgeError(f"The job stopped: {error}. Start it again: it continues.", "ray.failed") from None
        message = f"There is no Ray cluster at {machines.address}: {error}. Check --address."
        raise UceEdgeError(message, "ray.no-cluster") from None
    except RayError as error:
        raise _job_error(error) from None


def _share(cpus: int, available: int, workers: int) -> float:
    """Processors per worker for Ray, which accepts no fractions above 1."""
    each = available / workers
    return each if each < 1 else min(cpus, int(each))


def _job_error(error: RayError) -> UceEdgeError:
    """Find the cause of a failure, without the tracebacks of other processes."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UceEdgeError):
            return UceEdgeError(str(cause), cause.code, **cause.fields)
        cause = getattr(cause, "cause", None) or cause.__cause__
    reasons = re.findall(r"^[\w.]+(?:Error|Exception): .*", str(error), re.MULTILINE) or [type(error).__name__]
    message = f"The job failed ({reasons[0]}). Stored answers are kept: run the same command again to continue."
    return UceEdgeError(message, "job.failed")


class _Image(NamedTuple):
    """An image, and further columns of its row."""

    opened: Opened
    digest: str | None
    """SHA-256 of its bytes."""
    kind: str | None
    """The kind of its error."""


class _Score:
    """An actor that scores and stores blocks."""

    def __init__(self, job: _Shared, machines: Machines) -> None:
        self._job, self._folder = job, Folder(job.out)
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / MODEL
            path.write_bytes(self._folder.load(MODEL))
            # ONNX Runtime ignores the OMP_NUM_THREADS of Ray and would use all cores.
            self._model = Model(path, machines.device, threads=machines.cpus, spin=False)
        if self._model.sha256 != job.manifest.model_sha256:
            message = f"{MODEL} in {job.out} was replaced during this job. Start the job again."
            raise UceEdgeError(message, "model.replaced")
        self._threads = machines.cpus
        self._same = {
            "model_sha256": job.manifest.model_sha256,
            "uce_edge": __version__,
            "onnxruntime": str(onnxruntime().__version__),
        }
        self._plan = self._model.plan(job.request)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        block = Block.from_json(row["block"])
        key = self._job.manifest.key(block.number, block.stamp)
        return {"counts": json.dumps(self._folder.write(block.number, key, self._rows(block)).as_dict())}

    def _rows(self, block: Block) -> list[dict[str, Any]]:
        """Score a block; threads read and decode the next images while the model runs."""
        rows = []
        threads = max(_READERS, self._threads) if block.far else self._threads
        # Chunks of fixed size: the last digit may depend on the images of a call.
        ahead = done_ahead(self._open, sources(block), ahead=AHEAD, threads=threads, at_most=CHUNK, patience=None)
        with closing(ahead) as chunks, Notes() as notes:
            for chunk in chunks:
                for image in chunk:
                    notes.add(*image.opened.notes)
                answers = answered(self._model, [image.opened for image in chunk], self._plan)
                for image, answer in zip(chunk, answers, strict=True):
                    kind = image.kind if image.kind or answer.ok else "not finite"
                    rows.append(answer.as_dict() | {"sha256": image.digest, "error_kind": kind} | self._same)
        return rows

    def _open(self, source: str | Entry) -> _Image:
        entry = read(source)
        if entry.content is None:
            return _Image(Opened(entry.path, None, entry.error or "", None, []), None, "unreadable")
        digest, notes = hashlib.sha256(entry.content).hexdigest(), list[str]()
        try:
            pixels = loader.load(entry.content, self._model.metadata.image, entry.path, notes.append)
        except ImageError as error:
            return _Image(Opened(entry.path, None, str(error), None, notes), digest, "not an image")
        return _Image(Opened(entry.path, pixels, "", None, notes), digest, None)
