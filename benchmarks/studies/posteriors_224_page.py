"""The page of `posteriors_224`: judges stored logits, and writes docs/posteriors.md and docs/posteriors.csv."""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uce_edge import metrics
from uce_edge.calibration.logits import ArrayLogits
from uce_edge.calibration.maps import fit_map, probabilities
from uce_edge.contract import Method
from uce_edge.metrics import Interval
from uce_edge.rejection import guarantee

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "posteriors.md"
START, END = (
    "<!-- measured: written by benchmarks/studies/posteriors_224.py -->",
    "<!-- end of the study at 224x224 -->",
)
TARGET, CONFIDENCE, DIVISIONS, RESAMPLES = 0.05, 0.95, 100, 300
BUDGETS = (1.0, 1.5, 3.0)
FEW = 5  # passes, besides all
SEEDS = 5
PLAIN, TWO_STAGES, SWAG, LAPLACE = "deterministic", "deterministic, two stages", "SWAG", "Laplace"
FEATURES = 1280
"""Inputs of the classifier."""
TITLES = {"trashnet": "TrashNet", "chest-X-rays": "Chest X-rays"}
"""By folder."""
SHOWN = {"accuracy": "Accuracy", "nll": "NLL", "aurc": "AURC", "tuce": "T-UCE"}

Table = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Images:
    """The images that judge: their labels and groups, and the draws that all posteriors share."""

    labels: Rows
    draws: list[Rows]
    """Images or patients, drawn with replacement."""
    divisions: list[tuple[Rows, Rows]]
    """Images of one half, one of each group, which prove the promise; and all of the other half."""

    @classmethod
    def of(cls, labels: Rows, groups: Rows) -> "Images":
        """Draw by group."""
        rng = np.random.default_rng(0)
        order = np.argsort(groups, kind="stable")
        members = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
        draws = [
            np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))])
            for _ in range(RESAMPLES)
        ]
        divisions = []
        for _ in range(DIVISIONS):
            shuffled = rng.permutation(len(members))
            proving, others = np.array_split(shuffled, 2)
            one_each = np.array([rng.choice(members[i]) for i in proving])
            divisions.append((one_each, np.concatenate([members[i] for i in others])))
        return cls(labels, draws, divisions)


@dataclass(frozen=True)
class Costs:
    """What the files cost, as multiples of the deterministic one."""

    macs: dict[str, list[int]]
    """Of a kind of file: once, and of a pass."""
    seconds: dict[tuple[str, int], float]
    """Of a kind and its passes."""

    @classmethod
    def load(cls, work: Path) -> "Costs":
        """What `price` and `time` have written; nothing where they did not run."""
        macs, seconds = (json.loads(path.read_text()) if path.exists() else [] for path in _paths(work))
        return cls(dict(macs), {(name, passes): ratio for name, passes, ratio in seconds})

    def price(self, kind: str, passes: int) -> float | None:
        """Multiplications."""
        if kind == SWAG:
            three = self.price("3 tails", 1)
            return None if three is None else 1 + (passes - 1) * (three - 1) / 2
        if kind == LAPLACE:  # a basis of the features, once; the draws are products with a row for each class
            return 1 + FEATURES**2 / sum(self.macs[PLAIN]) if self.macs else None
        if kind not in self.macs:
            return None
        once, each = self.macs[kind]
        return (once + passes * each) / sum(self.macs[PLAIN])


def _paths(work: Path) -> tuple[Path, Path]:
    return work / "prices.json", work / "times.json"


@dataclass(frozen=True, eq=False)
class Judged:
    """One posterior: its calibrated predictions of the same images, one table for every seed."""

    name: str
    price: float | None
    """In multiplications."""
    time: float | None
    tables: dict[int, Table]
    """By seed."""
    coverages: dict[int, Table]
    """The accepted share of every division, by seed."""

    @property
    def exported(self) -> bool:
        """Whether there is a file of it."""
        return not self.name.startswith(SWAG)

    @property
    def coverage(self) -> float:
        """Mean over divisions and seeds."""
        return float(np.mean(list(self.coverages.values())))

    @property
    def cost(self) -> float | None:
        """Time, or multiplications where no time was measured."""
        return self.price if self.time is None else self.time


Score = Callable[[Table, Rows], float]
SCORES: dict[str, Score] = {
    "accuracy": metrics.accuracy, "nll": metrics.nll, "aurc": metrics.aurc, "tuce": metrics.tuce,
}  # fmt: skip


def coverage_of(table: Table, images: Images) -> Table:
    """The accepted share of all divisions: one half proves the promise, the other is accepted or not."""
    uncertainty = metrics.normalized_entropy(table).astype(np.float32)
    wrong, found = table.argmax(1) != images.labels, []
    for proving, others in images.divisions:
        limit = guarantee.search(uncertainty[proving], wrong[proving], TARGET, CONFIDENCE)
        found.append(0.0 if limit is None else float(np.mean(uncertainty[others] <= limit.threshold)))
    return np.array(found)


