"""Noise scale of factored sigma after training with exact sigma.

Exact sigma is large where a layer's output is large, factored sigma is spread more evenly over the outputs: the same
variance does more harm there. One factor on alpha = p / (1 - p) of all layers repairs that on average.
"""

import math

import numpy as np
import torch
from torch import nn

from uce_edge.contract import Sigma
from uce_edge.metadata import ImageSpec
from uce_edge.metrics import normalized_entropy
from uce_edge_export.check.parity_gate import Pixels
from uce_edge_export.noise.moments_calibration import stochastic_logits
from uce_edge_export.noise.sites import Site
from uce_edge_train import torch_graph
from uce_edge_train.dropout.gaussian_layers import computing_sigma

IMAGES = 128
_PASSES, _STEPS = 10, 3
_RANGE = math.log(4)  # of the factor's logarithm, both ways


def noise_scale(model: nn.Module, spec: ImageSpec, sites: list[Site], sigma: Sigma, images: Pixels) -> float:
    """The factor on alpha that keeps the mean uncertainty.

    Args:
        model: A Gaussian-dropout network.
        spec: What its images are.
        sites: Its noisy layers.
        sigma: The other sigma.
        images: At least `IMAGES` images, of which the first are used.
    """

    def uncertainty(log_scale: float, form: Sigma | None = sigma) -> float:
        with computing_sigma(model, form, math.exp(log_scale)):
            reference = torch_graph.torch_reference(model, spec, sites)
            logits = stochastic_logits(reference, sites, images[:IMAGES], _PASSES)  # with the same noise every time
        probabilities = torch.from_numpy(logits).double().softmax(-1).mean(0).numpy()
        return float(normalized_entropy(probabilities).mean())

    target = uncertainty(0.0, None)
    before, excess = 0.0, uncertainty(0.0) - target
    if excess == 0:
        return 1.0
    now = -math.copysign(math.log(2), excess) / 2
    for _ in range(_STEPS):  # the secant method: more noise is more uncertainty
        excess_now = uncertainty(now) - target
        if excess_now == excess:
            break
        step = excess_now * (now - before) / (excess_now - excess)
        before, excess, now = now, excess_now, float(np.clip(now - step, -_RANGE, _RANGE))
    return math.exp(now)
