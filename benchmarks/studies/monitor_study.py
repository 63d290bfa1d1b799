"""How often does the monitor raise a false alarm, and how soon a true one? Writes its part of docs/monitor.md.

    python benchmarks/studies/monitor_study.py [ANSWERS.npz]

The answers of the bundled file to CIFAR-10 ($UCE_EDGE_DATA), damaged and to CIFAR-100 are computed once and kept in
ANSWERS.npz (build/monitor-answers.npz); the streams are drawn from them. Delete it after the bundled file has changed.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uce_edge import models
from uce_edge.datasets import labelled, splits
from uce_edge.images.corruptions import corrupt
from uce_edge.monitor import betting, reference
from uce_edge.monitor.state import STATISTICS
from uce_edge.rejection.rule import within
from uce_edge.runtime.model import Model

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "monitor.md"
TITLE = "## What was measured"
ALPHA = 0.01
QUIET, AFTER, WINDOW = 1_000, 3_000, 200
DAMAGES = [f"{kind} {severity}" for kind in ("noise", "blur", "contrast") for severity in (1, 2, 3)]
SHARES = (0.05, 0.10, 0.30)
_DAMAGED, _FOREIGN = 2_500, 5_000

Floats = npt.NDArray[np.float64]
Scores = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Pool:
    """Answers that streams are drawn from: [images, statistics]."""

    edges: list[tuple[float, ...]]
    """From the calibration images."""
    usual: Scores
    """Guarantee and test images."""
    test: Scores
    labels: npt.NDArray[np.int16]
    said: npt.NDArray[np.int16]
    others: dict[str, Scores]


def answers(cache: Path) -> Pool:
    """Ask the bundled file once."""
    if not cache.exists():
        model = Model(models.bundled(name="cifar10"), "cpu")
        data = splits.load("cifar10")
        test = data.splits["test"]
        asked = {name: data.splits[name].images for name in ("calibration", "guarantee", "test")}
        for damage in DAMAGES:
            kind, severity = damage.split()
            asked[damage] = corrupt(test.images[:_DAMAGED], kind, int(severity))
        asked["foreign"] = labelled.load_ood("cifar100", model.metadata.image).images[:_FOREIGN]
        kept: dict[str, npt.NDArray[np.generic]] = {"test_labels": test.labels.astype(np.int16)}
        for name, images in asked.items():
            said = model.predict(images)
            kept[name] = np.stack(list(reference.scores_of(said).values()), axis=1)
            if name == "test":
                kept["test_said"] = said.class_ids.astype(np.int16)
            print(f"asked about {name}", flush=True)
        cache.parent.mkdir(parents=True, exist_ok=True)
        np.savez(cache, **kept)  # type: ignore[arg-type]
    with np.load(cache) as stored:
        a = {name: stored[name] for name in stored.files}
    calibration, guarantee = (
        {name: a[part][:, index] for index, name in enumerate(STATISTICS)} for part in ("calibration", "guarantee")
    )
    counted = reference.count(calibration, guarantee, 100, 0, "")
    edges = [counted.statistics[name].edges for name in STATISTICS]
    usual = np.concatenate([a["guarantee"], a["test"]])
    return Pool(edges, usual, a["test"], a["test_labels"], a["test_said"], {d: a[d] for d in [*DAMAGES, "foreign"]})


Change = Callable[[np.random.Generator, int, int], Scores]
"""Draws [streams, images, statistics]."""


def drawn(scores: Scores) -> Change:
    """Independent draws."""
    return lambda rng, streams, images: scores[rng.integers(0, len(scores), (streams, images))]


def mixed(usual: Scores, others: Scores, share: float) -> Change:
    """Some foreign ones among them."""

    def draw(rng: np.random.Generator, streams: int, images: int) -> Scores:
        is_other = rng.random((streams, images)) < share
        return np.where(is_other[..., None], drawn(others)(rng, streams, images), drawn(usual)(rng, streams, images))

    return draw


def counts_of(pool: Pool, scores: Scores) -> list[Floats]:
    """[streams, bins] for each statistic."""
    counted = []
    for index, edges in enumerate(pool.edges):
        placed = betting.bins(edges, scores[..., index])
        counted.append(np.stack([np.bincount(row, minlength=len(edges) + 1) for row in placed]).astype(np.float64))
    return counted


def monitored(
    pool: Pool,
    counts: list[Floats],
    stream: Scores,
    seeds: npt.NDArray[np.int64],
    *,
    grow: bool = True,
    band: float = 0.0,
) -> Floats:
    """The logarithm of the evidence [streams, images], by the code that ships.

    Args:
        pool: The edges.
        counts: The reference.
        stream: The scores.
        seeds: Of the random numbers, one for each stream.
        grow: Whether the stream joins the reference, as it does in the monitor.
        band: What is added to the p-values of a fixed reference.
    """
    streams, images, kinds = stream.shape
    counts = [some.copy() for some in counts]
    wealth = np.full((kinds, streams, betting.BETS), betting.NOTHING)
    evidence, rows = np.full((streams, images), -np.inf), np.arange(streams)
    places = [betting.bins(edges, stream[..., index]) for index, edges in enumerate(pool.edges)]
    for step in range(1, images + 1):
        for kind in range(kinds):
            place = places[kind][:, step - 1]
            p, rest = betting.p_values(counts[kind], place, betting.uniform(seeds, step, kind))
            if band:
                p, rest = np.minimum(1, p + band), np.minimum(1, rest + band)
            wealth[kind] = betting.bet(wealth[kind], betting.log_gains(p, rest), step)
            if grow:
                counts[kind][rows, place] += 1
            evidence[:, step - 1] = np.maximum(evidence[:, step - 1], betting.log_evidence(wealth[kind], step))
    evidence -= np.log(kinds)
    return evidence


def simpler(pool: Pool, counts: list[Floats], stream: Scores, seeds: npt.NDArray[np.int64]) -> Floats:
    """Bets that all begin at the first image: a jumper and powers on the uncertainty, powers on the novelty."""
    streams, images, _ = stream.shape
    rows, powers = np.arange(streams), np.array(betting.POWERS)
    logs = {}
    for kind in (0, 2):
        grown, place = counts[kind].copy(), betting.bins(pool.edges[kind], stream[..., kind])
        power, jumper = np.zeros((streams, len(powers))), np.full((streams, 3), 1 / 3)
        scale, path = np.zeros(streams), np.empty((streams, images))
        for step in range(1, images + 1):
            p, _ = betting.p_values(grown, place[:, step - 1], betting.uniform(seeds, step, kind))
            grown[rows, place[:, step - 1]] += 1
            power += np.log(powers) + (powers - 1) * np.log(p)[:, None]
            top = power.max(axis=1)
            log_power = top + np.log(np.exp(power - top[:, None]).mean(axis=1))
            jumper = 0.99 * jumper + 0.01 / 3 * jumper.sum(axis=1, keepdims=True)
            jumper *= 1 + np.array([-1, 0, 1]) * (p[:, None] - 0.5)
            total = jumper.sum(axis=1)
            scale += np.log(total)
            jumper /= total[:, None]
            path[:, step - 1] = np.logaddexp(log_power, scale) - np.log(2) if kind == 0 else log_power
        logs[kind] = path
    result: Floats = np.logaddexp(logs[0], logs[2]) - np.log(2)
    return result


def windowed_ks(pool: Pool, counts: list[Floats], stream: Scores) -> Floats:
    """The largest distance of two distribution functions, of uncertainty or novelty, in the last images."""
    streams, images, _ = stream.shape
    largest, rows = np.zeros((streams, images)), np.arange(streams)
    for kind in (0, 2):
        place = betting.bins(pool.edges[kind], stream[..., kind])
        usual = counts[kind].cumsum(axis=1) / counts[kind].sum(axis=1, keepdims=True)
        window = np.zeros_like(counts[kind])
        for image in range(images):
            window[rows, place[:, image]] += 1
            if image >= WINDOW:
                window[rows, place[:, image - WINDOW]] -= 1
            if image >= WINDOW - 1:
                distance = np.abs(window.cumsum(axis=1) / WINDOW - usual).max(axis=1)
                largest[:, image] = np.maximum(largest[:, image], distance)
    return largest


def mean_uncertainty(stream: Scores) -> Floats:
    """Of the last images."""
    total = np.cumsum(stream[..., 0].astype(np.float64), axis=1)
    mean = np.full(total.shape, -np.inf)
    mean[:, WINDOW - 1] = total[:, WINDOW - 1] / WINDOW
    mean[:, WINDOW:] = (total[:, WINDOW:] - total[:, :-WINDOW]) / WINDOW
    return mean


def false_alarms(pool: Pool) -> str:
    """Streams in which nothing changes; reference and stream are drawn anew for each."""
    # Half of alpha for the band, shared by both sides of three statistics (Massart's constant).
    band_at_500 = float(np.sqrt(np.log(2 * 6 / ALPHA) / (2 * 500)))
    wanted = [
        ("growing reference, as it ships", 5_000, 5_000, 2_000, True, 0.0),
        ("growing reference, as it ships", 500, 5_000, 2_000, True, 0.0),
        ("fixed reference, uncorrected", 5_000, 5_000, 500, False, 0.0),
        ("fixed reference, uncorrected", 500, 5_000, 500, False, 0.0),
        ("fixed reference, p-values moved by a DKW band", 500, 5_000, 500, False, band_at_500),
    ]
    lines = []
    for name, size, images, streams, grow, band in wanted:
        rng = np.random.default_rng(size)
        raised: list[npt.NDArray[np.bool_]] = []
        for first in range(0, streams, 250):
            counts = counts_of(pool, drawn(pool.usual)(rng, 250, size))
            stream = drawn(pool.usual)(rng, 250, images)
            seeds = np.arange(first, first + 250)
            evidence = monitored(pool, counts, stream, seeds, grow=grow, band=band)
            raised.append((evidence >= np.log(1 / ALPHA)).any(axis=1))
        share = float(np.concatenate(raised).mean())
        error = np.sqrt(share * (1 - share) / streams)
        lines.append(f"| {name} | {size:,} | {images:,} | {streams:,} | {share:.2%} ± {error:.2%} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def delays(pool: Pool, streams: int = 200) -> str:
    """From a change after a quiet time to the alarm."""
    rng = np.random.default_rng(1)
    images = QUIET + AFTER
    worst: dict[str, list[Floats]] = {"KS": [], "mean": []}
    for _ in range(8):
        counts, stream = counts_of(pool, drawn(pool.usual)(rng, 250, 5_000)), drawn(pool.usual)(rng, 250, images)
        worst["KS"].append(windowed_ks(pool, counts, stream).max(axis=1))
        worst["mean"].append(mean_uncertainty(stream).max(axis=1))
    limits = {name: float(np.quantile(np.concatenate(values), 1 - ALPHA)) for name, values in worst.items()}
    prior = np.where(np.isin(pool.labels, (3, 5)), 3.0, 1.0)
    likely = prior / prior.sum()
    changes: dict[str, Change] = {f"{name}": drawn(pool.others[name]) for name in DAMAGES}
    changes |= {f"{share:.0%} CIFAR-100": mixed(pool.test, pool.others["foreign"], share) for share in SHARES}
    changes["three times as many cats and dogs"] = lambda rng, streams, images: pool.test[
        rng.choice(len(likely), (streams, images), p=likely)
    ]
    lines = []
    for name, change in changes.items():
        stream = np.concatenate([drawn(pool.usual)(rng, streams, QUIET), change(rng, streams, AFTER)], axis=1)
        counts, seeds = counts_of(pool, drawn(pool.usual)(rng, streams, 5_000)), np.arange(streams)
        paths = {
            "monitor": monitored(pool, counts, stream, seeds) >= np.log(1 / ALPHA),
            "one start": simpler(pool, counts, stream, seeds) >= np.log(1 / ALPHA),
            "KS": windowed_ks(pool, counts, stream) > limits["KS"],
            "mean": mean_uncertainty(stream) > limits["mean"],
        }
        lines.append(f"| {name} | " + " | ".join(_delay(path) for path in paths.values()) + " |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def _delay(alarms: npt.NDArray[np.bool_]) -> str:
    """The median of the images from the change to the alarm, and the share of streams that got one."""
    counted = alarms[~alarms[:, :QUIET].any(axis=1), QUIET:]  # a false alarm before is no early one
    found = counted.any(axis=1)
    first = np.where(found, counted.argmax(axis=1) + 1.0, np.inf)
    median = float(np.median(first))
    return f"{median:,.0f} ({found.mean():.0%})" if np.isfinite(median) else f"more than {AFTER:,} ({found.mean():.0%})"


def prevalence(pool: Pool) -> str:
    """What a threshold lets through when other classes come."""
    model = Model(models.bundled(name="cifar10"), "cpu")
    stored = model.metadata.rule
    assert stored is not None
    assert stored.threshold is not None
    accepted = within(pool.test[:, 0], stored.threshold)
    wrong = pool.labels != pool.said
    cats = np.isin(pool.labels, (3, 5))
    lines = []
    for name, share in (("as in the test images", 0.2), ("half", 0.5), ("four of five", 0.8), ("none", 0.0)):
        weights = np.where(cats, share / cats.sum(), (1 - share) / (~cats).sum())
        passed = float(weights[accepted].sum())
        error = float(weights[accepted & wrong].sum()) / passed
        lines.append(f"| {name} | {passed:.1%} | {error:.1%} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Measure, and write the page's part."""
    pool = answers(Path(arguments[0] if arguments else "build/monitor-answers.npz"))
    text = TEXT.format(prevalence=prevalence(pool), delays=delays(pool), false=false_alarms(pool))
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(re.sub(rf"{TITLE}\n.*", lambda _: f"{TITLE}\n\n{text}", page, flags=re.DOTALL), encoding="utf-8")


