"""What does `uce-edge score` cost beside `uce-edge predict`, and what would a billion images take?

    python benchmarks/scale.py [--images 4096] [--write]     # in an environment with the extras cpu and ray

Processor time of a command and all its processes, per image: two folders of different size are answered, and the
difference is divided by the difference in images, so that the start does not count. It is little disturbed by other
work on the machine; rates and the gain from a second worker are, so they want a quiet one. With PyTorch in the
environment, a plain Ray Data script over a loop of passes is measured, too. `--write` puts tables into docs/scale.md.
"""

import argparse
import importlib.util
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from uce_edge.scale.inputs import Block, Kind

ROOT = Path(__file__).resolve().parent.parent
PAGE, START, END = ROOT / "docs" / "scale.md", "<!-- benchmarks/scale.py -->", "<!-- end -->"
BLOCK, LARGE_BLOCK = 64, 4096
MACHINES, CORES = (1, 10, 1000), 32
DRIVER, MODELS, DECODING, RAY = "the driver", "models", "decoding", "Ray itself"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Run:
    """One command on one folder."""

    images: int
    seconds: float
    processor: float
    """Seconds of processor time of all its processes."""
    parts: dict[str, float]
    """The same by what the processes do."""


@dataclass(frozen=True)
class Cost:
    """What one more image costs, and what the start does."""

    small: Run
    large: Run

    @property
    def each(self) -> float:
        """Seconds of processor time per image."""
        return (self.large.processor - self.small.processor) / (self.large.images - self.small.images)

    @property
    def start(self) -> float:
        """Seconds of processor time before the first image."""
        return max(self.small.processor - self.each * self.small.images, 0.0)

    def part(self, name: str) -> float:
        """Seconds of processor time per image of some of the processes."""
        more = self.large.parts.get(name, 0) - self.small.parts.get(name, 0)
        return more / (self.large.images - self.small.images)

    @property
    def rate(self) -> float:
        """Images per second of wall time, without the start; not a number where other work hid the difference."""
        more = self.large.seconds - self.small.seconds
        return (self.large.images - self.small.images) / more if more > 0 else math.nan


