"""Which posterior? Compares files of trained runs with `uce-edge compare`, and writes docs/posteriors-small.md.

    python benchmarks/studies/posterior_study.py few --data cifar10 --out build/cifar10-few.npz  # for `overconfident`
    python benchmarks/studies/posterior_study.py files --data cifar10 --runs runs --out study/cifar10
        --ood cifar100 --ood far
    python benchmarks/studies/posterior_study.py page study/cifar10 study/pneumoniamnist

`--runs` is a folder of runs: det0, det1, ... are one pool of deterministic trainings with different seeds; those of
`NOISY` have noise. Runs are copied and calibrated with the same promise. What is there already is not made again, so
that a killed study goes on. What cannot be made is left out, and the page says why.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uce_edge._util.atomic_files import replacing
from uce_edge.datasets import splits
from uce_edge.evaluation.comparison import COMPARED, OOD_SCORES
from uce_edge.output.wording import METRICS, count

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "posteriors-small.md"
START, END = "<!-- measured: written by benchmarks/studies/posterior_study.py -->", "<!-- end of what was measured -->"
NOISY = {
    "plain": "Gaussian p = 0.05",
    "gaussian20": "Gaussian p = 0.2",
    "bernoulli": "Bernoulli p = 0.1",
    "overconfident": "overconfident",
}
"""Names of runs with noise, and what they are called."""
FEW = 5_000
SINGLE, LAPLACE = "deterministic", "Laplace"
PLAIN = ("--inference", "deterministic")
TITLES = {metric: METRICS[metric].title for metric in COMPARED}


@dataclass
class Study:
    """One dataset: where everything lies, and what could not be made."""

    folder: Path
    data: str
    target: float
    left_out: dict[str, str]

    def command(self, *words: object) -> str | None:
        """Run a command of the program; the last line that it said when it failed."""
        line = [sys.executable, "-m", "uce_edge", *map(str, words)]
        print("uce-edge", *words, flush=True)
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        # Usage errors are drawn in a box.
        said = [text for line in done.stderr.splitlines() if (text := line.strip("│╭╮╰╯─ ")) and text[0].isalpha()]
        return None if done.returncode == 0 else (said or ["it said nothing"])[-1]

    def calibrated(self, run: Path, name: str, *options: str) -> Path | None:
        """A calibrated copy of a run; None when it cannot be made."""
        folder = self.folder / "runs" / name
        if not folder.exists():
            draft = folder.with_name(f"{name}.part")
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(run, draft)
            why = self.command("calibrate", draft, "--target-error", self.target, *options)
            if why is not None:
                self.left_out[name] = why
                return None
            draft.rename(folder)
        return folder

    def exported(self, name: str, runs: Sequence[Path | None], *options: str) -> Path | None:
        """A file of one or several runs; None when it cannot be made."""
        path = self.folder / f"{name}.onnx"
        if any(run is None for run in runs):
            self.left_out.setdefault(name, "a run of it could not be calibrated")
            return None
        if not path.exists():
            why = self.command("export", *runs, "--out", path, *options)
            if why is not None:
                self.left_out[name] = why
                return None
        return path

    def compared(self, name: str, files: Iterable[Path | None], options: Sequence[str]) -> None:
        """Compare files that exist; the JSON is kept, and the page lies beside it."""
        there = [path for path in files if path is not None]
        out = self.folder / f"{name}.json"
        if len(there) < 2 or (out.exists() and all(path.stat().st_mtime < out.stat().st_mtime for path in there)):
            return
        page = self.folder / f"{name}.html"
        words = ["compare", *map(str, there), "--data", self.data, "--json", "--report", str(page), *options]
        print("uce-edge", *words, flush=True)
        done = subprocess.run([sys.executable, "-m", "uce_edge", *words], stdout=subprocess.PIPE, text=True, check=True)
        out.write_text(done.stdout)


def few(arguments: argparse.Namespace) -> None:
    """A dataset with few training images, which a small network learns by heart; the others are as they were."""
    dataset = splits.load(arguments.data)
    parts, train = dataset.splits, dataset.splits["train"].at_most(FEW)
    held_out = [parts["calibration"], parts["guarantee"]]
    with replacing(arguments.out) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(
            stream,
            class_names=np.array(dataset.class_names),
            train_images=train.images,
            train_labels=train.labels,
            val_images=np.concatenate([part.images for part in held_out]),
            val_labels=np.concatenate([part.labels for part in held_out]),
            test_images=parts["test"].images,
            test_labels=parts["test"].labels,
        )
    print(f"{arguments.out}: {len(train):,} training images of {arguments.data}")


def make(arguments: argparse.Namespace) -> None:
    """Make the files of one dataset, and compare them."""
    study = Study(Path(arguments.out), arguments.data, arguments.target_error, {})
    study.folder.mkdir(parents=True, exist_ok=True)
    runs = Path(arguments.runs)
    pool = [study.calibrated(run, run.name) for run in sorted(runs.glob("det[0-9]*")) if (run / "run.json").exists()]
    if not pool:
        raise SystemExit(f"{runs} has no finished run called det0: train the pool first.")
    singles = [study.exported(SINGLE if at == 0 else f"{SINGLE} {at}", [run], *PLAIN) for at, run in enumerate(pool)]
    files = singles[:1]
    for name, title in NOISY.items():
        if not (runs / name / "run.json").exists():
            study.left_out[title] = "the run is not there"
            continue
        run = study.calibrated(runs / name, name)
        files.append(study.exported(title, [run]))
        if name != "overconfident":
            files.append(study.exported(f"{title}, moments", [run], "--inference", "moments"))
        files.append(study.exported(f"{title}, without noise", [run], *PLAIN))
    laplace = study.calibrated(runs / "det0", "laplace", "--posterior", "laplace")
    files.append(study.exported(LAPLACE, [laplace]))
    # An ensemble is calibrated as a whole, with a promise of its own.
    promise = ("--target-error", str(study.target))
    # Seeds by leaving out: every training begins one ensemble of three neighbours in the pool.
    triples = [[pool[(at + step) % len(pool)] for step in range(3)] for at in range(len(pool))] if len(pool) > 3 else []
    threes = [study.exported(f"ensemble of 3, {at}", members, *PLAIN, *promise) for at, members in enumerate(triples)]
    five = study.exported(f"ensemble of {len(pool)}", pool, *PLAIN, *promise) if len(pool) > 1 else None
    options = ["--threads", str(arguments.threads)]
    options += [word for name in arguments.ood for word in ("--ood", name)]
    options += ["--images", str(arguments.images)] if arguments.images else []
    timed = options if arguments.latency else [*options, "--no-latency"]
    # Twelve files fit into one comparison; networks that were trained with noise and run without it are told apart.
    main = [path for path in [*files, *threes[:1], five] if path is not None and "without noise" not in path.stem]
    plain = [path for path in files if path is not None and (path in singles or "without noise" in path.stem)]
    study.compared("posteriors", main, timed)
    study.compared("without-noise", plain, timed)
    study.compared("trainings", [*singles, *threes, five], [*options, "--no-latency"])
    (study.folder / "study.json").write_text(
        json.dumps({"data": study.data, "target_error": study.target, "left_out": study.left_out}, indent=2)
    )
    print(f"Next: python benchmarks/studies/posterior_study.py page {study.folder}")


def write(arguments: argparse.Namespace) -> None:
    """Write the measured part of the page from finished studies; a dataset that is not among them keeps its figures."""
    studies = [(folder, json.loads((folder / "study.json").read_text())) for folder in map(Path, arguments.studies)]
    before, _, rest = PAGE.read_text().partition(START)
    known, _, after = rest.partition(END)
    sections = {text.partition("\n")[0]: f"## {text}".rstrip() for text in re.split(r"^## ", known, flags=re.M)[1:]}
    columns = decided(sections.pop(TAKE, ""))
    for folder, study in studies:
        sections[study["data"]] = section(folder, study)
        found = load(folder, "posteriors")
        if found is not None:
            columns[study["data"]] = decision(found)
    parts = [taken(columns), *(sections[data] for data in sorted(sections))]
    PAGE.write_text(before + f"{START}\n\n" + "\n\n".join(parts) + f"\n\n{END}" + (after or "\n"))
    print(f"Wrote {PAGE}")


def load(folder: Path, name: str) -> dict[str, Any] | None:
    """A comparison; None when there is none."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


