"""Monte Carlo logits, and calibration maps fitted on them (weights frozen).

The loss is the negative log-likelihood of the *averaged* prediction, so the map is optimal for what ships:
-(logsumexp_i log_softmax(R(z_i))[y] - log N). The best temperature depends on N.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from uce_edge.contract import MAX_SAMPLES, Method
from uce_edge.errors import UsageError, expected
from uce_edge.metadata import Calibration
from uce_edge.progress import progress
from uce_edge_train.data import Dataset, Split
from uce_edge_train.fit import normalise
from uce_edge_train.layers import noise_from
from uce_edge_train.runs import Run, load_model

Parameters = dict[str, Tensor]

_LEAKY_SLOPE = 0.01
# A weak prior, log T ~ N(0, 1.25^2) and t ~ N(1, 1.25^2). On an easy set every T below some value fits equally well and
# plain NLL runs off to T = 0. With 5,000 images the prior moves a well-determined T by 0.05 %.
_PRIOR_STD = 1.25


def mc_logits(model: nn.Module, images: Tensor, samples: int, seed: int, batch_size: int = 256) -> Tensor:
    """Logits [samples, images, classes] of stochastic passes, with noise from an explicit seed."""
    if not 1 <= samples <= MAX_SAMPLES:
        raise UsageError(expected("`samples`", f"between 1 and {MAX_SAMPLES}", samples, "For example: --samples 25"))
    generator = torch.Generator().manual_seed(seed)
    model.eval()
    chunks = []
    with (
        torch.no_grad(),
        noise_from(model, generator),
        progress("Monte Carlo passes", len(images)) as advance,
    ):
        for batch in torch.split(images, batch_size):
            chunks.append(torch.stack([model(batch) for _ in range(samples)]))
            advance(len(batch))
    return torch.cat(chunks, dim=1)


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


def fit_map(
    method: Method,
    logits: npt.NDArray[np.float32] | Tensor,
    labels: npt.NDArray[np.int64] | Tensor,
    seed: int = 0,
) -> Calibration:
    """Fit a calibration map on cached logits [samples, images, classes].

    Args:
        method: Which map.
        logits: Raw logits of the passes; a deterministic model has samples = 1.
        labels: True class of every image.
        seed: Chooses the held-out fifth that stops `aux` early.

    Returns:
        The map with its parameters, the N it was fitted at, and what it changed.
    """
    z, y = torch.as_tensor(logits).double(), torch.as_tensor(labels).long()
    _check(z, y)
    parameters = {name: value.double() for name, value in initial(method, z.shape[-1]).items()}
    if method is Method.TEMPERATURE:
        # log T keeps T positive without a constraint.
        log_t = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        _lbfgs([log_t], lambda: averaged_nll(z / log_t.exp(), y) + _prior(log_t, len(y)))
        parameters["temperature"] = log_t.detach().exp()
    elif method is Method.VECTOR:
        vector = parameters["vector"].requires_grad_()
        _lbfgs([vector], lambda: averaged_nll(z * vector, y) + _prior(vector - 1, len(y)))
        parameters["vector"] = vector.detach()
    elif method is Method.AUX:
        parameters = _fit_aux(parameters, z, y, seed)
    with torch.no_grad():
        after = apply_map(method, parameters, z)
        before_label = torch.softmax(z, -1).mean(0).argmax(-1)
        after_label = torch.softmax(after, -1).mean(0).argmax(-1)
        report = {
            "images": len(y),
            "nll_of_chance": round(math.log(z.shape[-1]), 6),
            "nll_before": round(averaged_nll(z, y).item(), 6),
            "nll_after": round(averaged_nll(after, y).item(), 6),
            "label_flips": int((before_label != after_label).sum()),
            "accuracy_before": round((before_label == y).double().mean().item(), 6),
            "accuracy_after": round((after_label == y).double().mean().item(), 6),
        }
    return Calibration(
        method=method,
        parameters={name: value.float().tolist() for name, value in parameters.items()},
        samples=z.shape[0],
        report=report,
    )


def _check(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim != 3 or logits.shape[1] == 0:
        raise UsageError(
            expected(
                "`logits`",
                "[samples, images, classes] with at least one image",
                tuple(logits.shape),
                "Add images",
            )
        )
    if not torch.isfinite(logits).all():
        raise UsageError("The logits hold NaN or infinity: the model is broken. Train it again with a smaller rate.")
    if labels.shape != logits.shape[1:2]:
        raise UsageError(
            expected("`labels`", f"one per image ({logits.shape[1]})", tuple(labels.shape), "Check the data file")
        )
    classes = logits.shape[2]
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise UsageError(
            expected(
                "`labels`",
                f"between 0 and {classes - 1}",
                int(wrong[0]),
                "Labels count from 0; check the data file",
            )
        )


def _prior(deviation: Tensor, images: int) -> Tensor:
    return deviation.square().sum() / (2 * _PRIOR_STD**2 * images)


def _lbfgs(parameters: Iterable[Tensor], loss: Callable[[], Tensor]) -> None:
    parameters = list(parameters)
    optimiser = torch.optim.LBFGS(
        parameters, max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(closure)  # type: ignore[no-untyped-call]


def _fit_aux(parameters: Parameters, logits: Tensor, labels: Tensor, seed: int) -> Parameters:
    """Adam with weight decay, stopped early on a held-out fifth: with many classes aux overfits otherwise."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held, rest = order[: len(order) // 5], order[len(order) // 5 :]
    if len(held) == 0:
        return parameters
    weights = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    decayed = [weights["aux.w2"]]  # W2 = 0 is the identity: decay pulls towards "no change"
    free = [value for name, value in weights.items() if name != "aux.w2"]
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": 1e-2}, {"params": free}]
    optimiser = torch.optim.Adam(groups, lr=1e-2)

    def held_out() -> float:
        with torch.no_grad():
            return averaged_nll(apply_map(Method.AUX, weights, logits[:, held]), labels[held]).item()

    best, best_value, patience = parameters, held_out(), 0
    for _ in range(500):
        optimiser.zero_grad()
        averaged_nll(apply_map(Method.AUX, weights, logits[:, rest]), labels[rest]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        value = held_out()
        if value < best_value - 1e-6:
            best, best_value, patience = {name: w.detach().clone() for name, w in weights.items()}, value, 0
        else:
            patience += 1
            if patience == 30:
                break
    return best


def run_logits(run: Run, folder: str | Path, split: Split, samples: int, seed: int = 0) -> Tensor:
    """Monte Carlo logits of a trained run on some images."""
    model = load_model(run, folder)
    return mc_logits(model, normalise(torch.from_numpy(split.images), run.image), samples, seed)


def calibrate(folder: str | Path, dataset: Dataset, method: Method, samples: int = 25, seed: int = 0) -> Run:
    """Fit a map on the calibration split of a run's dataset and store it in the run.

    Returns:
        The run's description with its calibration, as saved.
    """
    run = Run.load(folder)
    data = dataset.splits["calibration"]
    if data.sha256() != run.split_hashes["calibration"]:
        raise UsageError(
            f"The calibration images of {dataset.name} are not those that were set aside when {folder} was trained. "
            "Train again, or restore the data."
        )
    logits = run_logits(run, folder, data, samples, seed)
    run = replace(run, calibration=fit_map(method, logits, torch.from_numpy(data.labels), seed))
    run.save(folder)
    return run
