"""Evaluate a model file: predict once, then compute all results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge import contract, metrics
from uce_edge.contract import Inference, NoiseKind
from uce_edge.errors import UsageError, expected
from uce_edge.evaluation import (
    class_results,
    latency,
    ood,
    rejection_results,
    score_intervals,
    set_results,
    shift,
    threshold_curves,
)
from uce_edge.evaluation.model_outputs import ModelOutputs, predict_all
from uce_edge.evaluation.results import Evaluation, Example, Reliability
from uce_edge.metrics.binned import bin_of
from uce_edge.rejection.rule import RejectRule, check_threshold
from uce_edge.runtime.model import Model
from uce_edge.runtime.prediction import ImagePrediction

BINS = 15
_EXAMPLES = 12
_NO_KINDS: Mapping[str, Sequence[str]] = MappingProxyType({})
_NONE: Mapping[str, npt.NDArray[Any]] = MappingProxyType({})
_FEW = 100  # with fewer images, every number is mostly chance


def evaluate(
    model: Model,
    images: npt.NDArray[Any],
    labels: npt.ArrayLike,
    *,
    data: str = "images",
    part: str = "all images",
    names: Sequence[str] | None = None,
    outside: Mapping[str, npt.NDArray[Any]] = _NONE,
    kinds: Mapping[str, Sequence[str]] = _NO_KINDS,
    samples: int | None = None,
    seed: int = 0,
    reject: float | None = None,
    corrupt: int = 0,
    timed: bool = False,
    resamples: int = 100,
    notes: Sequence[str] = (),
) -> Evaluation:
    """Measure a model on labelled images.

    Args:
        model: A model file, opened.
        images: [n, height, width, channels] of the model's size.
        labels: The true class of each, as an index into `model.classes`.
        data: The name of the images in the result.
        part: Their part of the dataset, such as "test images".
        names: The name of each image, such as its file's name.
        outside: Sets of out-of-distribution images, by name.
        kinds: For some of these sets, the kind of every image, for results by kind.
        samples: The number of passes; None for the stored number.
        seed: The seed of the passes.
        reject: A threshold to measure besides the stored one.
        corrupt: The most images to corrupt, in six ways and five severities; 0 for none.
        timed: Also measure the latency against the number of passes.
        resamples: The number of redraws of labels for the calibrated twin.
        notes: Caveats to add to the result.

    Raises:
        UsageError: An argument is wrong. This is checked before any prediction.
    """
    passes = _passes(model, samples, seed)
    if reject is not None:
        check_threshold(reject)
    truth = _truth(model, images, labels)
    if names is not None and len(names) != len(truth):
        raise UsageError(expected("`names`", f"one per image ({len(truth)})", len(names), "Leave it out"))
    for name, others in outside.items():
        if not len(others):
            raise UsageError(
                expected(f"`outside[{name!r}]`", "at least one image", 0, "Leave it out, or give images"),
                "argument.outside",
            )
        if len(kinds.get(name, others)) != len(others):
            given = len(kinds[name])
            raise UsageError(
                expected(f"`kinds[{name!r}]`", f"one name per image ({len(others)})", given, "Leave it out"),
                "argument.kinds",
            )
    if corrupt:
        shift.check(model)
    answers = predict_all(model, images, samples, seed, "predicting")
    wrong = answers.table.predicted != truth
    stored = model.metadata.rule
    points = threshold_curves.operating_points(answers, wrong, reject, stored)
    threshold = points[0].measured.threshold
    gate = rejection_results.gate_of(stored, reject)
    seen = model.metadata.seen
    shifted = timing = None
    detected = []
    for name, others in outside.items():
        found = predict_all(model, others, samples, seed, f"predicting {name}")
        detected.append(ood.compare(name, answers, found, passes, threshold, gate, kinds.get(name, ()), seen))
    if corrupt:
        shifted = shift.sweep(
            model, images, truth, answers, limit=corrupt, threshold=threshold, samples=samples, seed=seed, gate=gate,
            seen=seen,
        )  # fmt: skip
    if timed:
        timing = latency.measure(model, images[0])
    measured = score_intervals.measure(answers.table, truth, resamples)
    kept = rejection_results.kept(answers, wrong, stored)
    unsure, surely = (np.argsort(sign * answers.uncertainty, kind="stable") for sign in (-1, 1))
    return Evaluation(
        model=Path(model.path).name,
        model_sha256=model.sha256,
        data=data,
        part=part,
        images=len(truth),
        samples=passes,
        seed=seed,
        provider=model.provider,
        metrics=measured,
        unpredicted_classes=metrics.classwise(answers.table, truth, metric="uce").empty_classes,
        classes=class_results.measure(answers.table, truth, model.classes),
        rejection=points,
        thresholds=threshold_curves.against_threshold(answers, wrong),
        risk_coverage=threshold_curves.risk_curves(answers, truth, passes),
        reliability=_reliability(answers, truth),
        gated=rejection_results.gated(answers, wrong, gate),
        kept=kept,
        kept_classes=rejection_results.kept_classes(answers, wrong, model.classes, stored),
        sets=set_results.measure(model.metadata.sets, answers.probabilities.astype(np.float32), truth, model.classes),
        ood=tuple(detected),
        shift=shifted,
        latency=timing,
        most_uncertain=_examples(model, images, names, answers, truth, unsure, (passes, seed)),
        confidently_wrong=_examples(model, images, names, answers, truth, surely[wrong[surely]], (passes, seed)),
        notes=(
            *notes,
            *_notes(model, truth, passes, seed),
            *_applied(stored, kept),
        ),
        metadata=model.metadata,
        answers=answers,
        truth=truth,
    )


def _passes(model: Model, samples: int | None, seed: int) -> int:
    passes = model.metadata.samples if samples is None else samples
    contract.pass_seeds(passes, seed)
    return passes


def _truth(model: Model, images: npt.NDArray[Any], labels: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Check the labels, before minutes of predicting."""
    truth = np.asarray(labels)
    if truth.dtype.kind not in "iu" or truth.shape != (len(images),) or not len(images):
        rule = f"one whole number per image ({len(images)}), one at least"
        given = f"{truth.dtype} {list(truth.shape)}"
        raise UsageError(expected("`labels`", rule, given, "Give the index of each true class in model.classes"))
    outside = truth[(truth < 0) | (truth >= len(model.classes))]
    if len(outside):
        rule = f"among the model's classes, 0 to {len(model.classes) - 1}"
        remedy = "Match the labels to model.classes"
        raise UsageError(expected("`labels`", rule, int(outside[0]), remedy))
    if truth.min() == truth.max():
        only = model.classes[int(truth[0])]
        remedy = "A constant model would be perfect on them: add images of other classes"
        raise UsageError(expected("`labels`", "of two classes at least", f"{only} alone", remedy))
    return truth.astype(np.int64)