TAKE = "What to take"
NONE_BEATS = "the cheapest file that none beats in accuracy, NLL or AURC"
QUESTIONS = {
    "accuracy": "the best labels",
    "nll": "the best probabilities",
    "aurc": "the best order to reject in",
    "coverage": "to accept most at the promised error",
    "foreign": "to detect out-of-distribution images",
}


def decision(found: dict[str, Any]) -> dict[str, str]:
    """What to take for what, on one dataset: the cheapest file of every tie, and its price."""
    column = {NONE_BEATS: cell(found, [found["winner"]]) if found["winner"] else "none"}
    for what, wish in QUESTIONS.items():
        for standing in found["standings"]:
            if standing["what"] == what:
                about = standing["about"]
                told = f"{100 * float(about):g} %" if what == "coverage" else about
                column[f"{wish}{f' ({told})' if told else ''}"] = cell(found, standing["tied"])
    return column


def taken(columns: dict[str, dict[str, str]]) -> str:
    """The table of what to take, a column for every dataset."""
    datasets = sorted(columns)
    wishes = dict.fromkeys(wish for data in datasets for wish in columns[data])
    rows = [[wish, *(columns[data].get(wish, "") for data in datasets)] for wish in wishes]
    return (
        f"## {TAKE}\n\n{table(['you want', *datasets], rows)}\n\nOf the files that tie for best (the paired 95 % "
        "interval contains 0), the table names the cheapest. In brackets are its price as a multiple of the reference, "
        "and how many tie."
    )


