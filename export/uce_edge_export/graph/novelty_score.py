"""Novelty in the graph: feature distance and p-value.

What the numbers mean, and how they are fitted, is in `uce_edge.calibration.novelty`. Images are columns here, so that
every product is one of a constant with one image: an answer does not depend on how many images a call has. The score of
an ensemble is the sum of its members' distances.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge._util.progress import working
from uce_edge.calibration import novelty
from uce_edge.calibration.novelty import Distance, NoveltyError, Reference
from uce_edge.contract import NOVELTY, NOVELTY_SCORE
from uce_edge.datasets.splits import ONE_EACH, Split
from uce_edge.errors import UceEdgeError
from uce_edge.metadata import Metadata
from uce_edge.rejection.promises import NoveltyGuarantee, NoveltyPromise
from uce_edge.rejection.rule import RejectRule
from uce_edge_export.check import parity_gate
from uce_edge_export.graph import decision
from uce_edge_export.graph.assembly import checked
from uce_edge_export.graph.builder import Builder
from uce_edge_export.publish.draft import Draft
from uce_edge_export.transform.feature_extraction import emit_all_features, emit_features, feature_session, probe
from uce_edge_export.transform.noise_free import Features, find_features
from uce_edge_export.transform.simplification import infer_shapes

OUTPUTS = (NOVELTY, NOVELTY_SCORE)
MOST = novelty.MOST_FEATURES
_MOST_FITTED = 5000  # training images: more hardly change the covariance, and their features take time
_TINY = np.float32(1e-12)
_TOLERANCE = 1e-4  # relative, of a score to the same in double precision


@dataclass(frozen=True, eq=False)
class Fitted:
    """The fitted numbers of the nodes."""

    distances: tuple[Distance, ...]
    """Of every member, in its own features; their sum is the score."""
    reference: Reference
    largest_difference: float
    """Of a score in the graph to the same in double precision, relative."""


def fit(model: ir.Model, data: Split, layers: Sequence[int] = (), training: Split | None = None) -> Fitted:
    """Fit the distance on some images, score others.

    Args:
        model: A contract model as it ships; it is left as it is.
        data: Labelled images, of which none may serve a promise about the error.
        layers: The layers whose inputs are the features, as in `find_features`.
        training: As in `parts`.
    """
    fitting, scoring = parts(data, training)
    _check_size(model, layers)
    # Block by block, each part as if alone: rounding may depend on the size of a block.
    run = feature_session(model, emit_all_features, layers=layers)
    distances = tuple(novelty.fit(values, fitting.labels) for values in run(fitting.images))

    def emit(g: Builder, operands: list[Features]) -> list[ir.Value]:
        score = g.Unsqueeze(_emit_sum(g, operands, distances), g.constant(np.array([1])))
        return [score, *emit_all_features(g, operands)]

    scored, *features = probe(model, scoring.images, emit, layers=layers)
    scores = scored[:, 0]
    each = zip(distances, features, strict=True)
    exact = np.sum([distance(values) for distance, values in each], axis=0)
    difference = float((np.abs(scores - exact) / np.maximum(exact, _TINY)).max())
    if not difference <= _TOLERANCE:  # NaN fails, too
        raise NoveltyError(
            f"Scores of the graph differ from those in double precision by {difference:.2g} of their size (allowed: "
            f"{_TOLERANCE:g}). Calibrate with more images, or with --no-novelty.",
            "novelty.inexact",
        )
    return Fitted(distances, Reference.of(scores), difference)


def parts(data: Split, training: Split | None = None) -> tuple[Split, Split]:
    """Images that fit the distance, and reference images by group.

    Args:
        data: Labelled images that nothing was trained on.
        training: Images that the network was trained on after the layers of the features were frozen. They fit the
            distance, and all of `data` is the reference. Without them, halves of `data` are both.
    """
    fitting, scoring = data.halves() if training is None else (training.at_most(_MOST_FITTED), data)
    return fitting, scoring.one_per_group()


def add(draft: Draft, data: Split, promise: NoveltyPromise, training: Split | None = None) -> RejectRule | NoveltyError:
    """Add novelty to a draft, and find its cutoff.

    Args:
        draft: The file as it ships; its metadata names the layers of the features.
        data: Labelled images, of which none may serve a promise about the error.
        promise: The promise that the cutoff keeps.
        training: As in `parts`.

    Returns:
        A rule with the cutoff alone; or the reason for none, if no level was requested: the draft is unchanged.

    Raises:
        UceEdgeError: The images do not allow the requested level, or the network has no features.
    """
    model, reference = draft.graph(), parts(data, training)[1]
    try:
        cutoff = novelty.cutoff_for(len(reference), promise, grouped=data.groups is not None)  # before any slow work
        with working("fitting the novelty gate"):
            fitted = fit(model, data, draft.metadata.novelty_layers, training)
    except UceEdgeError as error:
        if promise.level is not None:
            raise
        return NoveltyError(str(error) if data.groups is None else f"{error} {ONE_EACH}", "novelty.unfit")
    draft.rewrite(*attach(model, draft.metadata, fitted))
    parity_gate.check_again(draft, data.images[:3])
    guarantee = NoveltyGuarantee(
        cutoff.level, cutoff.confidence, cutoff.images, reference.sha256(), data.groups is not None
    )
    return RejectRule(cutoff=cutoff.cutoff, gate=guarantee)


def attach(model: ir.Model, metadata: Metadata, fitted: Fitted) -> tuple[ir.Model, Metadata]:
    """Add or replace the outputs `novelty` and `novelty_score`.

    Args:
        model: A contract model; it is left as it is.
        metadata: Its metadata, with the layers of the features.
        fitted: The distance and its reference.

    Returns:
        The model, and its metadata with outputs and costs brought up to date.
    """
    model, metadata = detach(model, metadata)
    model = infer_shapes(model)
    graph = model.graph
    operands = find_features(graph, metadata.novelty_layers)
    g = Builder(taken=graph.initializers)
    score = _emit_sum(g, operands, fitted.distances)
    outputs = {NOVELTY: _emit_p(g, score, fitted.reference), NOVELTY_SCORE: score}
    for name in OUTPUTS:
        value = outputs[name]
        value.name, value.shape, value.dtype = name, ir.Shape(["batch"]), ir.DataType.FLOAT
    decision.attach_novelty(graph, g, outputs[NOVELTY])
    g.append_to(graph)
    graph.outputs.extend(outputs[name] for name in OUTPUTS)
    for node in graph:  # inferred shapes are not stored
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = value.type = None
    price = sum(operand.multiplications for operand in operands)
    price += sum(distance.multiplications for distance in fitted.distances)
    metadata = replace(metadata, outputs=(*metadata.outputs, *OUTPUTS))
    return checked(model), _dearer(metadata, price)


def detach(model: ir.Model, metadata: Metadata) -> tuple[ir.Model, Metadata]:
    """Remove novelty from a copied graph and its metadata."""
    copy = ir.from_proto(ir.to_proto(model))
    graph = copy.graph
    constants = [
        (value.const_value, 2 if name.endswith(".directions") else 1)
        for name, value in graph.initializers.items()
        if name.startswith("novelty.") and name.endswith((".means", ".whitening", ".directions"))
    ]
    copy, metadata = decision.upgrade(copy, metadata)
    decision.detach_novelty(graph)
    graph.outputs[:] = [value for value in graph.outputs if value.name not in OUTPUTS]
    checked(copy)
    if not set(OUTPUTS).intersection(metadata.outputs):
        return copy, metadata
    metadata = metadata.without_promises()
    others = tuple(name for name in metadata.outputs if name not in OUTPUTS)
    price = sum(times * constant.size for constant, times in constants if constant is not None)
    operands = find_features(infer_shapes(copy).graph, metadata.novelty_layers)
    price += sum(operand.multiplications for operand in operands)
    return copy, _dearer(replace(metadata, outputs=others), -price)


def _dearer(metadata: Metadata, price: int) -> Metadata:
    costs = metadata.costs
    return metadata if costs is None else replace(metadata, costs=replace(costs, macs_once=costs.macs_once + price))


def _check_size(model: ir.Model, layers: Sequence[int]) -> None:
    size = max(operand.size for operand in find_features(infer_shapes(model).graph, layers))
    if size > MOST:
        raise NoveltyError(
            f"The novelty gate's layer takes {size} features, and novelty can use {MOST} at most. Choose another one "
            "by --novelty-features, or calibrate with --no-novelty.",
            "novelty.features",
        )


def _emit_sum(g: Builder, operands: Sequence[Features], distances: Sequence[Distance]) -> ir.Value:
    """The sum of the members' scores."""
    prefixes = ["novelty"] if len(distances) == 1 else [f"novelty.{number}" for number in range(len(distances))]
    scores = [_emit_score(g, *member) for member in zip(operands, distances, prefixes, strict=True)]
    return functools.reduce(g.Add, scores)


