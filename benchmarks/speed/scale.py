"""What does `uce-edge score` cost beside `uce-edge predict`, and what would a billion images take?

    python benchmarks/speed/scale.py [--images 4096] [--repeats 2] [--write]     # needs the extras cpu and ray

Processor time of a command and all its processes. Every command answers two folders of different size, in turn with the
others, `--repeats` times. The line through the two means gives what one more image costs and what the start costs.
Processor time is little disturbed by other work on the machine; rates and the gain from a second worker are, so they
want a quiet one. With PyTorch in the environment, a plain Ray Data script over a loop of passes is measured, too.
`--write` puts tables into docs/scale.md.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow as pa
from PIL import Image

from uce_edge.scale.inputs import Block, Kind, blocks, fingerprint
from uce_edge.scale.ray_job import TASKS, TASKS_EACH

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE, START, END = ROOT / "docs" / "scale.md", "<!-- benchmarks/speed/scale.py -->", "<!-- end -->"
BLOCK, TINY_BLOCK = 256, 2
MACHINES, CORES = (1, 10, 1000), 32
DRIVER, MODELS, OTHERS, RAY = "the driver", "workers", "other tasks", "Ray itself"
MOMENTS, EXACT = "100 by moments", "25 exact"
AIM = 10
"""How many percent more than for `predict` one more image may cost `score`."""
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
    """The line through what two folders cost: its slope is one more image, its beginning the start."""

    small: list[Run]
    large: list[Run]

    @property
    def each(self) -> float:
        """Seconds of processor time per image."""
        return self._slope(lambda run: run.processor)

    @property
    def start(self) -> float:
        """Seconds of processor time before the first image."""
        return fmean(run.processor for run in self.small) - self.each * self.small[0].images

    @property
    def rate(self) -> float:
        """Images per second of wall time, without the start; not a number where other work hid the difference."""
        each = self._slope(lambda run: run.seconds)
        return 1 / each if each > 0 else math.nan

    @property
    def wait(self) -> float:
        """Seconds of wall time before the first image."""
        return fmean(run.seconds for run in self.small) - self._slope(lambda run: run.seconds) * self.small[0].images

    def part(self, name: str) -> float:
        """Seconds of processor time per image of some of the processes."""
        return self._slope(lambda run: run.parts[name])

    def _slope(self, value: Callable[[Run], float]) -> float:
        more = fmean(map(value, self.large)) - fmean(map(value, self.small))
        return more / (self.large[0].images - self.small[0].images)


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
    if title.startswith(("ray::Map", "ray::ReadImage")):
        return OTHERS
    return before  # one that runs tasks is idle in between


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
    parts = dict.fromkeys((DRIVER, MODELS, OTHERS, RAY), 0.0)
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


def score(inference: str, workers: int = 1, block: int = BLOCK) -> list[str]:
    words = ["score", "FOLDER", *_model(inference), "--workers", workers, "--out", "OUT", "--block", block]
    return [sys.executable, "-m", "uce_edge", *map(str, words)]


def predict(inference: str) -> list[str]:
    words = ["predict", "FOLDER", *_model(inference), "--threads", "1", "--jsonl"]
    return [sys.executable, "-m", "uce_edge", *words]


def _model(inference: str) -> list[str]:
    return ["--model", "cifar10", "--inference", inference]


def once(command: list[str], folder: Path, images: int) -> Run:
    with tempfile.TemporaryDirectory() as out:
        places = {"FOLDER": str(folder), "OUT": f"{out}/answers"}
        return run([places.get(word, word) for word in command], images)


def measure(commands: dict[str, list[str]], made: dict[int, Path], repeats: int) -> dict[str, Cost]:
    """Commands in turn, so that what else the machine does meets all of them."""
    runs: dict[str, dict[int, list[Run]]] = {name: {count: [] for count in made} for name in commands}
    for _ in range(repeats):
        for count, folder in made.items():
            for name, command in commands.items():
                runs[name][count].append(once(command, folder, count))
    return {name: Cost(found[min(made)], found[max(made)]) for name, found in runs.items()}


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


def listing(folder: Path, images: int) -> float:
    """Seconds that the driver takes per image before anything starts: it lists, hashes and packs the addresses."""
    start, rounds = time.process_time(), 5
    for _ in range(rounds):
        found = blocks(str(folder), BLOCK)
        fingerprint(found)
        pa.Table.from_pylist([{"addresses": list(block.addresses)} for block in found])
    return (time.process_time() - start) / rounds / images


def per_task(own: Cost, made: dict[int, Path]) -> float:
    """Seconds of the driver for one task of Ray: the same images in many tiny blocks, beside a few."""
    images = min(made)
    tiny = once(score("moments", block=TINY_BLOCK), made[images], images)
    more = min(-(-images // TINY_BLOCK), TASKS) - -(-images // BLOCK)
    return max(tiny.parts[DRIVER] - fmean(run.parts[DRIVER] for run in own.small), 0.0) / more


def costs_table(costs: dict[str, Cost]) -> list[str]:
    rows = [
        "| command | passes | processor time per image | processor time of the start | images per second | start |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, cost in costs.items():
        command, _, passes = name.rpartition(", ")
        rows.append(
            f"| {command} | {passes} | {1000 * cost.each:.2f} ms | {cost.start:.1f} s | {cost.rate:.0f} | "
            f"{cost.wait:.1f} s |"
        )
    return rows


def overhead(costs: dict[str, Cost], passes: str) -> str:
    ours, theirs = costs[f"`score --workers 1`, {passes}"], costs[f"`predict --jsonl`, {passes}"]
    return f"{ours.each / theirs.each:.2f} times ({passes})"


def aim(ours: Cost, theirs: Cost) -> str:
    """Whether one more image is as cheap as it should be."""
    more, slower = round(100 * (ours.each / theirs.each - 1)), 100 * (1 - ours.rate / theirs.rate)
    text = f"The aim is at most {AIM} % more per image. By processor time it is {'kept' if more <= AIM else 'missed'}"
    if math.isnan(slower):
        return f"{text} ({more} %)."
    way = "slower" if slower >= 0 else "faster"
    return f"{text} ({more} %); by images per second `score` is {abs(slower):.0f} % {way}."


def plan(each: float, listed: float, task: float, address: float) -> list[str]:
    """On paper: what machines of so many cores would do with a billion images."""
    images = 1e9
    rows = [
        f"| machines of {CORES} cores | images/s of the cores | hours of the cores | tasks "
        "| hours of the driver for them | hours with the list |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for machines in MACHINES:
        cores = machines * CORES
        tasks = min(images / BLOCK, max(TASKS, TASKS_EACH * cores))
        computing, feeding = images * each / cores / 3600, tasks * task / 3600
        whole = images * listed / 3600 + max(computing, feeding)
        rows.append(
            f"| {machines:,} | {cores / each:,.0f} | {computing:,.2f} | {tasks:,.0f} | {feeding:,.2f} | {whole:,.2f} |"
        )
    return [
        f"A million images take {each * 1e6 / 3600:.2f} core-hours with {MOMENTS}. The driver takes "
        f"{1e6 * listed:.0f} µs of one processor per image for the list, and {1000 * task:.1f} ms per task. The list "
        f"takes {address:.0f} bytes of its memory per image file: {address * images / 2**30:.0f} GB for a billion.",
        "",
        *rows,
    ]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument(
        "--images", type=int, default=4096, help="of the larger folder, by moments; exact passes: an 8th"
    )
    asked.add_argument("--repeats", type=int, default=2, help="of every command by moments; exact passes: once")
    asked.add_argument("--moments-only", action="store_true", help="leave out exact passes, PyTorch and two workers")
    asked.add_argument("--write", action="store_true", help="put the tables into docs/scale.md")
    options = asked.parse_args()
    large = max(options.images, 8 * BLOCK)
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        made = folders(place, large // 4, large)
        commands = {
            f"`predict --jsonl`, {MOMENTS}": predict("moments"),
            f"`score --workers 1`, {MOMENTS}": score("moments"),
        }
        costs = measure(commands, made, max(1, options.repeats))
        own = costs[f"`score --workers 1`, {MOMENTS}"]
        task = per_task(own, made)
        if not options.moments_only:
            (place / "few").mkdir()
            few = folders(place / "few", large // 32, large // 8)
            commands = {f"`predict --jsonl`, {EXACT}": predict("mc"), f"`score --workers 1`, {EXACT}": score("mc")}
            if importlib.util.find_spec("torch"):
                plain = [sys.executable, str(ROOT / "benchmarks" / "speed" / "ray_baseline.py"), "FOLDER", "OUT", "25"]
                commands[f"plain Ray Data and PyTorch, {EXACT}"] = plain
            costs |= measure(commands, few, 1)
            two = measure({"two": score("moments", 2)}, made, 1)["two"]
            lines = [f"A second worker makes it {two.rate / own.rate:.2f} times as fast, of 2 at best.", ""]
        listed = listing(made[large], large)
    text = "\n".join([*told(costs, large), *lines, *plan(own.each, listed, task, bytes_per_address())])
    print(text)
    if options.write:
        write(text)


def told(costs: dict[str, Cost], large: int) -> list[str]:
    """How it was measured, what an image costs, and whether that is as it should be."""
    own, usual = costs[f"`score --workers 1`, {MOMENTS}"], costs[f"`predict --jsonl`, {MOMENTS}"]
    passes = [some for some in (MOMENTS, EXACT) if f"`predict --jsonl`, {some}" in costs]
    ratios = ", and ".join(overhead(costs, some) for some in passes)
    parts = ", ".join(f"{name} {1000 * own.part(name):.2f} ms" for name in (MODELS, DRIVER, RAY))
    around = (own.part(DRIVER) + own.part(RAY)) * own.rate
    command = " ".join(["benchmarks/speed/scale.py", *(word for word in sys.argv[1:] if word != "--write")])
    few = f" (exact passes: {large // 32} and {large // 8})" if EXACT in passes else ""
    return [
        f"One run of `{command}`: {large // 4} and {large} images of 32 x 32 pixels{few}, the bundled `cifar10`, one "
        f"thread, {platform.machine()}, {len(os.sched_getaffinity(0))} of its processors, load "
        f"{os.getloadavg()[0]:.0f} at the end.",
        "",
        *costs_table(costs),
        "",
        f"One more image costs `score` {ratios} what it costs `predict`. By process: {parts}. The "
        f"driver and Ray itself take {100 * around:.0f} % of one processor as long as the job lasts.",
        "",
        aim(own, usual) + ("" if EXACT in passes else " Exact passes were not measured."),
        "",
    ]


def write(text: str) -> None:
    """Put the text into the measured part of the page."""
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{before}{START}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