def processes() -> dict[int, tuple[int, float]]:
    """The parent and the processor time of every process."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            found[int(path.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS
    return found


def kind(pid: int, first: int, before: str) -> str:
    """What a process does, by the title that Ray gives it."""
    if pid == first:
        return DRIVER
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return before
    if "MapWorker" in title:
        return MODELS
    # One that decodes is called so while it does, and idle in between.
    return DECODING if title.startswith(("ray::Map", "ray::IDLE", "ray::ReadImage")) else before


def run(command: list[str], images: int) -> Run:
    """Run a command, and look again and again at what it and its children have taken so far."""
    start = time.perf_counter()
    taken: dict[int, float] = {}
    kinds: dict[int, str] = {}
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said) as process:
            known = {process.pid}
            while process.poll() is None:
                seen = processes()
                while more := {pid for pid, (parent, _) in seen.items() if parent in known} - known:
                    known |= more
                alive = known & seen.keys()
                taken |= {pid: seen[pid][1] for pid in alive}
                kinds |= {pid: kind(pid, process.pid, kinds.get(pid, RAY)) for pid in alive}
                time.sleep(0.05)
            seconds = time.perf_counter() - start
        if process.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(command)} failed:\n{said.read().decode()[-3000:]}")
    parts = dict.fromkeys((DRIVER, MODELS, DECODING, RAY), 0.0)
    for pid, each in taken.items():
        parts[kinds[pid]] += each
    return Run(images, seconds, sum(taken.values()), parts)


def folders(place: Path, small: int, large: int) -> dict[int, Path]:
    """Made pictures of 32 x 32 pixels."""
    made = {}
    for count in (small, large):
        folder = place / f"images-{count}"
        folder.mkdir()
        pixels = np.random.default_rng(0).integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
        for number, image in enumerate(pixels):
            picture = Image.fromarray(image).resize((32, 32), Image.Resampling.BICUBIC)
            picture.save(folder / f"{number:06}.png")
        made[count] = folder
    return made


def score(inference: str, workers: int = 1) -> list[str]:
    words = ["score", "FOLDER", "--inference", inference, "--workers", workers, "--out", "OUT", "--block", BLOCK]
    return [sys.executable, "-m", "uce_edge", *map(str, words)]


def predict(inference: str) -> list[str]:
    words = ["predict", "FOLDER", "--inference", inference, "--threads", "1", "--jsonl"]
    return [sys.executable, "-m", "uce_edge", *words]


def measure(command: list[str], made: dict[int, Path], place: Path) -> Cost:
    runs = []
    for count, folder in sorted(made.items()):
        with tempfile.TemporaryDirectory(dir=place) as out:
            places = {"FOLDER": str(folder), "OUT": f"{out}/answers"}
            runs.append(run([places.get(word, word) for word in command], count))
    return Cost(*runs)


def bytes_per_address() -> float:
    """Memory that the list of work takes per image file, whose address has some fifty characters."""
    count = 100_000
    tracemalloc.start()
    names = [f"archive/2026/camera-{number % 100:03}/image-{number:012}.png" for number in range(count)]
    kept = [Block(i, Kind.FILES, tuple(names[i : i + BLOCK])) for i in range(0, count, BLOCK)]
    taken = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    assert len(kept) > 1
    return taken


def costs_table(costs: dict[str, Cost]) -> list[str]:
    head = "| command | passes | processor time per image | start | images per second |"
    rows = [head, "| --- | --- | --- | --- | --- |"]
    for name, cost in costs.items():
        command, _, passes = name.rpartition(", ")
        rows.append(f"| {command} | {passes} | {1000 * cost.each:.2f} ms | {cost.start:.1f} s | {cost.rate:.0f} |")
    return rows


def overhead(costs: dict[str, Cost], passes: str) -> str:
    ours, theirs = costs[f"`score --workers 1`, {passes}"], costs[f"`predict --jsonl`, {passes}"]
    more = ours.each - theirs.each
    return f"{1000 * more:+.2f} ms an image or {100 * more / theirs.each:+.0f} % ({passes})"


def _parts(cost: Cost) -> str:
    return ", ".join(f"{name} {1000 * cost.part(name):.2f} ms" for name in (MODELS, DECODING, DRIVER, RAY))


def plan(each: float, driver_block: float, address: float) -> list[str]:
    """On paper: what machines of so many cores would do."""
    rows = [
        f"| machines of {CORES} cores | images/s of the cores | images/s of the driver, `--block {BLOCK}` | the same, "
        f"`--block {LARGE_BLOCK}` | hours for a billion images |",
        "| --- | --- | --- | --- | --- |",
    ]
    for machines in MACHINES:
        cores = machines * CORES / each
        drivers = [block / driver_block for block in (BLOCK, LARGE_BLOCK)]
        hours = [1e9 / min(cores, driver) / 3600 for driver in drivers]
        best = f"{hours[0]:,.1f}" + (f", or {hours[1]:,.1f} in large blocks" if hours[1] < 0.95 * hours[0] else "")
        rows.append(f"| {machines:,} | {cores:,.0f} | {drivers[0]:,.0f} | {drivers[1]:,.0f} | {best} |")
    return [
        f"A million images take {each * 1e6 / 3600:.1f} core-hours with 100 passes by moments. The driver takes "
        f"{1000 * driver_block:.1f} ms of one processor for every block, whatever its size, and the list of work "
        f"{address:.0f} bytes of its memory for every image file: {address * 1e9 / 2**30:.0f} GB for a billion.",
        "",
        *rows,
    ]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument(
        "--images", type=int, default=4096, help="of the larger folder, by moments; exact passes: an 8th"
    )
    asked.add_argument("--moments-only", action="store_true", help="leave out exact passes, PyTorch and two workers")
    asked.add_argument("--write", action="store_true", help="put the tables into docs/scale.md")
    options = asked.parse_args()
    large = max(options.images, 8 * BLOCK)
    costs: dict[str, Cost] = {}
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        made = folders(place, large // 2, large)
        costs["`predict --jsonl`, 100 by moments"] = measure(predict("moments"), made, place)
        costs["`score --workers 1`, 100 by moments"] = measure(score("moments"), made, place)
        if not options.moments_only:
            (place / "few").mkdir()
            few = folders(place / "few", large // 16, large // 8)
            costs["`predict --jsonl`, 25 exact"] = measure(predict("mc"), few, place)
            costs["`score --workers 1`, 25 exact"] = measure(score("mc"), few, place)
            if importlib.util.find_spec("torch"):
                plain = [sys.executable, str(ROOT / "benchmarks" / "plain_ray.py"), "FOLDER", "OUT", "25"]
                costs["plain Ray Data and PyTorch, 25 exact"] = measure(plain, few, place)
            two = measure(score("moments", 2), made, place)
            gain = two.rate / costs["`score --workers 1`, 100 by moments"].rate
            lines = [f"A second worker makes it {gain:.2f} times as fast, of 2 at best.", ""]
    own = costs["`score --workers 1`, 100 by moments"]
    differences = [
        overhead(costs, passes) for passes in ("100 by moments", "25 exact") if f"`predict --jsonl`, {passes}" in costs
    ]
    text = [
        f"{large} images of 32 x 32 pixels, the bundled model, one thread, {platform.machine()}, "
        f"{len(os.sched_getaffinity(0))} of its processors, load {os.getloadavg()[0]:.0f} at the end.",
        "",
        *costs_table(costs),
        "",
        f"`score` takes {', and '.join(differences)} more than `predict`. By process, per image: {_parts(own)}.",
        "",
        *lines,
        *plan(own.each, own.part(DRIVER) * BLOCK, bytes_per_address()),
    ]
    print("\n".join(text))
    if options.write:
        before, _, rest = PAGE.read_text().partition(START)
        PAGE.write_text(f"{before}{START}\n\n" + "\n".join(text) + f"\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
