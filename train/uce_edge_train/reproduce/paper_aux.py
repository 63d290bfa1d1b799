"""Auxiliary scaling as the paper describes it.

R(z) = W2 leaky_relu(W1 z + b1) + b2 with C hidden units, started at W1 = W2 = I and b1 = b2 = 0, and fitted to the NLL
of the averaged passes by gradient descent, without weight decay or early stopping. The start is not the identity for
negative logits. The paper does not name the optimiser or its steps; here they are 1,000 of Adam on batches of images.
"""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uce_edge.calibration.logits import ArrayLogits

Parameters = list[Tensor]
_STEPS, _BATCH, _RATE, _SLOPE = 1000, 256, 1e-2, 0.01


def fit(logits: ArrayLogits, labels: npt.NDArray[np.int64]) -> Parameters:
    """The parameters W1, b1, W2, b2, fitted on calibration images."""
    passes = torch.from_numpy(np.concatenate(list(logits), 1)).float()
    truth = torch.from_numpy(labels)
    classes = passes.shape[-1]
    start = (torch.eye(classes), torch.zeros(classes), torch.eye(classes), torch.zeros(classes))
    parameters = [value.clone().requires_grad_() for value in start]
    optimiser = torch.optim.Adam(parameters, lr=_RATE)
    generator = torch.Generator().manual_seed(0)
    for _ in range(_STEPS):
        batch = torch.randperm(len(truth), generator=generator)[:_BATCH]
        log_p = torch.log_softmax(_map(parameters, passes[:, batch]), -1)[:, torch.arange(len(batch)), truth[batch]]
        loss = -(torch.logsumexp(log_p, 0) - math.log(len(passes))).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return [value.detach() for value in parameters]


def probabilities(parameters: Parameters, logits: ArrayLogits) -> npt.NDArray[np.float64]:
    """Averaged predictions [images, classes]."""
    blocks = [torch.softmax(_map(parameters, torch.from_numpy(z).float()).double(), -1).mean(0) for z in logits]
    return torch.cat(blocks).numpy()


def _map(parameters: Parameters, logits: Tensor) -> Tensor:
    w1, b1, w2, b2 = parameters
    return torch.nn.functional.leaky_relu(logits @ w1.T + b1, _SLOPE) @ w2.T + b2
