"""Last-layer Laplace in the graph: one network pass, then draws.

What the numbers mean, and how they are fitted, is in `uce_edge.calibration.laplace_posterior`. The posterior is put on
a deterministic contract file of any precision. Images are columns in the products with the features, as in
`novelty_score`.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge import contract
from uce_edge.calibration import conformal, laplace_posterior
from uce_edge.calibration.label_sets import SetPromise
from uce_edge.calibration.laplace_posterior import DRAWS, Laplace, LaplaceError
from uce_edge.contract import Inference, NoiseKind, Posterior, PriorFrom
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError
from uce_edge.metadata import LaplaceFit, Metadata
from uce_edge.rejection import guarantee
from uce_edge.rejection.promises import Promise
from uce_edge.runtime.model import Model
from uce_edge_export.check import parity_gate
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.novelty_score import MOST, detach
from uce_edge_export.graph.weight_layers import outputs_first, product_scale
from uce_edge_export.noise import noise_table
from uce_edge_export.publish.draft import Draft, graph_of
from uce_edge_export.recalibration import replace_head
from uce_edge_export.transform.baked_seeds import bake_seeds
from uce_edge_export.transform.feature_extraction import emit_all_features, emit_features, probe
from uce_edge_export.transform.noise_free import Features, find_features
from uce_edge_export.transform.simplification import infer_shapes

CURVATURE_SHARE = 1 / 3
"""Share of the images of a third-party file for the curvature; the others calibrate it."""
_CURVED = 10_000  # training images whose curvature stands for that of all
_SEARCHED = 2**24  # logits that one prior precision is tried on, at most
_LINEAR = 0.02  # of the logits' spread: how far they may be from a linear function of the features
_COPIES = 4  # of the logits of one draw: normals, spread, logits, probabilities

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Drawn:
    """A posterior for a deterministic file, and its draws."""

    posterior: Laplace
    fit: LaplaceFit
    samples: int = DRAWS
    noise: NoiseKind = NoiseKind.TABLE


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Inputs, outputs and weights of the last layer."""

    features: FloatArray
    """[images, features]."""
    logits: FloatArray
    """[images, classes]."""
    weights: npt.NDArray[np.float64]
    """[classes, features + 1], the bias last."""


def evaluate(model: ir.Model, images: npt.NDArray[Any]) -> Evaluated:
    """Compute features and logits; require logits linear in the features.

    Args:
        model: The model; it is left as it is.
        images: As it takes them.
    """
    (operand,) = find_features(infer_shapes(model).graph)
    if operand.size > MOST:
        raise LaplaceError(
            f"The last weight layer takes {operand.size} features, and its posterior can have {MOST} at most: the file "
            f"would grow by {4 * operand.size**2 / 1e6:.0f} MB. Use it without draws: --inference deterministic",
            "laplace.features",
        )
    features, (logits,) = probe(model, images, emit_all_features, logits=True)
    weights = _matrix(operand)
    if weights.shape == (logits.shape[-1], operand.size):
        rest = logits - features.astype(np.float64) @ weights.T
        shift = rest.mean(axis=1, keepdims=True)  # a log-softmax only shifts the logits of an image
        off = np.abs(rest - shift - (rest - shift).mean(axis=0)).max()
        if off <= _LINEAR * logits.std():
            return Evaluated(features, logits, np.column_stack([weights, rest.mean(axis=0)]))
    raise LaplaceError(
        f"The logits are not a linear function of what the last weight layer ({operand.layer.name}) takes, so its "
        "weights have no Gaussian posterior of this form. Use the network without draws: --inference deterministic",
        "laplace.nonlinear",
    )