def _reliability(answers: ModelOutputs, truth: npt.NDArray[np.int64]) -> dict[str, Reliability]:
    confidence = metrics.reliability_curve(answers.table, truth, bins=BINS)
    uncertainty = metrics.reliability_curve(answers.table, truth, bins=BINS, kind="uncertainty")
    # The expected error of a calibrated model is 1 - max p, and not its entropy.
    errors = np.bincount(bin_of(answers.table.uncertainty, BINS), 1 - answers.table.confidence, BINS)
    twin = errors / np.where(uncertainty.counts, uncertainty.counts, np.nan)
    return {
        "confidence": Reliability(
            confidence, confidence.mean_score, metrics.calibration_test(answers.table, truth, kind="confidence")
        ),
        "uncertainty": Reliability(uncertainty, twin, metrics.calibration_test(answers.table, truth)),
    }


def _examples(
    model: Model,
    images: npt.NDArray[Any],
    names: Sequence[str] | None,
    answers: ModelOutputs,
    truth: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    passes_and_seed: tuple[int, int],
) -> tuple[Example, ...]:
    labels, predicted = model.classes, answers.table.predicted
    chosen = order[:_EXAMPLES]
    mapped: list[ImagePrediction | None] = [None] * len(chosen)
    if contract.HEATMAP in model.metadata.outputs and len(chosen):
        mapped = list(model.predict(np.array(images[chosen]), *passes_and_seed))
    return tuple(
        Example(
            index=int(index),
            name=None if names is None else names[int(index)],
            label=labels[int(predicted[index])],
            truth=labels[int(truth[index])],
            confidence=float(answers.table.confidence[index]),
            uncertainty=float(answers.uncertainty[index]),
            pixels=np.array(images[index]),
            mapped=prediction,
        )
        for index, prediction in zip(chosen, mapped, strict=True)
    )


def _notes(model: Model, truth: npt.NDArray[np.int64], passes: int, seed: int) -> list[str]:
    metadata, notes = model.metadata, []
    if len(truth) < _FEW:
        notes.append(f"Only {len(truth)} images: every number here is mostly chance.")
    absent = len(metadata.classes) - len(np.unique(truth))
    if absent:
        notes.append(f"{absent} of the model's {len(metadata.classes)} classes have no image here.")
    fitted = metadata.calibration.samples
    if fitted is None:
        notes.append("The model is not calibrated: fit a map with uce-edge calibrate.")
    elif fitted != passes:
        notes.append(f"Calibrated at {fitted} passes but evaluated at {passes}: the probabilities are a little off.")
    stored = metadata.promise
    if stored is not None and (passes, seed) != (stored.samples, stored.seed):
        notes.append("The stored promise is for another seed or number of passes: it does not hold here.")
    sets = metadata.sets
    if sets is not None and (passes, seed) != (sets.samples, sets.seed):
        notes.append("The prediction sets were fitted for another seed or number of passes: no promise holds here.")
    if metadata.noise is NoiseKind.RANDN and metadata.inference is not Inference.DETERMINISTIC:
        notes.append("The runtime draws the noise of this file: a second evaluation gives slightly other numbers.")
    return notes


def _applied(stored: RejectRule | None, kept: "rejection_results.Kept | None") -> list[str]:
    """The results of `--reject auto`, unless it is one limit on the uncertainty."""
    if stored is None or kept is None or stored.threshold is not None:
        return []
    wrong = "none is accepted" if kept.error is None else f"of which {kept.error:.2%} are wrong"
    return [
        f"`--reject auto` of this file accepts images with {kept.accepts}. These are {kept.coverage:.1%} of the "
        f"images here, {wrong}. The promised error is at most {kept.target_error:g}."
    ]
