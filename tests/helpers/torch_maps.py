"""Calibration maps fitted by PyTorch's optimisers and its automatic derivatives: the oracle of the fits in numpy."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from uce_edge.contract import Method

PRIOR_STD = 1.25


def nll(logits: Tensor, labels: Tensor) -> Tensor:
    """That of the averaged prediction."""
    picked = torch.log_softmax(logits, -1).gather(-1, labels.expand(len(logits), -1)[..., None])[..., 0]
    return math.log(len(logits)) - torch.logsumexp(picked, 0).mean()


def fit(
    method: Method, logits: np.ndarray, labels: np.ndarray, held: np.ndarray | None = None
) -> tuple[dict[str, np.ndarray], float]:
    """The parameters of a map and the NLL of the images they were fitted on.

    Args:
        method: Which map.
        logits: Of the passes [samples, images, classes].
        labels: True classes.
        held: The images that stop aux early; None for a fifth that PyTorch draws.
    """
    z, y = torch.from_numpy(logits).double(), torch.from_numpy(labels)
    if method is Method.TEMPERATURE:
        log_t = _lbfgs(torch.zeros(1), z, y, lambda p: z / p.exp(), lambda p: p)
        return {"temperature": log_t.exp().numpy()}, nll(z / log_t.exp(), y).item()
    if method is Method.VECTOR:
        vector = _lbfgs(torch.ones(z.shape[-1]), z, y, lambda p: z * p, lambda p: p - 1)
        return {"vector": vector.numpy()}, nll(z * vector, y).item()
    if held is None:
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        held = np.isin(np.arange(len(y)), order[: len(y) // 5].numpy())
    rest = torch.from_numpy(~held)

    def temperature(images: Tensor) -> Tensor:
        z_, y_ = z[:, images], y[images]
        return _lbfgs(torch.zeros(1), z_, y_, lambda p: z_ / p.exp(), lambda p: p).exp()

    t = temperature(rest)
    parameters = _aux(z / t, y, torch.from_numpy(held))
    if not parameters["aux.w2"].any():
        t = temperature(torch.ones_like(rest))
    parameters = {"temperature": t, **parameters}
    return {name: value.numpy() for name, value in parameters.items()}, nll(aux(parameters, z / t), y).item()


def aux(parameters: dict[str, Tensor], z: Tensor) -> Tensor:
    """The auxiliary map by PyTorch's layers."""
    hidden = torch.nn.functional.linear(z, parameters["aux.w1"], parameters["aux.b1"])
    hidden = torch.nn.functional.leaky_relu(hidden, 0.01)
    return z + torch.nn.functional.linear(hidden, parameters["aux.w2"], parameters["aux.b2"])


def _lbfgs(
    start: Tensor, z: Tensor, y: Tensor, scaled: Callable[[Tensor], Tensor], deviation: Callable[[Tensor], Tensor]
) -> Tensor:
    parameter = start.double().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [parameter], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = nll(scaled(parameter), y) + deviation(parameter).square().sum() / (2 * PRIOR_STD**2 * len(y))
        loss.backward()
        return loss

    optimiser.step(closure)
    return parameter.detach()


def _aux(z: Tensor, y: Tensor, held: Tensor) -> dict[str, Tensor]:
    classes = z.shape[-1]
    start = {
        "aux.w1": torch.eye(classes),
        "aux.b1": torch.zeros(classes),
        "aux.w2": torch.zeros(classes, classes),
        "aux.b2": torch.zeros(classes),
    }
    weights = {name: value.double().requires_grad_() for name, value in start.items()}
    free = [value for name, value in weights.items() if name != "aux.w2"]
    optimiser = torch.optim.Adam([{"params": [weights["aux.w2"]], "weight_decay": 1e-2}, {"params": free}], lr=1e-2)
    kept = {name: value.detach().clone() for name, value in weights.items()}
    lowest, waited = math.inf, 0
    with torch.no_grad():
        lowest = nll(aux(weights, z[:, held]), y[held]).item()
    for _ in range(500):
        optimiser.zero_grad()
        nll(aux(weights, z[:, ~held]), y[~held]).backward()
        optimiser.step()
        with torch.no_grad():
            value = nll(aux(weights, z[:, held]), y[held]).item()
        if value < lowest - 1e-6:
            kept, lowest, waited = {name: w.detach().clone() for name, w in weights.items()}, value, 0
        else:
            waited += 1
            if waited == 30:
                break
    return kept