def judged(found: "Drawn", fit: Rows, images: Images, costs: Costs) -> Judged:
    """Calibrate every seed on its calibration logits, and predict."""
    tables = {}
    for seed, one in found.logits.items():
        calibration = fit_map(Method.TEMPERATURE, one["calibration"], fit)
        tables[seed] = probabilities(calibration, ArrayLogits(one["test"]))
    kind = found.name.partition(",")[0]
    price, seconds = costs.price(kind, found.passes), costs.seconds.get((kind, found.passes))
    return Judged(
        found.name, price, seconds, tables, {seed: coverage_of(table, images) for seed, table in tables.items()}
    )


@dataclass(frozen=True, eq=False)
class Drawn:
    """The logits of one posterior, of every seed."""

    name: str
    passes: int
    logits: dict[int, dict[str, Table]]
    """By seed; an ensemble has that of its first tail."""


def posteriors(folder: Path) -> Iterator[Drawn]:
    """What is there, by name; ensembles and fewer passes follow from it."""
    found: dict[str, dict[int, dict[str, Table]]] = {}
    for path in sorted(folder.glob("*-[0-9].npz")):
        name, _, seed = path.stem.rpartition("-")
        stored = np.load(path)
        found.setdefault(name, {})[int(seed)] = {split: stored[split] for split in ("calibration", "test")}
    for name, logits in found.items():
        passes = len(next(iter(logits.values()))["test"])
        if name == SWAG or name.startswith("Gaussian"):
            word = "N" if name != SWAG else "draws"
            for count in (FEW, passes):
                yield Drawn(f"{name}, {word} = {count}", count, _first(logits, count))
        else:
            yield Drawn(name, passes, logits)
    for name in (PLAIN, TWO_STAGES):
        tails = list(found.get(name, {}).items())
        for count in (3, 5):
            if len(tails) >= count:
                # Every training begins one ensemble of its neighbours in the pool.
                starts = len(tails) if len(tails) > count else 1
                groups = {
                    tails[at][0]: [tails[(at + step) % len(tails)][1] for step in range(count)] for at in range(starts)
                }
                yield Drawn(ensemble_of(count, name), 1, {seed: _together(group) for seed, group in groups.items()})


def ensemble_of(count: int, name: str) -> str:
    """The name of an ensemble of tails over one trunk."""
    return f"{count} tails" + (" of two stages" if name == TWO_STAGES else "")


def _first(logits: dict[int, dict[str, Table]], count: int) -> dict[int, dict[str, Table]]:
    return {seed: {split: values[:count] for split, values in one.items()} for seed, one in logits.items()}


def _together(members: list[dict[str, Table]]) -> dict[str, Table]:
    return {split: np.concatenate([one[split] for one in members]) for split in ("calibration", "test")}


def difference(score: Score, one: Judged, other: Judged, images: Images) -> Interval:
    """The paired difference of the means over common seeds; its interval is over images or patients, and seeds."""
    seeds, rng = _common(one, other), np.random.default_rng(0)

    def apart_of(some: list[int], rows: Rows | slice) -> float:
        labels = images.labels[rows]
        first, second = ({seed: score(which.tables[seed][rows], labels) for seed in {*some}} for which in (one, other))
        return float(np.mean([first[seed] - second[seed] for seed in some]))

    value = apart_of(seeds, slice(None))
    apart = [apart_of(rng.choice(seeds, len(seeds)).tolist(), rows) for rows in images.draws]
    return Interval(value, *(float(end) for end in np.quantile(apart, (0.025, 0.975))))


def coverage_difference(one: Judged, other: Judged) -> Interval:
    """The difference of the accepted shares of common seeds, and its range over the divisions."""
    seeds = _common(one, other)
    apart = np.mean([one.coverages[seed] - other.coverages[seed] for seed in seeds], axis=0)
    return Interval(float(apart.mean()), *(float(end) for end in np.quantile(apart, (0.025, 0.975))))


def _common(one: Judged, other: Judged) -> list[int]:
    return sorted(set(one.tables) & set(other.tables))


