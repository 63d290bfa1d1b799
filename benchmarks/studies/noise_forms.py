"""Which layers need noise, and of which form? Writes its parts of docs/inference.md.

    uce-edge train --data trashnet/ --backbone efficientnet-lite0 --size 160x160 --dropout none --flip --out RUN
    python benchmarks/studies/noise_forms.py RUN [--seconds 500] [--forms 'all layers, *']

One network that was trained without noise serves all forms. Each gets the largest rate whose NLL on the calibration
images is at most 0.005 above the lowest, as `train --rates fitted` does. A temperature is fitted on the same images;
images that nothing has seen give the numbers. Logits are stored in build/noise-forms: `--seconds` ends a run in time,
and the next one goes on. `--forms` measures some forms and writes nothing else, so that several processes share the
forms.
"""

import argparse
import fnmatch
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge import metrics
from uce_edge.calibration.logits import ArrayLogits
from uce_edge.calibration.maps import fit_map, probabilities
from uce_edge.contract import LOGITS, Inference, Method, Sigma
from uce_edge.metadata import Calibration, Metadata
from uce_edge.metrics import difference, normalized_entropy
from uce_edge.runtime.model import Model
from uce_edge_export.graph import assembly
from uce_edge_export.noise import grid_moments, moments_calibration
from uce_edge_export.noise.sites import Site, in_form, select, sites_by_rule
from uce_edge_train import torch_graph
from uce_edge_train.runs import Run, load_model

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE, BUILD = ROOT / "docs" / "inference.md", ROOT / "build" / "noise-forms"
RATES = (0.00003, 0.0001, 0.0003, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
AS_GOOD = 0.005  # of NLL, above the lowest
SEARCH, PASSES, DRAWS = 4, 12, 100
"""Passes that choose a rate, passes that are compared, and draws of a moments file."""
BATCH, SAVE = 16, 30  # images of a call; seconds between two files
METRICS = ("nll", "aurc", "tuce")

Logits = npt.NDArray[np.float32]
Table = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Form:
    """Layers with noise, and how it is drawn."""

    layers: str
    noisy: tuple[str, ...]
    sigma: Sigma
    start: float
    """The first rate that is tried."""

    @property
    def name(self) -> str:
        """For rows and files."""
        return f"{self.layers}, {self.sigma}"

    @property
    def dearer(self) -> list[str]:
        """Forms that take longer."""
        layers = {HEAD: [STAGE], FEW: [ALL]}.get(self.layers, [])
        more = [f"{other}, {self.sigma}" for other in layers]
        return more if self.sigma is Sigma.EXACT else [f"{self.layers}, {Sigma.EXACT}", *more]


CLASSIFIER, HEAD, STAGE = "classifier", "last convolution and classifier", "last stage and head"
ALL, FEW = "all layers", "all but depthwise"
TAIL, STAGES = ("last:2",), ("blocks.1[1-5].*", "last:2")
FORMS = [
    Form(HEAD, TAIL, Sigma.EXACT, 0.05),
    Form(CLASSIFIER, ("last:1",), Sigma.EXACT, 0.2),
    *(Form(HEAD, TAIL, sigma, 0.05) for sigma in (Sigma.CHANNEL, Sigma.FACTORED)),
    Form(FEW, ("no-depthwise",), Sigma.FACTORED, 0.0003),
    Form(ALL, ("all",), Sigma.FACTORED, 0.0003),
    Form(ALL, ("all",), Sigma.CHANNEL, 0.0003),
    *(Form(STAGE, STAGES, sigma, 0.005) for sigma in Sigma),
    Form(ALL, ("all",), Sigma.EXACT, 0.0003),
    *(Form(FEW, ("no-depthwise",), sigma, 0.0003) for sigma in (Sigma.EXACT, Sigma.CHANNEL)),
]
"""What decides comes first, for the case that time is short."""


class OutOfTimeError(Exception):
    """The next run goes on."""


@dataclass(frozen=True)
class Measured:
    """A form with its rate, on the test images."""

    p: float | None
    logits: Logits
    probabilities: Table


class Study:
    """A network, its images, and what was computed with them."""

    def __init__(self, folder: Path, seconds: float) -> None:
        """Read a run."""
        self.walks: dict[str, dict[float, float]] = {}
        """NLL of the calibration images by form and rate."""
        self._until, self._folder, self._run = time.monotonic() + seconds, folder, Run.load(folder)
        BUILD.mkdir(parents=True, exist_ok=True)
        stored = BUILD / "images.npz"
        if not stored.exists():
            splits = self._run.dataset().splits
            parts = {"calibration": [splits["calibration"]], "test": [splits["test"], splits["guarantee"]]}
            arrays = {name: np.concatenate([part.images for part in some]) for name, some in parts.items()}
            arrays |= {f"{name}-labels": np.concatenate([part.labels for part in some]) for name, some in parts.items()}
            np.savez(stored, **arrays)
        with np.load(stored) as known:
            self._images = {name: known[name] for name in ("calibration", "test")}
            self._labels, self.truth = known["calibration-labels"], known["test-labels"]

    @property
    def calibration_images(self) -> int:
        """How many photos choose rate and temperature."""
        return len(self._labels)

    def plain(self) -> Measured:
        """The network without noise."""
        fitted, test = (self._stored(f"plain {split}", split, [0], self._plain) for split in self._images)
        return self._measured(None, fitted, test)

    def noisy(self, form: Form) -> Measured:
        """A form at its rate."""
        p = self._rate(form)
        fitted = self._passes(form, p, "calibration", PASSES)
        return self._measured(p, fitted, self._passes(form, p, "test", PASSES))

    def moments(self, form: Form, p: float, side: int | None, *, scaled: bool) -> tuple[Measured, float]:
        """One pass with grids of a side, or none, and its variance scale."""

        def spread(scale: float) -> float:
            return moments_calibration.spread(self._moments(form, p, "calibration", scale, side))

        scale = (
            moments_calibration.scale_for(lambda: moments_calibration.spread(self._exact(form, p)), spread)
            if scaled
            else 1.0
        )
        fitted, test = (self._moments(form, p, split, scale, side) for split in self._images)
        return self._measured(p, fitted, test), scale

    def _exact(self, form: Form, p: float) -> Logits:
        """The exact passes that an export compares the spread with."""
        path = BUILD / f"spread {form.name} {p:g}.npy"
        if not path.exists():
            model = self._model(Inference.MC, self._sites(form, p))
            np.save(path, moments_calibration.passes_of(model, self._images["calibration"]))
        found: Logits = np.load(path)
        return found

    def scales(self, form: Form, p: float, images: int) -> list[float]:
        """Variance scales that disjoint groups of so many calibration images give."""
        exact = self._exact(form, p)
        low, high = (
            self._moments(form, p, "calibration", scale, grid_moments.SIDE if form.layers == ALL else None)
            for scale in moments_calibration.SCALES
        )
        found = []
        for start in range(0, len(self._labels) - images + 1, images):
            target, *ours = (moments_calibration.spread(z[:, start : start + images]) for z in (exact, low, high))
            known = dict(zip(moments_calibration.SCALES, ours, strict=True))
            found.append(moments_calibration.scale_for(lambda target=target: target, known.__getitem__))
        return found

    def _measured(self, p: float | None, fitted: Logits, test: Logits) -> Measured:
        return Measured(p, test, probabilities(fit_map(Method.TEMPERATURE, fitted, self._labels), ArrayLogits(test)))

    def _rate(self, form: Form) -> float:
        """The largest rate that is as good as the best, which may be 0."""
        found: dict[int, float] = {-1: self._nll(self._stored("plain calibration", "calibration", [0], self._plain))}

        def is_good(place: int) -> bool:
            found[place] = self._nll(self._passes(form, RATES[place], "calibration", SEARCH))
            self.walks.setdefault(form.name, {})[RATES[place]] = found[place]
            return found[place] <= min(found.values()) + AS_GOOD

        place = RATES.index(form.start)
        if is_good(place):
            while place + 1 < len(RATES) and is_good(place + 1):
                place += 1
        else:
            while place > 0 and not is_good(place - 1):
                place -= 1
        if place > 0 and place - 1 not in found:
            is_good(place - 1)
        print(form.name, self.walks[form.name], flush=True)
        best = min(found.values())
        return max(RATES[i] for i, nll in found.items() if i >= 0 and (nll <= best + AS_GOOD or i == 0))

    def _nll(self, logits: Logits) -> float:
        """NLL of the calibration images, with a temperature."""
        report = fit_map(Method.TEMPERATURE, logits, self._labels).report
        assert report is not None
        return report.nll_after

    def _passes(self, form: Form, p: float, split: str, count: int) -> Logits:
        """Logits [count, images, classes]; more passes are added to those that are stored."""

        @cache
        def opened() -> Model:
            return self._model(Inference.MC, self._sites(form, p))

        parts = [
            self._stored(f"{form.name} {p:g} {split} {first}", split, range(first, first + SEARCH), opened)
            for first in range(0, count, SEARCH)
        ]
        return np.concatenate(parts)

    def _moments(self, form: Form, p: float, split: str, scale: float, side: int | None) -> Logits:
        def opened() -> Model:
            before = grid_moments.LARGE, grid_moments.SIDE
            grid_moments.LARGE, grid_moments.SIDE = (10**6, before[1]) if side is None else (before[0], side)
            try:
                return self._model(Inference.MOMENTS, self._sites(form, p), scale)
            finally:
                grid_moments.LARGE, grid_moments.SIDE = before

        return self._stored(f"moments {form.name} {p:g} {split} {scale:.4f} {side}", split, range(DRAWS), opened)

    def _stored(self, name: str, split: str, seeds: "range | list[int]", opened: Callable[[], Model]) -> Logits:
        """Logits [seeds, images, classes] of a file that is opened if some are missing."""
        images, path = self._images[split], BUILD / f"{name}.npy"
        done = [np.load(path)] if path.exists() else []
        start = sum(part.shape[1] for part in done)
        model, saved = None if start == len(images) else opened(), time.monotonic()
        while start < len(images):
            assert model is not None
            some = images[start : start + BATCH]
            done.append(model.outputs(some, np.array(seeds, np.int32), [LOGITS])[LOGITS])
            start += len(some)
            late = time.monotonic() > self._until
            if late or start == len(images) or time.monotonic() > saved + SAVE:
                done, saved = [np.concatenate(done, axis=1)], time.monotonic()
                np.save(path, done[0])
            if late:
                raise OutOfTimeError
        return done[0]

    @cached_property
    def _classifier(self) -> assembly.Classifier:
        return torch_graph.export_deterministic(load_model(self._run, self._folder), self._run.image)

    def _sites(self, form: Form, p: float) -> list[Site]:
        graph = self._classifier.graph
        return in_form(select(sites_by_rule(graph, [str(p)]), graph, form.noisy), form.sigma)

    def _plain(self) -> Model:
        return self._model(Inference.DETERMINISTIC, [])

    def _model(self, inference: Inference, sites: list[Site], scale: float = 1.0) -> Model:
        """A file without a calibration map."""
        calibration = Calibration(parameters={"variance_scale": [scale]} if inference is Inference.MOMENTS else {})
        metadata = Metadata(self._run.class_names, self._run.image, inference=inference, calibration=calibration)
        path = BUILD / f"file-{os.getpid()}.onnx"
        ir.save(assembly.contract_model(self._classifier, sites, metadata)[0], path)
        return Model(path, "cpu", threads=1)


def cells(found: Table, base: Table | None, truth: npt.NDArray[np.int64]) -> list[str]:
    """Metrics, and the interval of their paired differences."""
    texts = []
    for metric in METRICS:
        value = metrics.interval(metric, found, truth)
        apart = None if base is None else difference(metric, found, base, truth)
        assert value is not None
        texts.append(f"{value.value:.4f}" + ("" if apart is None else f" ({apart.low:+.4f} to {apart.high:+.4f})"))
    return texts


def row(*texts: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(texts)} |"


def lines_of_forms(study: Study, known: dict[str, Measured]) -> list[str]:
    """Every form against no noise, and against dearer forms."""
    base = study.plain().probabilities
    lines = [row("none", "-", "-", f"{metrics.accuracy(base, study.truth):.1%}", *cells(base, None, study.truth))]
    against: list[str] = []
    for form in (form for form in FORMS if form.name in known):
        found, p = known[form.name].probabilities, known[form.name].p
        values = cells(found, base, study.truth)
        lines.append(row(form.layers, form.sigma, f"{p:g}", f"{metrics.accuracy(found, study.truth):.1%}", *values))
        for dearer in form.dearer:
            if dearer in known:
                other = known[dearer].probabilities
                apart = [difference(metric, found, other, study.truth) for metric in METRICS]
                texts = [f"{a.value:+.4f} ({a.low:+.4f} to {a.high:+.4f})" for a in apart if a is not None]
                against.append(row(form.name, dearer, *texts))
    head = ["| layers with noise | sigma | p | accuracy | NLL | AURC | T-UCE |", "| --- " * 7 + "|"]
    more = ["| form | minus | NLL | AURC | T-UCE |", "| --- " * 5 + "|"]
    return [*head, *lines, "", TEXT_AGAINST, "", *more, *against]


def rows_of_moments(study: Study, form: Form, exact: Measured) -> list[str]:
    """One pass against exact passes, with and without grid and variance scale."""
    assert exact.p is not None
    lines = [row(form.name, "exact passes", "-", "-", *cells(exact.probabilities, None, study.truth))]
    truth = normalized_entropy(exact.probabilities)
    sides = (grid_moments.SIDE, grid_moments.SIDE // 2, None) if form.layers == ALL else (None,)
    for side, scaled in [(side, True) for side in sides] + [(sides[0], False)]:
        found, scale = study.moments(form, exact.p, side, scaled=scaled)
        distance = float(np.abs(normalized_entropy(found.probabilities) - truth).mean())
        kind = f"moments{'' if side is None else f', grids of at least {side}'}"
        values = cells(found.probabilities, exact.probabilities, study.truth)
        lines.append(row(form.name, kind, f"{scale:.2f}" if scaled else "1", f"{distance:.4f}", *values))
    return lines


def rows_of_scales(study: Study, form: Form, p: float) -> list[str]:
    """How the variance scale depends on the images that it is fitted on."""
    lines = []
    for images in (25, 50, 100):
        found = study.scales(form, p, images)
        spread = f"{np.mean(found):.2f}", f"{min(found):.2f} to {max(found):.2f}"
        lines.append(row(form.name, str(images), str(len(found)), *spread))
    return lines


TITLE, MOMENTS_TITLE = "## Which layers, and which form", "## Moments of a fine-tuned network"
TEXT = f"""Written by `benchmarks/studies/noise_forms.py`: EfficientNet-Lite0 with ImageNet weights, its last stage
fine-tuned without noise at 160x160 on TrashNet, {{images}} test photos, {PASSES} passes. The noise comes afterwards, at
the largest rate that does no harm to {{calibration}} calibration photos. Brackets hold the 95 % interval of the paired
difference to the network without noise. T-UCE is [the twin-referenced error](science.md#metrics)."""
TEXT_AGAINST = "Paired differences to a form that takes longer, with 95 % intervals; above 0 the faster form is worse:"
TEXT_WALKS = f"NLL of the calibration photos with {SEARCH} passes and a temperature, at the rates that were tried:"
TEXT_MOMENTS = f"""The same network and rates: {DRAWS} draws of one pass with moments. Brackets hold the interval of the
difference to the {PASSES} exact passes; "distance" is the mean absolute difference of the uncertainty to theirs."""
TEXT_SCALES = "The variance scale, fitted on disjoint groups of calibration images; 1.00 where it hardly matters:"


def write(title: str, lines: list[str]) -> None:
    """Put a part into the page."""
    text = PAGE.read_text()
    before = re.search(rf"^{title}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    at = (before.start(), before.end()) if before else (text.index("## The runs"),) * 2
    PAGE.write_text(text[: at[0]] + "\n".join([title, "", *lines, "", ""]) + text[at[1] :])


def main() -> None:
    """Go on with the study, and write what there is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--forms")
    given = parser.parse_args()
    study = Study(given.run, given.seconds)
    known: dict[str, Measured] = {}
    moments: list[str] = []
    scales: list[str] = []
    try:
        for form in FORMS:
            if fnmatch.fnmatchcase(form.name, given.forms or "*"):
                known[form.name] = study.noisy(form)
        for form in () if given.forms else FORMS:
            p = known[form.name].p
            if form.sigma is not Sigma.CHANNEL and form.layers in (HEAD, ALL) and p is not None:
                moments += rows_of_moments(study, form, known[form.name])
                scales += rows_of_scales(study, form, p)
    except OutOfTimeError:
        print("Out of time: run it again to go on.")
    if given.forms:
        return
    missing = [form.name for form in FORMS if form.name not in known]
    text = TEXT.format(images=len(study.truth), calibration=study.calibration_images)
    rest = ["", f"Not measured yet: {'; '.join(missing)}."] if missing else []
    walks = [
        row(form, ", ".join(f"{p:g}: {nll:.3f}" for p, nll in sorted(w.items()))) for form, w in study.walks.items()
    ]
    rates = ["", TEXT_WALKS, "", "| form | NLL by p |", "| --- | --- |", *walks]
    write(TITLE, [text, "", *lines_of_forms(study, known), *rates, *rest])
    head = ["| noise | inference | variance scale | distance | NLL | AURC | T-UCE |", "| --- " * 7 + "|"]
    more = ["| noise | images | groups | mean scale | from, to |", "| --- " * 5 + "|"]
    write(MOMENTS_TITLE, [TEXT_MOMENTS, "", *head, *moments, "", TEXT_SCALES, "", *more, *scales])


if __name__ == "__main__":
    main()