def decided(text: str) -> dict[str, dict[str, str]]:
    """The columns of a table of what to take."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {
        data: {line[0]: line[at] for line in lines[2:] if line[at : at + 1]}
        for at, data in enumerate(lines[0] if lines else [])
        if at
    }


def cell(found: dict[str, Any], names: Sequence[str]) -> str:
    """The cheapest of some files."""
    if not names:
        return ""
    files = {one["name"]: one for one in found["files"]}
    first = min(names, key=lambda name: price(files[name]) or float("inf"))
    others = f", {len(names)} tie" if len(names) > 1 else ""
    return f"**{Path(first).stem}** ({price(files[first]) or float('nan'):.3g}x{others})"


def price(one: dict[str, Any]) -> float | None:
    """What a file costs over the reference."""
    measured = one["price"]["measured"]
    return one["macs_ratio"] if measured is None else measured["ratio"]


def section(folder: Path, study: dict[str, Any]) -> str:
    """Everything that was measured on one dataset."""
    text = [f"## {study['data']}"]
    for name, lead in COMPARISONS.items():
        found = load(folder, name)
        if found is None:
            continue
        first = found["files"][0]["evaluation"]
        text.append(f"### {lead}\n\n{first['data']}, {first['images']:,} images. {found['verdict']}")
        text += [quality(found), differences(found)]
        outside = [ood["name"] for ood in first["ood"]]
        text += [foreign(found, at, called) for at, called in enumerate(outside)]
        text.append(costs(found))
    if found := load(folder, "trainings"):
        text.append(spread(found))
    if study["left_out"]:
        text.append("Left out:\n\n" + "\n".join(f"- {name}: {why}" for name, why in study["left_out"].items()))
    return "\n\n".join(text)


COMPARISONS = {"posteriors": "Posteriors", "without-noise": "Trained with noise, run without it"}


def quality(found: dict[str, Any]) -> str:
    """Metrics, and what the stored rule accepts."""
    rows = []
    for one in found["files"]:
        scores, kept = one["evaluation"]["metrics"], one["kept"]
        cells = [written(metric, scores[metric]["value"]) for metric in COMPARED]
        cells[COMPARED.index("uce")] += f" (twin {written('uce', scores['uce']['twin'])})"
        rule = "" if kept is None else f"{percent(kept['coverage'])} (error {percent(kept['error'])})"
        rows.append([Path(one["name"]).stem, *cells, rule])
    targets = sorted({one["kept"]["target_error"] for one in found["files"] if one["kept"]})
    promised = f"accepted at a promised error of {' or '.join(f'{100 * target:g} %' for target in targets)}"
    return table(["file", *(TITLES[metric] for metric in COMPARED), promised if targets else "accepted"], rows)


def differences(found: dict[str, Any]) -> str:
    """Paired differences to the reference."""
    rows = [
        [Path(one["name"]).stem, *(gap(metric, one["differences"].get(metric)) for metric in COMPARED)]
        for one in found["files"]
        if one["name"] != found["reference"]
    ]
    reference = Path(found["reference"]).stem
    lead = f"Less {reference}, with paired 95 % intervals:\n\n"
    return lead + table(["file", *(TITLES[metric] for metric in COMPARED)], rows)


def foreign(found: dict[str, Any], at: int, called: str) -> str:
    """The detection and the accepted share of out-of-distribution images."""
    rows = []
    for one in found["files"]:
        outside = one["evaluation"]["ood"][at]
        areas = [outside["detection"].get(score, {}).get("auroc", {}).get("value") for score in OOD_SCORES]
        told = one["foreign"].get(called, {}).get("uncertainty")
        shares = [percent(value) for value in (*areas, outside["accepted"], outside["gated"])]
        rows.append([Path(one["name"]).stem, shares[0], gap("auroc", told), *shares[1:]])
    head = ["file", "AUROC: entropy", "less the reference", "novelty", "both", "accepted", "with the gate"]
    return f"Out-of-distribution images, {called}:\n\n" + table(head, rows)


def costs(found: dict[str, Any]) -> str:
    """What one image costs."""
    timed = any(one["price"]["measured"] for one in found["files"])
    rows = []
    for one in found["files"]:
        paid, measured = one["price"], one["price"]["measured"]
        times = [f"{measured['ratio']:.3g}x", f"{measured['ratio_best']:.3g}x"] if measured else ["", ""]
        macs = "" if paid["macs"] is None else f"{paid['macs'] / 1e6:,.1f}"
        share = "" if one["macs_ratio"] is None else f"{one['macs_ratio']:.3g}x"
        cells = [macs, share, f"{paid['file_mb']:.2f}"]
        rows.append([Path(one["name"]).stem, str(paid["passes"]), *(times if timed else []), *cells])
    cores = count(found["threads"], "thread") if found["threads"] else "all cores"
    how = f"One image, {cores}, the files taking turns" if timed else "One image; times were not measured"
    head = ["file", "passes", *(["time, median", "time, best"] if timed else []), "million MACs", "ratio", "MB"]
    return f"{how}:\n\n" + table(head, rows)


def spread(found: dict[str, Any]) -> str:
    """The spread between trainings: single networks, ensembles of three of them, and all."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for one in found["files"]:
        stem = Path(one["name"]).stem
        group = SINGLE if stem.startswith(SINGLE) else stem.partition(",")[0]
        groups.setdefault(group, []).append(one["evaluation"]["metrics"])
    rows = []
    for group, scores in groups.items():
        cells = []
        for metric in COMPARED:
            values = [score[metric]["value"] for score in scores]
            ends = f" ({written(metric, min(values))} to {written(metric, max(values))})" if len(values) > 1 else ""
            cells.append(written(metric, sum(values) / len(values)) + ends)
        rows.append([group, str(len(scores)), *cells])
    lead = (
        "### Between trainings\n\nThe intervals above are about images. These are about trainings: the mean over all "
        "files of a kind, from one pool of trainings with different seeds, and the smallest and the largest.\n\n"
    )
    return lead + table(["files", "how many", *(TITLES[metric] for metric in COMPARED)], rows)


