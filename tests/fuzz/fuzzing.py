"""Reads damaged files in a process of its own, which may neither crash, nor hang, nor take more memory than it may.

python tests/fuzz/fuzzing.py images 0 1000     # a thousand damaged images; the last line sums up
python tests/fuzz/fuzzing.py images 123 1      # one of them again
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 60  # that one file may take


@dataclass(frozen=True)
class Outcome:
    """What became of many files."""

    counts: dict[str, int]
    peak: int
    """Megabytes that reading them took, at most."""
    failure: str | None
    """What went wrong, with the number to repeat it."""


def fuzz(name: str, first: int, count: int) -> Outcome:
    """Read files `first` to `first + count` with their damage, in another process."""
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "number"
        command = [sys.executable, __file__, name, str(first), str(count), str(progress)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        number = int(progress.read_text() or first) if progress.exists() else first
    if done.returncode == 0:
        said = json.loads(done.stdout.splitlines()[-1])
        return Outcome(said["counts"], said["peak"], None)
    ended = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
    again = f"python tests/fuzz/fuzzing.py {name} {number} 1"
    return Outcome({}, 0, f"{name} {number} ended by {ended}: {again}\n{done.stderr[-3000:]}")


def main(name: str, first: str, count: str, progress: str | None = None) -> None:
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    from targets import TARGETS

    from uce_edge.errors import UceEdgeError

    target, counts = TARGETS[name], Counter()
    warnings.simplefilter("ignore")
    corpus = target.corpus()
    spared = target.spared(corpus)
    for data in corpus:
        target.read(data)  # what is sound is read; and all modules are there
    before = _peak()
    _limit(target.memory)
    with open(progress or os.devnull, "w") as file, contextlib.redirect_stdout(sys.stderr):  # noqa: PTH123
        for number in range(int(first), int(first) + int(count)):
            file.seek(0)
            file.write(str(number))
            file.flush()
            signal.alarm(_SECONDS)
            try:
                outcome = target.read(target.damage(corpus, number, spared))
            except UceEdgeError as error:
                outcome = "refused" if str(error).strip() else sys.exit("an error without a sentence")
            counts[outcome] += 1
            signal.alarm(0)
    print(json.dumps({"counts": counts, "peak": _peak() - before}))


def _limit(megabytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _peak() -> int:
    # Not from getrusage, which begins with the peak of the process before exec.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) >> 10


if __name__ == "__main__":
    main(*sys.argv[1:])