def section(task: str, folder: Path, costs: Costs, lines: list[dict[str, object]]) -> list[str]:
    """What was measured on one dataset."""
    labels = np.load(folder / "labels.npz")
    images = Images.of(labels["test"], labels["groups"])
    found = [judged(drawn, labels["calibration"], images, costs) for drawn in posteriors(folder)]
    found.sort(key=lambda one: (one.price or 0.0, one.name))
    plain = next(one for one in found if one.name == PLAIN)
    for one in found:
        for seed, table in one.tables.items():
            scores = {name: f"{score(table, images.labels):.6g}" for name, score in SCORES.items()}
            paid = {"price": _multiple(one.price), "time": _multiple(one.time)}
            share = {"coverage": f"{one.coverages[seed].mean():.6g}", **paid}
            lines.append({"data": task, "posterior": one.name, "seed": seed, **scores, **share})
    grouped = " of different patients" if len(set(labels["groups"].tolist())) < len(images.labels) else ""
    head = ["file", "price", "time", "seeds", *SHOWN.values(), f"accepted at {TARGET:.0%}"]
    apart = ["file", "NLL", "AURC", "accepted"]
    return [
        f"### {task}", "",
        f"{len(images.labels):,} judging images{grouped}, {len(labels['calibration']):,} for the temperature.", "",
        *_table(
            ["within", "by AURC", f"by the share accepted at {TARGET:.0%}"],
            [_shipped(found, budget, images) for budget in BUDGETS],
        ),
        "",
        *_table(head, [_row(one, images) for one in found]),
        "", f"Less {PLAIN}; bold where the 95 % interval does not contain 0:", "",
        *_table(apart, [_apart(one, plain, images) for one in found if one is not plain]), "",
    ]  # fmt: skip


def _shipped(found: list[Judged], budget: float, images: Images) -> list[str]:
    """The cheapest file that is not beaten, by both questions, at a price; of files with all seeds."""
    wanted = min(SEEDS, max(len(one.tables) for one in found))
    files = [one for one in found if one.exported and len(one.tables) >= wanted]
    within = [one for one in files if one.cost is not None and round(one.cost, 1) <= budget]
    if not within:
        return [f"{budget}x", "", ""]
    first = min(within, key=lambda one: np.mean([metrics.aurc(table, images.labels) for table in one.tables.values()]))
    ties = [one for one in within if one is first or difference(metrics.aurc, one, first, images).low <= 0]
    most = max(within, key=lambda one: one.coverage)
    equal = [one for one in within if one is most or coverage_difference(one, most).high >= 0]
    cells = []
    for best, tied in ((first, ties), (most, equal)):
        cheapest = min(tied, key=lambda one: (one.cost or 0.0, one.name != PLAIN, one is not best))
        note = "" if cheapest is best else f"; lowest: {best.name}" if best is first else f"; most: {best.name}"
        cells.append(f"**{cheapest.name}** ({cheapest.cost:.2f}x{f', {len(tied)} tie' if len(tied) > 1 else ''}{note})")
    return [f"{budget}x", *cells]


def _row(one: Judged, images: Images) -> list[str]:
    cells = []
    for name, score in SCORES.items():
        cells.append(_spread([score(table, images.labels) for table in one.tables.values()], name))
    shares = [float(coverage.mean()) for coverage in one.coverages.values()]
    return [
        one.name,
        _multiple(one.price),
        _multiple(one.time),
        str(len(one.tables)),
        *cells,
        _spread(shares, "coverage"),
    ]


def _multiple(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def _apart(one: Judged, plain: Judged, images: Images) -> list[str]:
    return [
        one.name,
        *(_gap(difference(SCORES[name], one, plain, images), name) for name in ("nll", "aurc")),
        _gap(coverage_difference(one, plain), "coverage"),
    ]


def _written(value: float, name: str, sign: str = "") -> str:
    return f"{value:{sign}.4f}" if name == "nll" else f"{100 * value:{sign}.{2 if name == 'aurc' else 1}f}"


def _spread(values: list[float], name: str) -> str:
    unit = "" if name == "nll" else " %"
    ends = f" ({_written(min(values), name)} to {_written(max(values), name)})" if len(values) > 1 else ""
    return f"{_written(float(np.mean(values)), name)}{unit}{ends}"


def _gap(found: Interval, name: str) -> str:
    text = _written(found.value, name, "+")
    text = text if found.low <= 0 <= found.high else f"**{text}**"
    return f"{text} ({_written(found.low, name, '+')} to {_written(found.high, name, '+')})"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def write_page(work: Path) -> None:
    """Judge what is there, and write the measured part of docs/posteriors.md and docs/posteriors.csv."""
    costs = Costs.load(work)
    lines: list[dict[str, object]] = []
    text = ["All rows: [posteriors.csv](posteriors.csv).", ""]
    for folder in sorted(work.iterdir()):
        if (folder / "labels.npz").exists() and any(folder.glob(f"{PLAIN}-*.npz")):
            text += section(TITLES[folder.name], folder, costs, lines)
    with PAGE.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    before, rest = PAGE.read_text().split(START)
    PAGE.write_text("\n".join([before + START, "", *text, END + rest.split(END)[1]]))
    print("\n".join(text))
