"""Fit calibration maps to Monte Carlo logits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from uce_edge.calibration import auxiliary_map, error_map
from uce_edge.calibration.likelihood import (
    Labelled,
    Likelihood,
    averaged_softmax,
    class_first,
    over_tiles,
    tiles,
    true_class,
)
from uce_edge.calibration.logits import ArrayLogits, Block, Logits
from uce_edge.calibration.optimise import lbfgs, newton
from uce_edge.contract import Method
from uce_edge.metadata import Calibration, CalibrationReport
from uce_edge.metrics.argument_checks import Booleans, Floats, Integers

Array = TypeVar("Array", bound=Any)
Parameters = dict[str, Floats]

# A weak prior, log T ~ N(0, 1.25^2) and t ~ N(1, 1.25^2). On an easy set every T below some value fits equally well and
# plain NLL runs off to T = 0. With 5,000 images the prior moves a well-determined T by 0.05 %.
_PRIOR_STD = 1.25


CLASS_SHIFT = "class_shift"
"""The parameter of any map that is added to the mapped logits, for another mix of classes."""
_SHIFT_STD = 0.5  # of its fitted part, in nats


def initial(method: Method, classes: int) -> Parameters:
    """The parameters at which the map is the identity."""
    match method:
        case Method.NONE:
            return {}
        case Method.TEMPERATURE:
            return {"temperature": np.ones(1)}
        case Method.VECTOR:
            return {"vector": np.ones(classes)}
        case Method.AUX:
            return auxiliary_map.initial(classes)


def apply_map(method: Method, parameters: Mapping[str, Array], logits: Array) -> Array:
    """R(z) for logits [..., classes]: numpy arrays or torch tensors."""
    mapped: Array = logits
    match method:
        case Method.TEMPERATURE:
            mapped = logits / parameters["temperature"]
        case Method.VECTOR:
            mapped = logits * parameters["vector"]
        case Method.AUX:  # files and runs of older versions have no temperature there
            scaled = logits / parameters["temperature"] if "temperature" in parameters else logits
            *_, mapped = auxiliary_map.layers(parameters, scaled)
    if CLASS_SHIFT in parameters:
        mapped = mapped + parameters[CLASS_SHIFT]
    return mapped


def averaged_nll(logits: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """NLL of the averaged softmax of logits [samples, images, classes]."""
    data = Labelled(ArrayLogits(logits), labels)
    return sum(over_tiles(lambda z, y: float(Likelihood.of(class_first(z), y).nll.sum()), data.blocks())) / data.images


def probabilities(calibration: Calibration, logits: Logits) -> Floats:
    """The calibrated, averaged prediction [images, classes]."""
    parameters = _arrays(calibration)
    parts = (block[:, here] for block in logits for here in tiles(block))
    return np.concatenate([averaged_softmax(_mapped(calibration.method, parameters, z)) for z in parts])


def pass_probabilities(calibration: Calibration, logits: Block) -> npt.NDArray[np.float32]:
    """The calibrated prediction of every pass [samples, images, classes]."""
    mapped = apply_map(calibration.method, _arrays(calibration), logits.astype(np.float64))
    exponentials = np.exp(mapped - mapped.max(-1, keepdims=True))
    probabilities: npt.NDArray[np.float32] = (exponentials / exponentials.sum(-1, keepdims=True)).astype(np.float32)
    return probabilities


def fit_map(
    method: Method,
    logits: Logits | npt.ArrayLike,
    labels: npt.ArrayLike,
    seed: int = 0,
    regularise: bool = True,
    members: int = 1,
) -> Calibration:
    """Fit a calibration map on cached logits.

    Args:
        method: The kind of map.
        logits: Raw logits of the passes [samples, images, classes], as an array or block by block; a deterministic
            model has samples = 1.
        labels: True class of every image.
        seed: Chooses the held-out fifth that stops `aux` early.
        regularise: False fits `aux` without weight decay and early stopping, as in the paper; it overfits.
        members: The number of networks of an ensemble, which all run every seed: N counts the seeds.

    Returns:
        The map with its parameters, its number of passes N, and a report of its effect. The best temperature depends
        on N.
    """
    blocks = logits if isinstance(logits, Logits) else ArrayLogits(logits)
    data = Labelled(blocks, labels)
    match method:
        case Method.NONE:
            parameters = initial(method, data.classes)
        case Method.TEMPERATURE:
            parameters = {"temperature": _fit_temperature(data)}
        case Method.VECTOR:
            parameters = {"vector": _fit_vector(data)}
        case Method.AUX:
            held = auxiliary_map.held_out(data.images, seed)
            parameters = _fit_aux(data, held) if regularise else auxiliary_map.fit(data, held, 1.0, regularise)
    report, error = _outcome(method, parameters, data)
    return Calibration(
        method=method,
        parameters={name: value.astype(np.float32).tolist() for name, value in parameters.items()},
        samples=blocks.samples // members,
        report=report,
        confidence_error=(error.a, error.b),
    )


def fit_shift(calibration: Calibration, logits: Logits, labels: npt.ArrayLike, around: Floats | None = None) -> Floats:
    """Fit a shift of every class behind a fitted map, which removes a bias towards some of them.

    Args:
        calibration: The map.
        logits: Those of labelled images.
        labels: Their true classes.
        around: The mean of the shift's prior; None for no shift.
    """
    data, known = Labelled(logits, labels), _arrays(calibration)
    start = np.zeros(data.classes) if around is None else around

    def loss(shift: Floats) -> tuple[float, Floats]:
        """The penalised NLL and its gradient."""

        def summed(tile: Block, labels: Integers) -> tuple[float, Floats]:
            found = Likelihood.of(_mapped(calibration.method, known | {CLASS_SHIFT: shift}, tile), labels)
            return float(found.nll.sum()), found.derivative(labels).sum(axis=(1, 2))

        away = shift - start
        nll, gradient = float(away @ away) / (2 * _SHIFT_STD**2), away / _SHIFT_STD**2
        for part, slope in over_tiles(summed, data.blocks()):
            nll += part
            gradient = gradient + slope
        return nll / data.images, gradient / data.images

    return lbfgs(loss, start)


def shifted(calibration: Calibration, shift: Floats, logits: Logits, labels: npt.ArrayLike) -> Calibration:
    """Add a shift of every class to a map; its report and its error map are for other images.

    Args:
        calibration: The fitted map.
        shift: One number per class.
        logits: Those of images with the new mix of classes.
        labels: Their true classes.
    """
    parameters = _arrays(calibration) | {CLASS_SHIFT: shift}
    report, error = _outcome(calibration.method, parameters, Labelled(logits, labels))
    stored = calibration.parameters | {CLASS_SHIFT: shift.astype(np.float32).tolist()}
    return replace(calibration, parameters=stored, report=report, confidence_error=(error.a, error.b))


def _arrays(calibration: Calibration) -> Parameters:
    return {name: np.array(value, np.float64) for name, value in calibration.parameters.items()}


def _mapped(method: Method, parameters: Parameters, tile: Block) -> Floats:
    """R(z), class first."""
    return class_first(apply_map(method, parameters, tile.astype(np.float64)))


def _fit_aux(data: Labelled, held: Booleans) -> Parameters:
    """Temperature scaling, with the auxiliary network if that is better."""
    temperature = _fit_temperature(data, ~held)
    parameters = auxiliary_map.fit(data, held, float(temperature[0]), regularise=True)
    if not parameters["aux.w2"].any():
        temperature = _fit_temperature(data)  # nothing else was fitted: all images may serve it
    return {"temperature": temperature, **parameters}


def _fit_temperature(data: Labelled, chosen: Booleans | None = None) -> Floats:
    """Fit log T, which keeps T positive, by Newton's method."""
    n = data.images if chosen is None else int(chosen.sum())

    def loss(log_t: float) -> tuple[float, float, float]:
        """The penalised NLL and its derivatives by log T; s = 1 / T."""
        s, parameters = math.exp(-log_t), {"temperature": np.exp([log_t])}

        def summed(tile: Block, labels: Integers) -> Floats:
            """The NLL and its derivatives by s."""
            z = class_first(tile)
            z -= true_class(z, labels)  # the softmax is the same, and the logit of the true class is 0
            found = Likelihood.of(_mapped(Method.TEMPERATURE, parameters, tile), labels)
            # Mean and mean square of the logits under the softmax of each pass.
            mean = np.einsum("csi,csi->si", found.exponentials, z) / found.totals
            weighted = np.multiply(found.exponentials, z, out=found.exponentials)
            square = np.einsum("csi,csi->si", weighted, z) / found.totals
            slope = (found.weights * mean).sum(axis=0)
            curvature = (found.weights * (square - 2 * mean**2)).sum(axis=0) + slope**2
            return np.array([found.nll.sum(), slope.sum(), curvature.sum()])

        nll, first, second = sum(over_tiles(summed, data.blocks(chosen)), np.zeros(3)).tolist()
        precision = 1 / _PRIOR_STD**2
        return (
            (nll + precision * log_t**2 / 2) / n,
            (precision * log_t - s * first) / n,
            (precision + s * first + s**2 * second) / n,
        )

    return np.exp([newton(loss, 0.0)])


