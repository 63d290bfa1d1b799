"""Choose the features of a novelty gate by images that are made by rule.

Only the images that fit the gate and the far images of `CHOICE` are looked at. The reference images are not, so the
promise of the gate stays valid.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from uce_edge._util.progress import working
from uce_edge.calibration import novelty
from uce_edge.calibration.novelty import NoveltyError
from uce_edge.calibration.novelty_features import FeatureChoice
from uce_edge.datasets import synthetic_ood
from uce_edge.datasets.splits import Split
from uce_edge.metadata import ImageSpec
from uce_edge.rejection.promises import SPREAD_FEATURES
from uce_edge_export.transform.feature_extraction import emit_all_features, feature_session
from uce_edge_export.transform.noise_free import find_features, noise_free_layers
from uce_edge_export.transform.simplification import infer_shapes

_EACH = 25  # far images of every kind
_REJECTED = 0.05  # of own images
_GAIN = 0.02  # of the far images: less is no reason to look at more than the last layer


class Chosen(NamedTuple):
    """The layers, and what speaks for them."""

    layers: tuple[int, ...]
    accepted: float
    """The share of far images that they accept, where 5 % of the own images are rejected."""
    accepted_by_last: float
    """The same for the last layer."""


def choose(model: ir.Model, fitting: Split, spec: ImageSpec) -> Chosen | None:
    """Choose between the last layer and several ones.

    Args:
        model: A contract model of one network; it is left as it is.
        fitting: The images that will fit the gate.
        spec: The image that it takes.

    Returns:
        None if the images do not allow a choice.
    """
    graph = infer_shapes(model).graph
    layers = FeatureChoice(SPREAD_FEATURES).layers(noise_free_layers(graph))
    fit_on, own = fitting.halves()
    if not layers or len(fit_on) <= novelty.FEWEST:
        return None
    if max(features.size for features in find_features(graph, layers)) > novelty.MOST_FEATURES:
        return None
    run = feature_session(model, emit_all_features, layers=layers)
    far = synthetic_ood.far(spec, synthetic_ood.CHOICE, each=_EACH)
    own_scores, far_scores = [], []
    with working("choosing the layers of the novelty gate"):
        values = [run(images) for images in (fit_on.images, own.images, far.images)]
        for known, inside, outside in zip(*values, strict=True):
            try:
                distance = novelty.fit(known, fit_on.labels)
            except NoveltyError:  # too few images, or features that do not vary
                return None
            own_scores.append(distance(inside))
            far_scores.append(distance(outside))
    last = _accepted(own_scores[-1:], far_scores[-1:])
    several = _accepted(own_scores, far_scores)
    return Chosen(layers, several, last) if several < last - _GAIN else Chosen((), last, last)


def _accepted(own: Sequence[novelty.Floats], far: Sequence[novelty.Floats]) -> float:
    limit = np.quantile(np.sum(own, axis=0), 1 - _REJECTED)
    return float((np.sum(far, axis=0) <= limit).mean())
