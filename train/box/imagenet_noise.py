"""Does noise in the last layer of EfficientNet-Lite0 pay? Cross-validated NLL on the photos that fit."""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from recipes import PHOTOS, PLAIN
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

from uce_edge.datasets import labelled
from uce_edge.runtime.model import Model
from uce_edge_export.graph.weight_layers import weight_of
from uce_edge_export.publish.draft import graph_of
from uce_edge_export.transform.feature_extraction import emit_all_features, feature_session

_RATES = (0.02, 0.1, 0.3)
_PASSES = 8

Floats = npt.NDArray[np.float32]


def measure_noise() -> None:
    """Print the NLL of every rate, less that without noise.

    Temperature and draws are fitted on one half of the photos and judged on the other, both ways. For features x,
    Gaussian dropout of rate p gives logit c the variance p/(1-p) sum_k W_ck^2 x_k^2, independently of other logits.
    """
    model = Model(PLAIN, "cpu", spin=False)
    photos = labelled.load(str(PHOTOS / "fit.csv"), model.metadata.image, model.classes)
    graph = graph_of(model)
    features, logits = feature_session(graph, emit_all_features, logits=True)(photos.images)
    variances = features**2 @ _last_weights(graph, features.shape[1]) ** 2
    normals = np.random.default_rng(0).standard_normal((_PASSES, *variances.shape), np.float32)
    plain = _losses(logits, photos.labels)  # [1, photos, classes]
    print(f"without noise: NLL {plain.mean():.4f}")
    for rate in _RATES:
        gaps = _losses(logits + np.sqrt(rate / (1 - rate) * variances) * normals, photos.labels) - plain
        print(f"p = {rate}: {gaps.mean():+.4f}, standard error {gaps.std() / len(gaps) ** 0.5:.4f}")


def _last_weights(model: ir.Model, size: int) -> Floats:
    operands = [operand[0] for node in model.graph if (operand := weight_of(node)) is not None]
    weights: Floats = operands[-1].const_value.numpy()
    return weights if weights.shape[0] == size else weights.T


def _losses(passes: Floats, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The loss of every photo, with the temperature of the other half."""
    order, losses = np.random.default_rng(0).permutation(len(labels)), np.empty(len(labels))
    halves = order[::2], order[1::2]
    for fitting, judged in (halves, halves[::-1]):
        found = minimize_scalar(
            lambda t, rows=fitting: _nll(passes[:, rows], labels[rows], t).mean(), bounds=(0.4, 1.4), method="bounded",
            options={"xatol": 0.01},
        )  # fmt: skip
        losses[judged] = _nll(passes[:, judged], labels[judged], found.x)
    return losses


def _nll(passes: Floats, labels: npt.NDArray[np.int64], temperature: float) -> npt.NDArray[np.float64]:
    chosen = log_softmax(passes / np.float32(temperature), -1)[:, np.arange(len(labels)), labels]
    losses: npt.NDArray[np.float64] = np.log(len(passes)) - logsumexp(chosen, axis=0)
    return losses
