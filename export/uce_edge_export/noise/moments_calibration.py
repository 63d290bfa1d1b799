"""Calibrate a moments graph: spread of logits, then the map.

Units are correlated, which mean and variance do not know: neighbouring positions share noise, so that a pooled
feature varies several times more than independent positions would. One factor on the variance of what is drawn repairs
that on average. It is the one at which the logits of the calibration images spread as much as those of exact passes.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge._util.progress import progress
from uce_edge.calibration.logits import logits_of
from uce_edge.calibration.maps import fit_map
from uce_edge.contract import Inference, Method
from uce_edge.datasets.splits import Split
from uce_edge.metadata import Calibration, Metadata
from uce_edge.runtime.model import Model
from uce_edge_export.check import parity_gate
from uce_edge_export.graph import assembly
from uce_edge_export.noise.sites import Site

SAMPLES = 100  # drawing one more costs a small matrix product, not a pass
_IMAGES, _PASSES = 200, 8  # exact passes that the spread is compared with
_AT_ONCE = 4  # images that share noise, which is dear to draw
_PIXELS = 2**18  # of one call of the reference, at most
_SCALES = (1.0, 4.0)  # two points of a straight line
_RANGE = (0.1, 100.0)


def fit(
    classifier: assembly.Classifier,
    sites: list[Site],
    metadata: Metadata,
    reference: parity_gate.Reference,
    data: Split,
    method: Method,
    sample_from: str | None = None,
) -> Calibration:
    """Fit variance scale and calibration map of a moments graph.

    Args:
        classifier: The network without noise.
        sites: Its noisy layers.
        metadata: Of the file; its `samples` are drawn.
        reference: The network with noise, computed independently.
        data: Calibration images.
        method: The calibration map.
        sample_from: As in `assembly.contract_model`.
    """
    with tempfile.TemporaryDirectory() as folder:

        def built(scale: float) -> Model:
            unfitted = Calibration(parameters={"variance_scale": [scale]})
            described = replace(metadata, calibration=unfitted, inference=Inference.MOMENTS)
            path = Path(folder) / f"{scale}.onnx"
            ir.save(assembly.contract_model(classifier, sites, described, sample_from=sample_from)[0], path)
            return Model(path, "cpu", spin=False)

        few = data.at_most(_IMAGES).images
        low, high = (_spread(built(scale).logits(few, SAMPLES, 0)) for scale in _SCALES)
        scale, slope = _SCALES[0], (high - low) / (_SCALES[1] - _SCALES[0])
        if slope > 1e-6 * low:  # otherwise nothing is drawn: all noise is behind the cut
            target = _spread(stochastic_logits(reference, sites, few, _PASSES))
            scale = float(np.clip(scale + (target - low) / slope, *_RANGE))
        final = built(scale)
        fitted = fit_map(method, logits_of(final, data.images, metadata.samples, 0), data.labels, seed=0)
    return replace(fitted, parameters=fitted.parameters | {"variance_scale": [scale]})


def stochastic_logits(
    reference: parity_gate.Reference, sites: list[Site], images: npt.NDArray[Any], passes: int
) -> npt.NDArray[np.float32]:
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


def _spread(logits: npt.NDArray[Any]) -> float:
    """Variance over passes of what the softmax sees."""
    centred = logits.astype(np.float64) - logits.mean(axis=-1, keepdims=True)
    return float(centred.var(axis=0, ddof=1).mean())