def _emit_score(g: Builder, operand: Features, distance: Distance, prefix: str) -> ir.Value:
    """|z - w_c|^2 of the whitened direction and its nearest mean."""

    def transposed(x: ir.Value) -> ir.Value:
        return g.Transpose(x, perm=[0, 2, 1])

    def constant(values: npt.NDArray[Any], name: str) -> ir.Value:
        return g.constant(np.ascontiguousarray(values, np.float32), f"{prefix}.{name}")

    def half(values: npt.NDArray[Any], name: str) -> ir.Value:
        stored = g.constant(np.ascontiguousarray(values, np.float16), f"{prefix}.{name}")
        return g.Cast(stored, to=ir.DataType.FLOAT)

    column = g.Unsqueeze(emit_features(g, operand), g.constant(np.array([2])))
    length = g.Sqrt(g.MatMul(transposed(column), column))
    direction = g.Div(column, g.Max(length, g.constant(_TINY)))
    subspace, outside = distance.subspace, None
    if subspace is None:
        z = g.MatMul(constant(distance.whitening.T, "whitening"), direction)
        means = constant(distance.means, "means")
    else:
        centred = g.Sub(direction, constant(subspace.centre[:, None], "centre"))
        directions = half(distance.whitening.T, "directions")
        y = g.MatMul(directions, centred)
        rest = g.Sub(centred, g.MatMul(g.Transpose(directions, perm=[1, 0]), y))
        outside = g.Mul(g.MatMul(transposed(rest), rest), g.constant(np.float32(subspace.rest)))
        z = g.Mul(y, constant(subspace.scales[:, None], "scales"))
        means = half(distance.means, "means")
    # |z - w|^2 is least where z'w - |w|^2 / 2 is largest; the difference itself is rounded less.
    half_squares = constant((distance.means**2).sum(axis=1, keepdims=True) / 2, "half_squares")
    nearest = g.ArgMax(g.Sub(g.MatMul(means, z), half_squares), axis=1, keepdims=0)
    difference = g.Sub(transposed(z), g.Gather(means, nearest, axis=0))
    squares = g.MatMul(difference, transposed(difference))
    return g.Reshape(squares if outside is None else g.Add(squares, outside), g.constant(np.array([-1])))


def _emit_p(g: Builder, score: ir.Value, reference: Reference) -> ir.Value:
    """p-value by the reference scores; integer weights sum exactly."""
    kept = g.constant(reference.scores, "novelty.scores")
    not_below = g.Cast(g.LessOrEqual(g.Unsqueeze(score, g.constant(np.array([1]))), kept), to=ir.DataType.FLOAT)
    counted = g.MatMul(not_below, g.constant(reference.weights[:, None], "novelty.weights"))
    return g.Reshape(g.Mul(counted, g.constant(reference.share)), g.constant(np.array([-1])))