def written(metric: str, value: float | None, signed: bool = False) -> str:
    """A metric in a cell."""
    if value is None:
        return ""
    sign = "+" if signed else ""
    return f"{value:{sign}.4f}" if metric == "nll" else f"{100 * value:{sign}.2f} %"


def gap(metric: str, interval: dict[str, float] | None) -> str:
    """A difference with its interval; bold where 0 is not in it."""
    if interval is None:
        return ""
    text = written(metric, interval["value"], signed=True)
    ends = [written(metric, interval[end], signed=True).removesuffix(" %") for end in ("low", "high")]
    text = text if interval["low"] <= 0 <= interval["high"] else f"**{text}**"
    return f"{text} ({' to '.join(ends)})"


def percent(value: float | None) -> str:
    """A share in a cell."""
    return "" if value is None else f"{100 * value:.1f} %"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    fewer = commands.add_parser("few", help="write a dataset with few training images")
    fewer.add_argument("--data", required=True)
    fewer.add_argument("--out", required=True)
    fewer.set_defaults(call=few)
    files = commands.add_parser("files", help="make the files of one dataset, and compare them")
    files.add_argument("--data", required=True)
    files.add_argument("--runs", required=True)
    files.add_argument("--out", required=True)
    files.add_argument("--ood", action="append", default=[])
    files.add_argument("--target-error", type=float, default=0.1)
    files.add_argument("--images", type=int)
    files.add_argument("--threads", type=int, default=2)
    files.add_argument("--no-latency", dest="latency", action="store_false", help="on a machine that is not quiet")
    files.set_defaults(call=make)
    page = commands.add_parser("page", help="write docs/posteriors-small.md from finished studies")
    page.add_argument("studies", nargs="+")
    page.set_defaults(call=write)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