def _fit_vector(data: Labelled) -> Floats:
    """Fit one factor per class by L-BFGS."""

    def loss(vector: Floats) -> tuple[float, Floats]:
        """The penalised NLL and its gradient."""

        def summed(tile: Block, labels: Integers) -> tuple[float, Floats]:
            found = Likelihood.of(_mapped(Method.VECTOR, {"vector": vector}, tile), labels)
            return float(found.nll.sum()), np.einsum("csi,sic->c", found.derivative(labels), tile)

        away = vector - 1
        nll, gradient = float(away @ away) / (2 * _PRIOR_STD**2), away / _PRIOR_STD**2
        for part, slope in over_tiles(summed, data.blocks()):
            nll += part
            gradient += slope
        return nll / data.images, gradient / data.images

    return lbfgs(loss, initial(Method.VECTOR, data.classes)["vector"])


@dataclass(frozen=True)
class _Change:
    """The effect of a map on some images."""

    nll: tuple[float, float]
    """The sum before and after."""
    right: tuple[int, int]
    """The number before and after."""
    flips: int
    confidence: Floats
    wrong: Booleans


def _outcome(method: Method, parameters: Parameters, data: Labelled) -> tuple[CalibrationReport, error_map.ErrorMap]:
    """The effect of the map on its images, and their error map."""

    def change(tile: Block, labels: Integers) -> _Change:
        before, after = (
            Likelihood.of(class_first(tile), labels),
            Likelihood.of(_mapped(method, parameters, tile), labels),
        )
        p = after.probabilities()
        old, new = before.probabilities().argmax(-1), p.argmax(-1)
        return _Change(
            nll=(float(before.nll.sum()), float(after.nll.sum())),
            right=(int((old == labels).sum()), int((new == labels).sum())),
            flips=int((old != new).sum()),
            confidence=np.minimum(p.max(-1), 1),  # an average may exceed it by rounding
            wrong=new != labels,
        )

    changes = list(over_tiles(change, data.blocks()))
    nll_before, nll_after = (sum(values) / data.images for values in zip(*(part.nll for part in changes), strict=True))
    right_before, right_after = (
        sum(values) / data.images for values in zip(*(part.right for part in changes), strict=True)
    )
    report = CalibrationReport(
        images=data.images,
        nll_of_chance=round(math.log(data.classes), 6),
        nll_before=round(nll_before, 6),
        nll_after=round(nll_after, 6),
        label_flips=sum(part.flips for part in changes),
        accuracy_before=round(right_before, 6),
        accuracy_after=round(right_after, 6),
    )
    return report, error_map.fit(
        np.concatenate([part.confidence for part in changes]), np.concatenate([part.wrong for part in changes])
    )
