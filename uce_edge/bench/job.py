"""Jobs and timings, passed between processes as JSON."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass

from uce_edge.errors import UceEdgeError


@dataclass(frozen=True)
class Job:
    """Some passes of some images, to be timed."""

    path: str
    """The model file."""
    samples: int | None = None
    """Passes; None for the file's own number."""
    batch: int = 1
    """Images in a request."""
    device: str = "cpu"
    threads: int | None = None
    """None for all cores."""
    engine: str = ""
    """The name of the engine, for a worker that measures several."""
    architecture: str = ""
    """The network's name, for engines that build it anew."""
    classes: int = 0
    image: tuple[int, int, int] = (0, 0, 0)
    """Height, width and channels."""
    dtype: str = "uint8"
    """Of the pixels."""

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """From the argument of a worker."""
        document = json.loads(text)
        return cls(**(document | {"image": tuple(document["image"])}))

    def to_json(self) -> str:
        """As the argument of a worker."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Timing:
    """The measurements of a worker."""

    seconds: list[float]
    """Of single calls, after a warm-up."""
    peak_mb: float | None
    """Peak resident memory of the process; None if unknown."""
    provider: str
    """The execution provider."""

    def to_json(self) -> str:
        """As a worker prints it."""
        return json.dumps(asdict(self))


def start(module: str, job: Job) -> str:
    """Run a module in its own process; return its output.

    Raises:
        UceEdgeError: It failed; the message has its last line.
    """
    command = [sys.executable, "-P", "-m", module, job.to_json()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UceEdgeError(f"The measurement failed: {reason}", "measurement.failed")
    return done.stdout


def timed(worker: str, job: Job) -> Timing:
    """Run a worker in its own process."""
    return Timing(**json.loads(start(worker, job)))
