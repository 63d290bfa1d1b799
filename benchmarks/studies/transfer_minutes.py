"""How long from a folder of photos to a promised file? Writes its part of docs/transfer.md.

    python benchmarks/studies/transfer_minutes.py trashnet=../shared/data/trashnet \
        xrays=../shared/data/chest_xray/labels.csv:group --out study/minutes

Every argument is NAME=DATA, with :GROUP for images that belong together. Run it on a quiet machine. The second
calibration, the second promise and the posterior read what the first ones stored.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "transfer.md"
START, END = "<!-- measured: written by benchmarks/studies/transfer_minutes.py -->", "<!-- end of the minutes -->"
STEPS = ("train", "calibrate", "export", "evaluate", "verify")
AGAIN = ("another number of passes", "another promise", "a Laplace posterior")


def main() -> None:
    """Run every command, and write the page's part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--target-error", default="0.05")
    parser.add_argument("--budget", help="of training; default: the plain recipe")
    parser.add_argument("--out", type=Path, default=Path("study/minutes"))
    arguments = parser.parse_args()
    results = [measure(*given.partition("=")[::2], arguments) for given in arguments.data]
    write(results, arguments)


def measure(name: str, data: str, arguments: argparse.Namespace) -> dict[str, object]:
    """Times and scores of one dataset."""
    folder, _, group = data.partition(":")
    run, file = arguments.out / name, arguments.out / f"{name}.onnx"
    shutil.rmtree(run, ignore_errors=True)
    grouped = ["--group", group] if group else []
    budget = ["--budget", arguments.budget] if arguments.budget else []
    promise = ["--target-error", arguments.target_error]
    scores = arguments.out / f"{name}-scores.json"  # NAME.json is the file's description
    times = {
        "train": timed("train", "--data", folder, *grouped, "--backbone", arguments.backbone, *budget, "--out", run),
        "calibrate": timed("calibrate", run, *promise),
        "export": timed("export", run, "--out", file),
        "evaluate": timed(
            "evaluate", file, "--data", folder, *grouped, "--reject", "auto", "--json",
            "--report", run / "report.html", to=scores,
        ),
        "verify": timed("verify", file),
    }  # fmt: skip
    again = {
        AGAIN[0]: timed("calibrate", run, "--samples", 30, *promise),
        AGAIN[1]: timed("calibrate", run, "--samples", 30, "--target-error", 1.5 * float(arguments.target_error)),
        AGAIN[2]: timed("calibrate", run, "--posterior", "laplace"),
    }
    return {"name": name, "times": times, "again": again, "scores": json.loads(scores.read_text())}


def timed(*words: object, to: Path | None = None) -> tuple[float, float]:
    """Seconds of the clock and of the processors that a command takes."""
    started, used = time.monotonic(), _cpu()
    print("uce-edge", *words, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "uce_edge", *map(str, words)], stdout=subprocess.PIPE, text=True, check=False
    )
    if to is not None:
        to.write_text(done.stdout)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}: the images may be too few for --target-error")
    return time.monotonic() - started, _cpu() - used


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write(results: list[dict[str, object]], arguments: argparse.Namespace) -> None:
    """Write the page's part."""
    lines = [
        f"{os.cpu_count()} processor cores, `--backbone {arguments.backbone}`, `--target-error "
        f"{arguments.target_error}`. Seconds of the clock, and in brackets of the processors:",
        "",
        f"| | {' | '.join(STEPS)} | all | test accuracy | accepted | their error |",
        f"|{' --- |' * (len(STEPS) + 5)}",
    ]
    for found in results:
        times, scores = found["times"], found["scores"]
        cells = [f"{times[step][0]:.0f} ({times[step][1]:.0f})" for step in STEPS]
        total = sum(times[step][0] for step in STEPS)
        values = scored(scores)
        lines.append(f"| {found['name']} | {' | '.join(cells)} | **{total:.0f}** | {' | '.join(values)} |")
    lines += ["", f"| then | {' | '.join(AGAIN)} |", f"|{' --- |' * (len(AGAIN) + 1)}"]
    for found in results:
        again = found["again"]
        lines.append(f"| {found['name']} | {' | '.join(f'{again[step][0]:.0f} s' for step in AGAIN)} |")
    text = "\n".join([START, "", *lines, "", END])
    page = PAGE.read_text()
    before, _, rest = page.partition(START)
    PAGE.write_text(before + text + rest.partition(END)[2] if rest else f"{page.rstrip()}\n\n{text}\n")
    print(text)


def scored(scores: dict[str, object]) -> tuple[str, str, str]:
    """Accuracy on test images, the accepted share, and its error."""
    accuracy = scores["metrics"]["accuracy"]["value"]
    promised = next(iter(scores["rejection"]), {})
    return f"{accuracy:.1%}", *(
        "-" if promised.get(key) is None else f"{promised[key]:.1%}" for key in ("coverage", "error")
    )


if __name__ == "__main__":
    main()
