"""Calibrate a moments graph: spread of logits, then the map.

Units are correlated, which mean and variance do not know: neighbouring positions share noise, so that a pooled
feature varies several times more than independent positions would. One factor on the variance of what is drawn repairs
that on average. It is the one at which the logits of the calibration images spread as much as those of exact passes.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge._util.progress import progress
from uce_edge.calibration.logits import logits_of
from uce_edge.calibration.maps import fit_map
from uce_edge.contract import LOGITS, Inference, Method, NoiseKind
from uce_edge.datasets.splits import Split
from uce_edge.metadata import Calibration, Metadata
from uce_edge.runtime.model import Model
from uce_edge_export.graph import assembly
from uce_edge_export.noise.sites import Site

SAMPLES = 100  # drawing one more costs a small matrix product, not a pass
_IMAGES, _PASSES = 200, 8  # exact passes that the spread is compared with
_AT_ONCE = 8  # images that share noise
SCALES = (1.0, 4.0)
"""Where the spread is measured: two points of a straight line."""
_RANGE = (0.1, 100.0)
_LEAST_SHARE = 0.1  # of the spread that depends on the scale; below, the error of the passes would decide it


def fit(
    classifier: assembly.Classifier,
    sites: list[Site],
    metadata: Metadata,
    data: Split,
    method: Method,
    sample_from: str | None = None,
) -> Calibration:
    """Fit variance scale and calibration map of a moments graph.

    Args:
        classifier: The network without noise.
        sites: Its noisy layers.
        metadata: Of the file; its `samples` are drawn.
        data: Calibration images.
        method: The calibration map.
        sample_from: As in `assembly.contract_model`.
    """
    with tempfile.TemporaryDirectory() as folder:

        def opened(described: Metadata, sample_from: str | None = None) -> Model:
            path = Path(folder) / "unfitted.onnx"
            ir.save(assembly.contract_model(classifier, sites, described, sample_from=sample_from)[0], path)
            return Model(path, "cpu", spin=False)

        def built(scale: float) -> Model:
            unfitted = Calibration(parameters={"variance_scale": [scale]})
            return opened(replace(metadata, calibration=unfitted, inference=Inference.MOMENTS), sample_from)

        def exact() -> Model:
            described = replace(metadata, calibration=Calibration(), inference=Inference.MC, noise=NoiseKind.TABLE)
            return opened(described)

        few = data.at_most(_IMAGES).images
        scale = scale_for(
            lambda: spread(passes_of(exact(), few)),
            lambda scale: spread(built(scale).logits(few, SAMPLES, 0)),
        )
        final = built(scale)
        fitted = fit_map(method, logits_of(final, data.images, metadata.samples, 0), data.labels, seed=0)
    return replace(fitted, parameters=fitted.parameters | {"variance_scale": [scale]})


def scale_for(target: Callable[[], float], spread_at: Callable[[float], float]) -> float:
    """The variance scale at which logits spread as much as exact passes.

    Args:
        target: The spread of exact passes; not computed where the scale hardly matters, as behind a noisy tail.
        spread_at: The spread of a file with some scale.
    """
    low, high = map(spread_at, SCALES)
    slope = (high - low) / (SCALES[1] - SCALES[0])
    if slope < _LEAST_SHARE * low:  # nearly all noise is in what is drawn later
        return SCALES[0]
    return float(np.clip(SCALES[0] + (target() - low) / slope, *_RANGE))


def passes_of(model: Model, images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Exact logits [passes, images, classes]; few images share noise."""
    parts = []
    with progress("exact passes", _PASSES * len(images), unit="images") as advance:
        for start in range(0, len(images), _AT_ONCE):
            some, seeds = images[start : start + _AT_ONCE], np.arange(_PASSES, dtype=np.int32) + _PASSES * start
            parts.append(model.outputs(some, seeds, [LOGITS])[LOGITS])
            advance(_PASSES * len(some))
    return np.concatenate(parts, axis=1)


def spread(logits: npt.NDArray[Any]) -> float:
    """Variance over passes of what the softmax sees."""
    centred = logits.astype(np.float64) - logits.mean(axis=-1, keepdims=True)
    return float(centred.var(axis=0, ddof=1).mean())