def fit(
    model: ir.Model, curved_on: Split, held_out: Split, prior: PriorFrom, samples: int = DRAWS
) -> tuple[Laplace, LaplaceFit]:
    """The posterior of a network.

    Args:
        model: A deterministic contract model of float32.
        curved_on: The images of the curvature; of many, 10,000 stand for all.
        held_out: Labelled images that the network has not seen.
        prior: How its precision is chosen: by the images of the curvature, if the network was trained on them, or by
            the held-out ones.
        samples: The draws of the file.

    Returns:
        The posterior, and its description.
    """
    seen = evaluate(model, curved_on.at_most(_CURVED).images)
    curved = laplace_posterior.curvature(seen.features, seen.logits, images=len(curved_on))
    classes = seen.logits.shape[1]
    chosen = held_out.at_most(max(100, _SEARCHED // (samples * classes)))
    other = evaluate(model, chosen.images)
    normals = noise_table.layer_noise(contract.pass_seeds(samples, 0), noise_table.Plan((classes - 1,)))[0]
    trial = laplace_posterior.Trial(curved, other.features, other.logits, chosen.labels, normals)
    if prior is PriorFrom.MARGINAL_LIKELIHOOD:
        tried = trial(laplace_posterior.by_marginal_likelihood(curved, seen.weights))
    else:
        tried = laplace_posterior.by_held_out_nll(trial)
    described = LaplaceFit(tried.precision, prior, len(curved_on), round(tried.nll, 6), round(tried.nll_without, 6))
    return Laplace(curved, tried.precision), described


def parts(data: Split, *, promised: bool) -> tuple[Split, Split, Split]:
    """Images for the curvature, for the prior, and for `recalibrate`."""
    curved, rest = data.parted(CURVATURE_SHARE)
    return curved, rest.halves()[0] if promised else rest, rest


def give(
    source: Model,
    data: Split,
    promise: Promise | None = None,
    samples: int = DRAWS,
    noise: NoiseKind = NoiseKind.TABLE,
    *,
    bake: bool = False,
    sets: SetPromise | None = None,
) -> tuple[Draft, Split, LaplaceFit]:
    """Give a deterministic file a posterior, not yet calibrated.

    Args:
        source: The file.
        data: Labelled images.
        promise: The promise that some of them will prove, if any.
        samples: Draws.
        noise: The source of the draws.
        bake: Make the seeds a constant.
        sets: The promise of the prediction sets that some of them will fit, if any.

    Returns:
        The new file, the images that are left for `recalibrate`, and the description of the posterior.
    """
    metadata, name = source.metadata, source.path
    if metadata.inference is not Inference.DETERMINISTIC:
        raise UsageError(
            f"{name} has noise (its inference is {metadata.inference}), but a Laplace posterior needs a file without "
            "noise. Export one with: --inference deterministic",
            "laplace.noisy-file",
        )
    if metadata.members > 1:
        raise UsageError(
            f"{name} is an ensemble, but a Laplace posterior needs a single network. Give one member.",
            "laplace.ensemble",
        )
    curved_on, held_out, rest = parts(data, promised=promise is not None or sets is not None)
    if sets is not None:
        conformal.check_possible(rest.halves()[1].one_per_group().labels, sets, metadata.classes, halved=True)
    if promise is not None:
        counted = len(rest.one_per_group()) - len(held_out.one_per_group())
        guarantee.check_possible(counted, promise, len(data), grouped=data.groups is not None)
    model = graph_of(source)
    posterior, fitted = fit(model, curved_on, held_out, PriorFrom.HELD_OUT_NLL, samples)
    draft = Draft.of(model, metadata)
    add(draft, Drawn(posterior, fitted, samples, noise), data.images[:3])
    if bake:
        bake_seeds(draft)
    return draft, rest, fitted


def add(draft: Draft, drawn: Drawn, images: npt.NDArray[Any]) -> parity_gate.Parity:
    """Add a posterior to a draft, and check it.

    Args:
        draft: The file, in any precision.
        drawn: The posterior.
        images: At least two images, for the comparison.
    """
    model, plain = draft.graph(), draft.metadata

    def reference(batch: parity_gate.Pixels, noises: list[FloatArray] | None) -> FloatArray:
        assert noises is not None
        features, (logits,) = probe(model, batch, emit_all_features, logits=True)
        return drawn.posterior.draw(logits, features, noises[0])

    built, metadata = attach(model, plain, drawn)
    fed = ir.to_proto(attach(model, plain, replace(drawn, noise=NoiseKind.INPUT))[0]).SerializeToString()
    draft.rewrite(built, metadata)
    return parity_gate.check(draft, images, reference, [len(metadata.classes) - 1], fed)


def attach(model: ir.Model, metadata: Metadata, drawn: Drawn) -> tuple[ir.Model, Metadata]:
    """A model that draws its logits.

    Args:
        model: A deterministic contract model; it is left as it is.
        metadata: Its metadata.
        drawn: The posterior.

    Returns:
        The model, without novelty and what was promised of one pass, and its metadata.
    """
    model, metadata = detach(model, metadata)
    model = infer_shapes(model)
    graph = model.graph
    (operand,) = find_features(graph)
    (output,) = (value for value in graph.outputs if value.name == contract.LOGITS)
    last = output.producer()  # an Identity of what the network computes
    assert last is not None
    mean = last.inputs[0]
    assert mean is not None
    g = Builder(taken=graph.initializers)
    seeds = ir.val(contract.SEEDS, ir.DataType.INT32, ("samples",))
    graph.inputs.append(seeds)
    deviations = _emit_deviations(g, emit_features(g, operand), drawn.posterior)
    normals = _emit_normals(g, drawn, graph, seeds, deviations)
    classes = g.constant(drawn.posterior.curvature.class_directions.T.astype(np.float32), "laplace.classes")
    last.replace_input_with(0, g.Add(mean, g.MatMul(g.Mul(deviations, normals), classes)))
    g.append_to(graph)
    shares, rank = drawn.posterior.shares, classes.const_value.size if classes.const_value else 0
    costs = metadata.costs and replace(
        metadata.costs,
        macs_once=metadata.costs.macs_once + len(shares) * operand.size + shares.size,
        macs_per_pass=rank,
        bytes_per_draw=_COPIES * 4 * len(metadata.classes),
    )
    metadata = replace(
        metadata.without_promises(),  # what is known of the error holds for one pass
        inference=Inference.MC,
        posterior=Posterior.LAPLACE,
        laplace=drawn.fit,
        noise=drawn.noise.written,
        samples=drawn.samples,
        costs=costs,
    )
    return replace_head(_without_shapes(model), metadata), metadata


def _emit_deviations(g: Builder, features: ir.Value, posterior: Laplace) -> ir.Value:
    """sqrt(v), [1, batch, classes - 1]."""
    directions = posterior.curvature.directions.astype(np.float32)
    column = g.Unsqueeze(features, g.constant(np.array([2])))
    turned = g.MatMul(g.constant(np.ascontiguousarray(directions[:-1].T), "laplace.directions"), column)
    turned = g.Add(turned, g.constant(directions[-1][:, None], "laplace.bias"))
    shares = g.constant(np.ascontiguousarray(posterior.shares.T, np.float32), "laplace.shares")
    return g.Transpose(g.Sqrt(g.MatMul(shares, g.Mul(turned, turned))), perm=[2, 0, 1])


def _emit_normals(g: Builder, drawn: Drawn, graph: ir.Graph, seeds: ir.Value, deviations: ir.Value) -> ir.Value:
    """Normals [samples, 1, classes - 1], shared by the images."""
    rank, one = len(drawn.posterior.curvature.class_scales), g.constant(np.array([1]))
    if drawn.noise is NoiseKind.RANDN:
        shape = g.Concat(g.Shape(seeds, start=0, end=1), one, one, axis=0)
        return g.RandomNormalLike(g.Expand(deviations, shape), dtype=1)
    if drawn.noise is NoiseKind.INPUT:
        flat = ir.val("noise.0", ir.DataType.FLOAT, ("samples", rank))
        graph.inputs.append(flat)
    else:
        (flat,) = noise_table.emit(g, seeds, one, noise_table.Plan((rank,)), [False])
    return g.Reshape(flat, g.constant(np.array([-1, 1, rank])))


def _without_shapes(model: ir.Model) -> ir.Model:
    """Remove inferred shapes."""
    for node in model.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = value.type = None
    return model


def _matrix(operand: Features) -> npt.NDArray[np.float64]:
    """Weights [classes, features] of the last layer."""
    layer = operand.layer
    position = [*layer.inputs].index(operand.value)
    constant = layer.inputs[1 - position]
    if constant is None or constant.const_value is None:
        raise LaplaceError(
            f"The weights of the last layer ({layer.name}) are not in the file as float numbers. Give the posterior to "
            "the file of float32: export it without --precision int8",
            "laplace.weights",
        )
    weights = constant.const_value.numpy().astype(np.float64)
    if layer.op_type == "Conv":
        return weights.reshape(weights.shape[:2]) if weights.shape[2:] == (1,) * (weights.ndim - 2) else weights
    return product_scale(layer) * (weights if outputs_first(layer) else weights.T)
