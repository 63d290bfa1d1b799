"""Scoring an input with Ray Data: a pool of actors, each of which reads, decodes, answers and stores whole blocks."""

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
from uce_edge.runtime.model import Model
from uce_edge.runtime.providers import Device, onnxruntime
from uce_edge.scale import cluster  # before Ray: sets what it reads when it is imported
from uce_edge.scale.inputs import Block, Entry, blocks, fingerprint, read, sources
from uce_edge.scale.parquet_parts import MODEL, Counts, Folder, Manifest

import ray  # isort: skip
import ray.data  # isort: skip
from ray.exceptions import RayError  # isort: skip

TASKS, TASKS_EACH = 1000, 8
"""The tasks that Ray divides a job into, at most: so many, or so many for every worker if that is more."""
_READERS = 16  # threads of a worker that read from a bucket: most of the time they wait


@dataclass(frozen=True)
class Machines:
    """What the work runs on."""

    address: str | None = None
    """Of a Ray cluster; None starts Ray on this machine."""
    workers: int | None = None
    """Models at work at once; None for what fits."""
    cpus: int = 1
    """Processors of each, and threads of its ONNX Runtime."""
    device: Device = Device.CPU

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("cpus_per_worker", self.cpus)):
            if value is not None and value < 1:
                raise UsageError(expected(f"`{name}`", "at least 1", value, "Leave it out"))


@dataclass(frozen=True, eq=False)
class Job:
    """An input, a model, and a folder of answers of which some may be there already."""

    blocks: list[Block]
    there: dict[int, Counts]
    """What is stored already, by the number of its block."""
    shared: "_Shared"

    def run(self, machines: Machines = Machines()) -> Generator[Counts, None, None]:
        """Compute what is missing; gives the counts of every block once it is stored, in any order.

        Ray ends with the generator: close one that is not read to its end.
        """
        missing = [block for block in self.blocks if block.number not in self.there]
        if missing:
            yield from _computed(missing, self.shared, machines)


@contextmanager
def opened(given: str, model: Path, out: str, request: Request = Request(), block: int = 256) -> Iterator[Job]:
    """Prepare a job, or one that was killed; other jobs on this machine are kept out of its folder meanwhile.

    Args:
        given: As in `inputs.blocks`.
        model: The model file.
        out: A folder, or a place in a bucket.
        request: How the images are asked about.
        block: Images of one Parquet file.
    """
    loaded = Model(model, Device.CPU, threads=1)  # refuses what cannot work before anything starts
    loaded.reject_rule(request.reject)
    loaded.seeds(request.samples, request.seed)
    content, digest = loaded.content(), loaded.sha256
    found = blocks(given, block)
    manifest = Manifest(digest, given, len(found), fingerprint(found), request.samples, request.seed, request.reject)
    folder = Folder(out)
    with folder.locked():
        folder.clean()
        there = folder.begin(manifest, [one.stamp for one in found])
        folder.keep(MODEL, content)
        yield Job(found, there, _Shared(out, request, manifest))


@dataclass(frozen=True)
class _Shared:
    """What every worker needs to know, beside the model."""

    out: str
    request: Request
    manifest: Manifest


def _computed(missing: list[Block], job: _Shared, machines: Machines) -> Iterator[Counts]:
    """The counts of every block once it is stored, in any order."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its log files have all of it
    try:
        with cluster.joined(machines.address):
            resources = ray.cluster_resources()
            available, cards = int(resources.get("CPU", 1)), int(resources.get("GPU", 0))
            fit = max(1, available // machines.cpus)
            if machines.device is Device.CUDA:
                fit = max(1, min(fit, cards))
            workers = machines.workers or fit
            rows = [{"block": one.to_json()} for one in missing]
            # The driver works for every task, so a task has several blocks where there are many.
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
        raise UceEdgeError(f"There is no Ray cluster at {machines.address}: {error}. Check --address.") from None
    except RayError as error:
        raise _sentence(error) from None


def _share(cpus: int, available: int, workers: int) -> float:
    """Processors that Ray keeps for a worker: more workers than fit share them. Ray takes no fractions above 1."""
    each = available / workers
    return each if each < 1 else min(cpus, int(each))


def _sentence(error: RayError) -> UceEdgeError:
    """What failed, without the trace of other processes."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UceEdgeError):
            return UceEdgeError(str(cause))
        cause = getattr(cause, "cause", None) or cause.__cause__
    said = re.findall(r"^[\w.]+(?:Error|Exception): .*", str(error), re.MULTILINE) or [type(error).__name__]
    return UceEdgeError(f"The job failed ({said[0]}). What is stored stays: the same command goes on.")


class _Image(NamedTuple):
    """An image that was read, and what its row says beside the answer."""

    opened: Opened
    digest: str | None
    """SHA-256 of its bytes, which are not kept."""
    kind: str | None
    """Of its error."""


class _Score:
    """An actor: a model that answers for blocks and stores the answers."""

    def __init__(self, job: _Shared, machines: Machines) -> None:
        self._job, self._folder = job, Folder(job.out)
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / MODEL
            path.write_bytes(self._folder.kept(MODEL))
            # Ray sets OMP_NUM_THREADS, which ONNX Runtime ignores: without a number it would take all cores.
            self._model = Model(path, machines.device, threads=machines.cpus, spin=False)
        if self._model.sha256 != job.manifest.model_sha256:
            raise UceEdgeError(f"{MODEL} in {job.out} was replaced while this job runs. Start the job again.")
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
        """Threads read and decode the next images while the model runs; no pixels leave this process."""
        rows = []
        threads = max(_READERS, self._threads) if block.far else self._threads
        # Lists of one length, whatever is decoded by when: the last digit may depend on what is computed together.
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
