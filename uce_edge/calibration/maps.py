"""Calibration maps fitted on Monte Carlo logits, weights frozen.

The loss is the negative log-likelihood of the *averaged* prediction, so the map is optimal for what ships:
-(logsumexp_i log_softmax(R(z_i))[y] - log N). The best temperature depends on N.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from uce_edge.calibration import error_map
from uce_edge.calibration.logits import ArrayLogits, Logits
from uce_edge.contract import Method
from uce_edge.errors import UsageError, expected
from uce_edge.metadata import Calibration, CalibrationReport
from uce_edge.metrics import normalized_entropy

Parameters = dict[str, Tensor]

_LEAKY_SLOPE = 0.01
# A weak prior, log T ~ N(0, 1.25^2) and t ~ N(1, 1.25^2). On an easy set every T below some value fits equally well and
# plain NLL runs off to T = 0. With 5,000 images the prior moves a well-determined T by 0.05 %.
_PRIOR_STD = 1.25


def initial(method: Method, classes: int) -> Parameters:
    """The parameters at which the map is the identity."""
    match method:
        case Method.NONE:
            return {}
        case Method.TEMPERATURE:
            return {"temperature": torch.ones(1)}
        case Method.VECTOR:
            return {"vector": torch.ones(classes)}
        case Method.AUX:
            # W2 = 0 makes the residual form the exact identity; the paper's theta = I is not, for negative logits.
            return {
                "aux.w1": torch.eye(classes),
                "aux.b1": torch.zeros(classes),
                "aux.w2": torch.zeros(classes, classes),
                "aux.b2": torch.zeros(classes),
            }


def apply_map(method: Method, parameters: Parameters, logits: Tensor) -> Tensor:
    """R(z) for logits [..., classes]."""
    match method:
        case Method.NONE:
            return logits
        case Method.TEMPERATURE:
            return logits / parameters["temperature"]
        case Method.VECTOR:
            return logits * parameters["vector"]
        case Method.AUX:
            hidden = nn.functional.linear(logits, parameters["aux.w1"], parameters["aux.b1"])
            hidden = nn.functional.leaky_relu(hidden, _LEAKY_SLOPE)
            return logits + nn.functional.linear(hidden, parameters["aux.w2"], parameters["aux.b2"])


def averaged_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """NLL of the averaged softmax of logits [samples, images, classes]."""
    picked = torch.log_softmax(logits, -1).gather(-1, labels.expand(len(logits), -1)[..., None])[..., 0]
    log_mean: Tensor = torch.logsumexp(picked, 0) - math.log(len(logits))
    return -log_mean.mean()


def probabilities(calibration: Calibration, logits: Logits) -> npt.NDArray[np.float64]:
    """The calibrated, averaged prediction [images, classes]."""
    parameters = {name: torch.tensor(value, dtype=torch.float64) for name, value in calibration.parameters.items()}
    means = [torch.softmax(apply_map(calibration.method, parameters, z.double()), -1).mean(0) for z in logits]
    return torch.cat(means).numpy()


def fit_map(
    method: Method,
    logits: Logits | npt.ArrayLike | Tensor,
    labels: npt.NDArray[np.int64] | Tensor,
    seed: int = 0,
    regularise: bool = True,
) -> Calibration:
    """Fit a calibration map on cached logits.

    Args:
        method: Which map.
        logits: Raw logits of the passes [samples, images, classes], as an array or block by block; a deterministic
            model has samples = 1.
        labels: True class of every image.
        seed: Chooses the held-out fifth that stops `aux` early.
        regularise: False takes weight decay and early stopping from `aux`, as the paper did: it overfits.

    Returns:
        The map with its parameters, the N it was fitted at, and what it changed.
    """
    blocks = logits if isinstance(logits, Logits) else ArrayLogits(torch.as_tensor(logits))
    data = _Data(blocks, torch.as_tensor(labels).long())
    parameters = {name: value.double() for name, value in initial(method, blocks.classes).items()}
    if method is Method.TEMPERATURE:
        # log T keeps T positive without a constraint.
        log_t = torch.zeros(1, dtype=torch.float64)
        _lbfgs(log_t, data, lambda z: z / log_t.exp(), lambda: log_t)
        parameters["temperature"] = log_t.detach().exp()
    elif method is Method.VECTOR:
        vector = parameters["vector"]
        _lbfgs(vector, data, lambda z: z * vector, lambda: vector - 1)
        parameters["vector"] = vector.detach()
    elif method is Method.AUX:
        parameters = _fit_aux(parameters, data, seed, regularise)
    report, error = _outcome(method, parameters, data)
    return Calibration(
        method=method,
        parameters={name: value.float().tolist() for name, value in parameters.items()},
        samples=blocks.samples,
        report=report,
        error=(error.a, error.b, error.c),
    )


class _Data:
    """Logits with their labels, read in blocks of images: a large set never lies in memory."""

    def __init__(self, logits: Logits, labels: Tensor) -> None:
        self._logits, self._labels = logits, labels
        self.images, self.classes = logits.images, logits.classes
        if labels.shape != (logits.images,):
            rule = f"one per image ({logits.images})"
            raise UsageError(expected("`labels`", rule, tuple(labels.shape), "Check the data file"))
        wrong = labels[(labels < 0) | (labels >= logits.classes)]
        if len(wrong):
            rule = f"between 0 and {logits.classes - 1}"
            raise UsageError(expected("`labels`", rule, int(wrong[0]), "Labels count from 0; check the data file"))
        for block in logits:
            if not torch.isfinite(block).all():
                raise UsageError(
                    "The logits hold NaN or infinity: the model is broken. Train it again with a smaller rate."
                )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        start = 0
        for block in self._logits:
            yield block.double(), self._labels[start : start + block.shape[1]]
            start += block.shape[1]

    def __len__(self) -> int:
        return len(self._logits)


def _outcome(method: Method, parameters: Parameters, data: _Data) -> tuple[CalibrationReport, error_map.ErrorMap]:
    """What the map changed on the images it was fitted on, and how the error follows the uncertainty there."""
    uncertainty, wrong = [], []
    nll_before = nll_after = 0.0
    flips = right_before = right_after = 0
    with torch.no_grad():
        for z, y in data:
            after = apply_map(method, parameters, z)
            nll_before += averaged_nll(z, y).item() * len(y)
            nll_after += averaged_nll(after, y).item() * len(y)
            p = torch.softmax(after, -1).mean(0)
            old, new = torch.softmax(z, -1).mean(0).argmax(-1), p.argmax(-1)
            uncertainty.append(normalized_entropy(p.numpy()))
            wrong.append((new != y).numpy())
            flips += int((old != new).sum())
            right_before += int((old == y).sum())
            right_after += int((new == y).sum())
    report = CalibrationReport(
        images=data.images,
        nll_of_chance=round(math.log(data.classes), 6),
        nll_before=round(nll_before / data.images, 6),
        nll_after=round(nll_after / data.images, 6),
        label_flips=flips,
        accuracy_before=round(right_before / data.images, 6),
        accuracy_after=round(right_after / data.images, 6),
    )
    return report, error_map.fit(np.concatenate(uncertainty), np.concatenate(wrong))


def _lbfgs(parameter: Tensor, data: _Data, scaled: Callable[[Tensor], Tensor], deviation: Callable[[], Tensor]) -> None:
    """Minimise the NLL of the scaled logits, with the prior on a deviation, in place."""
    parameter.requires_grad_()
    optimiser = torch.optim.LBFGS(
        [parameter], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        prior = deviation().square().sum() / (2 * _PRIOR_STD**2 * data.images)
        prior.backward()  # type: ignore[no-untyped-call]
        total = prior.detach()
        for z, y in data:
            loss = averaged_nll(scaled(z), y) * (len(y) / data.images)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    optimiser.step(closure)  # type: ignore[no-untyped-call]


def _fit_aux(parameters: Parameters, data: _Data, seed: int, regularise: bool) -> Parameters:
    """Adam with weight decay, stopped early on a held-out fifth: with many classes aux overfits otherwise."""
    order = torch.randperm(data.images, generator=torch.Generator().manual_seed(seed))
    held = torch.zeros(data.images, dtype=torch.bool)
    held[order[: data.images // 5]] = True
    if not held.any():
        return parameters
    weights = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    decayed = [weights["aux.w2"]]  # W2 = 0 is the identity: decay pulls towards "no change"
    free = [value for name, value in weights.items() if name != "aux.w2"]
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": 1e-2 if regularise else 0.0}, {"params": free}]
    optimiser = torch.optim.Adam(groups, lr=1e-2)

    def part(wanted: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        start = 0
        for z, y in data:
            chosen = wanted[start : start + len(y)]
            start += len(y)
            if chosen.any():
                yield z[:, chosen], y[chosen]

    def held_out() -> float:
        with torch.no_grad():
            losses = [averaged_nll(apply_map(Method.AUX, weights, z), y).item() * len(y) for z, y in part(held)]
        return sum(losses) / int(held.sum())

    # One step per block: a set that fits into one is fitted by full-batch steps.
    best, best_value, waited = parameters, held_out(), 0
    for _ in range(max(20, 500 // len(data))):
        for z, y in part(~held) if regularise else data:
            optimiser.zero_grad()
            averaged_nll(apply_map(Method.AUX, weights, z), y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        value = held_out()
        if not regularise:
            best = weights
        elif value < best_value - 1e-6:
            best, best_value, waited = {name: w.detach().clone() for name, w in weights.items()}, value, 0
        else:
            waited += 1
            if waited == max(2, 30 // len(data)):
                break
    return {name: value.detach() for name, value in best.items()}