TEXT = """`python benchmarks/studies/monitor_study.py` makes these tables. Its streams are drawn from the answers of the
bundled moments file to CIFAR-10. The edges of the bins come from the calibration images. The reference and the quiet
part of a stream, in which nothing changes, are independent draws from the guarantee and test images.

**False alarms** at `--alpha 0.01`: the share of streams that ever raise an alarm although nothing changes. A growing
reference takes in the stream; a fixed one does not.

| reference | its images | images in the stream | streams | false alarms |
| --- | --- | --- | --- | --- |
{false}

**Delay**: the median number of images from the change to the alarm. In brackets is the share of 200 streams with an
alarm within 3,000 images of the change. Every stream starts with 1,000 quiet images. *One start* is a simpler bet: all
its money is at stake from the first image. *Windowed KS* (the Kolmogorov-Smirnov distance from the reference) and *mean
uncertainty* look at the last 200 images. Their limits were set so that 1 % of 2,000 quiet streams of 4,000 images raise
a false alarm; longer streams raise more. The monitor's 1 % holds for streams of any length. If a change is small and
moves only the uncertainty, a limit that was tuned for its window and length of stream may find it sooner.

| change | monitor | one start | windowed KS | mean uncertainty |
| --- | --- | --- | --- | --- |
{delays}

**Another prevalence**: what the threshold of the bundled `cifar10` accepts when its hardest classes, cats and dogs, are
more or less frequent. The file promises that at most 5 % of the accepted images are wrong.

| cats and dogs among the images | accepted | wrong among the accepted |
| --- | --- | --- |
{prevalence}
"""


if __name__ == "__main__":
    main(sys.argv[1:])
