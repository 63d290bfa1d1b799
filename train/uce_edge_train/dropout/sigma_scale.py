"""Noise scale of factored sigma after training with exact sigma.

Exact sigma is large where a layer's output is large, factored sigma is spread more evenly over the outputs: the same
variance does more harm there. One factor on alpha = p / (1 - p) of all layers repairs that on average.
"""

import math

import numpy as np
import torch
from torch import nn

from uce_edge._util.progress import progress
from uce_edge.contract import Sigma
from uce_edge.metadata import ImageSpec
from uce_edge.metrics import normalized_entropy
from uce_edge_export.check.parity_gate import FloatArray, Pixels, Reference
from uce_edge_export.noise.sites import Site
from uce_edge_train import torch_graph
from uce_edge_train.dropout.gaussian_layers import computing_sigma

IMAGES = 128
_PASSES, _STEPS = 10, 3
_AT_ONCE = 4  # images that share noise, which is dear to draw
_PIXELS = 2**18  # of one call of the reference, at most
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
            logits = _stochastic_logits(reference, sites, images[:IMAGES], _PASSES)  # with the same noise every time
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


def _stochastic_logits(reference: Reference, sites: list[Site], images: Pixels, passes: int) -> FloatArray:
    """Exact logits [passes, images, classes] under noise in some layers."""
    rng = np.random.default_rng(0)
    step = max(1, _PIXELS // (_AT_ONCE * images.shape[1] * images.shape[2]))
    parts = []
    with progress("exact passes", passes * len(images), unit="images") as advance:
        for start in range(0, len(images), _AT_ONCE):
            some, drawn = images[start : start + _AT_ONCE], []
            for first in range(0, passes, step):
                count = min(step, passes - first)
                noises = [rng.standard_normal((count, site.size), np.float32) for site in sites]
                drawn.append(reference(some, noises))
                advance(count * len(some))
            parts.append(np.concatenate(drawn))
    return np.concatenate(parts, axis=1)
