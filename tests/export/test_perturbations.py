"""Kinds of noise: the graph and numpy agree on each, files name theirs, and the graph pass takes a new one as it is."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import NormalDist

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from conftest import GOLDEN, Digits
from helpers.nets import Net, wide

from uce_edge import contract
from uce_edge.contract import Inference, NoiseKind, PerturbationKind
from uce_edge.metadata import Metadata
from uce_edge.runtime.model import Model
from uce_edge_export.check.graph_reference import graph_reference
from uce_edge_export.graph import assembly
from uce_edge_export.graph.builder import OPSET, Builder
from uce_edge_export.graph.node_evaluator import Array, evaluate
from uce_edge_export.graph.weight_layers import per_image_shape
from uce_edge_export.noise.moments import Operand, Uncertain, propagate
from uce_edge_export.noise.perturbations import ChannelDropout, FactoredDropout, GaussianDropout, Perturbation
from uce_edge_export.noise.sigma_factors import of_layer, squares_like
from uce_edge_export.noise.sites import Site, sites_by_rule
from uce_edge_export.source import third_party

X = np.random.default_rng(0).standard_normal((3, 6, 5, 5), np.float32)
LAYERS = {
    "Conv": lambda net: net.Conv("image", net.weight(4, 6, 3, 3), net.weight(4), pads=[1, 1, 1, 1]),
    "dilated Conv": lambda net: net.Conv("image", net.weight(4, 6, 2, 3), dilations=[2, 1], pads=[0, 1, 1, 1]),
    "1x1 Conv": lambda net: net.Conv("image", net.weight(4, 6, 1, 1), net.weight(4), strides=[2, 2]),
    "grouped 1x1 Conv": lambda net: net.Conv("image", net.weight(4, 3, 1, 1), group=2, strides=[1, 2]),
    "grouped Conv": lambda net: net.Conv("image", net.weight(4, 3, 3, 3), net.weight(4), group=2, strides=[2, 1]),
    "scaled Gemm": lambda net: net.Gemm(net.Flatten("image"), net.weight(4, 150), net.weight(4), alpha=-0.7, transB=1),
    "MatMul": lambda net: net.MatMul("image", net.weight(5, 2)),
    "weight on the left": lambda net: net.MatMul(net.weight(2, 5), "image"),
}


def layer_of(make: Callable[[Net], str]) -> ir.Node:
    """The last node of a network."""
    net = Net()
    return next(iter(reversed(ir.from_proto(net.model(make(net), shape=("n", *X.shape[1:]))).graph)))


KINDS: dict[str, Callable[[ir.Node], Perturbation]] = {
    "exact": lambda node: GaussianDropout(0.3),
    "factored": lambda node: FactoredDropout(0.3, of_layer(node)),
}
DEPTHWISE = {
    "depthwise Conv": lambda net: net.Conv("image", net.weight(6, 1, 3, 3), net.weight(6), group=6, pads=[1, 1, 1, 1]),
    "strided depthwise Conv": lambda net: net.Conv("image", net.weight(12, 1, 3, 3), group=6, strides=[2, 1]),
}


CONVOLUTIONS = DEPTHWISE | {name: make for name, make in LAYERS.items() if "Conv" in name}


@pytest.mark.parametrize(
    ("layer", "sigma"), [*product(LAYERS, KINDS), *product(DEPTHWISE, ["exact"]), *product(CONVOLUTIONS, ["channel"])]
)
def test_gaussian_dropout_is_the_same_in_the_graph_and_in_numpy(layer: str, sigma: str) -> None:
    node = layer_of((LAYERS | DEPTHWISE)[layer])
    kind = ChannelDropout(0.3, node) if sigma == "channel" else KINDS[sigma](node)
    x = X.reshape(3, -1) if node.op_type == "Gemm" else X
    values = [x if i.const_value is None else i.const_value.numpy() for i in node.inputs if i is not None]
    plain = evaluate(node, values)[0]
    noise = np.random.default_rng(1).standard_normal((3, *kind.normals(plain.shape[1:]))).astype(np.float32)

    g = Builder()
    image, normals = ir.val("x", ir.DataType.FLOAT, x.shape), ir.val("noise", ir.DataType.FLOAT, noise.shape)
    inputs = [image if i.const_value is None else g.constant(i.const_value.numpy()) for i in node.inputs if i]
    y = kind.perturb(g, kind.prepare(g, node, inputs), normals)
    y.name, y.dtype = "y", ir.DataType.FLOAT
    built = ir.Graph([image, normals], [y], nodes=g.nodes, initializers=g.initializers, opset_imports={"": OPSET})
    content = ir.to_proto(ir.Model(built, ir_version=assembly.IR_VERSION)).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    ours = session.run(None, {"x": x, "noise": noise})[0]
    theirs = kind.reference(node, values, plain, noise)
    assert np.allclose(ours, theirs, atol=1e-5)
    assert not np.allclose(ours, plain, atol=0.1)


@pytest.mark.parametrize("layer", LAYERS)
def test_factors_are_the_marginals_of_the_squared_weights(layer: str) -> None:
    node = layer_of(LAYERS[layer])
    weight = next(value.const_value.numpy() for value in node.inputs[:2] if value.const_value is not None)
    ours = squares_like(node, of_layer(node))
    groups = node.attributes["group"].as_int() if "group" in node.attributes else 1
    axis = 0 if node.op_type != "MatMul" else weight.shape.index(2)  # outputs; the MatMuls have 2 of them
    assert ours.shape == weight.shape
    for theirs, mine in zip(np.split(weight.astype(float) ** 2, groups), np.split(ours, groups), strict=True):
        others = tuple(i for i in range(weight.ndim) if i != axis)
        assert np.allclose(mine.sum(axis=others), theirs.sum(axis=others))  # every output keeps its sum
        product = np.ones((1,) * weight.ndim)
        parts = [0, 1, tuple(range(2, weight.ndim))] if weight.ndim > 2 else [0, 1]
        for part in parts:
            kept = {part} if isinstance(part, int) else set(part)
            product = product * theirs.sum(axis=tuple(set(range(weight.ndim)) - kept), keepdims=True)
        assert np.allclose(mine, product / theirs.sum() ** (len(parts) - 1))


def test_what_is_no_product_or_one_already_keeps_its_form() -> None:
    assert of_layer(layer_of(lambda net: net.Conv("image", net.weight(6, 1, 3, 3), group=6))) is None
    assert of_layer(layer_of(lambda net: net.MatMul("image", net.weight(6, 5, 2)))) is None
    assert of_layer(layer_of(lambda net: net.Relu("image"))) is None


# What a file says


def test_a_file_names_the_kind_of_every_noisy_layer(digits: Digits) -> None:
    document = json.loads(digits.model.with_suffix(".json").read_text())
    assert {layer["kind"] for layer in document["layers"]} == {"gaussian"}
    assert {layer.kind for layer in Model(digits.model, "cpu").metadata.layers} == {PerturbationKind.GAUSSIAN}


def test_a_file_that_names_no_kind_or_a_later_one_answers_as_ever(tmp_path: Path) -> None:
    old = GOLDEN / "digits-minor-0.onnx"
    metadata = Model(old, "cpu").metadata
    assert {layer.kind for layer in metadata.layers} == {None}
    proto = onnx.load(old)
    entry = next(item for item in proto.metadata_props if item.key == "uce_edge")
    later = json.loads(entry.value)
    for layer in later["layers"]:
        layer["kind"] = "laplace"
    entry.value = json.dumps(later)
    onnx.save(proto, tmp_path / "later.onnx")
    image = np.zeros((1, 8, 8, 1), np.uint8)
    ours, theirs = (Model(path, "cpu").predict(image) for path in (tmp_path / "later.onnx", old))
    assert np.array_equal(ours.probabilities, theirs.probabilities)


# A second kind


@dataclass(frozen=True)
class DroppedChannels:
    """Bernoulli dropout of whole channels of any node's output: a mask is a normal above its quantile."""

    p: float
    kind = "channel"
    repeats = False

    @property
    def quantile(self) -> np.float32:
        return np.float32(NormalDist().inv_cdf(self.p))

    def normals(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], *[1] * (len(shape) - 1))

    def prepare(self, g: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> tuple[ir.Value, ...]:
        return (g.Mul(g.copy(node, inputs)[0], g.constant(np.float32(1 / (1 - self.p)))),)

    def perturb(self, g: Builder, prepared: tuple[ir.Value, ...], normals: ir.Value) -> ir.Value:
        kept = g.Greater(normals, g.constant(self.quantile))
        return g.Mul(prepared[0], g.Cast(kept, to=ir.DataType.FLOAT))

    def moments(self, g: Builder, node: ir.Node, operands: Sequence[Operand]) -> Uncertain:
        if any(isinstance(operand, Uncertain) for operand in operands):
            (x,) = propagate(g, node, operands)
            mean, variance = x.mean, x.variance
        else:
            mean = g.copy(node, operands)[0]  # type: ignore[arg-type]
            variance = g.Sub(mean, mean)
        p, rest = g.constant(np.float32(self.p)), g.constant(np.float32(1 / (1 - self.p)))
        return Uncertain(mean, g.Mul(g.Add(variance, g.Mul(g.Mul(mean, mean), p)), rest))

    def reference(self, node: ir.Node, inputs: Sequence[Array | None], output: Array, normals: Array) -> Array:
        return np.asarray(np.where(normals > self.quantile, output / (1 - self.p), 0), np.float32)

    def multiplications(self, node: ir.Node) -> int:
        return 0


@pytest.fixture
def two_kinds(tmp_path: Path) -> tuple[third_party.ThirdParty, Metadata, list[Site]]:
    """A network with Gaussian dropout in its weight layers and channel dropout behind its ReLUs."""
    source = tmp_path / "net.onnx"
    source.write_bytes(wide().SerializeToString())
    network = third_party.load(source)
    masked = [
        Site(node, f"{node.name}", DroppedChannels(0.3), per_image_shape(node.outputs[0], "relu"))
        for node in network.classifier.graph
        if node.op_type == "Relu"
    ]
    sites = {site.node: site for site in (*masked, *sites_by_rule(network.classifier.graph, ["0.2"]))}
    in_order = [sites[node] for node in network.classifier.graph if node in sites]
    return network, third_party.metadata(network, source), in_order


def session_of(network: third_party.ThirdParty, metadata: Metadata, sites: list[Site]) -> onnxruntime.InferenceSession:
    content = ir.to_proto(assembly.contract_model(network.classifier, sites, metadata)[0]).SerializeToString()
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def test_another_kind_of_noise_goes_through_the_same_pass(two_kinds) -> None:
    network, metadata, sites = two_kinds
    assert [site.size for site in sites] == [6, 32, 8, 32, 8, 4]
    session = session_of(network, replace(metadata, noise=NoiseKind.INPUT), sites)
    images = np.random.default_rng(2).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    rng = np.random.default_rng(3)
    noises = [rng.standard_normal((7, site.size), np.float32) for site in sites]
    feed = {f"noise.{i}": values for i, values in enumerate(noises)}
    ours = session.run([contract.LOGITS], feed | {"image": images, "seeds": np.zeros(7, np.int32)})[0]
    theirs = graph_reference(network.classifier, metadata.image, sites)(images, noises)
    assert np.allclose(ours, theirs, atol=1e-5)
    assert theirs.std(axis=0).min() > 0.01


def test_another_kind_of_noise_has_moments_and_costs(two_kinds) -> None:
    network, metadata, sites = two_kinds
    images, seeds = np.full((1, 8, 8, 3), 90, np.uint8), np.arange(4096, dtype=np.int32)
    exact, moments = (
        session_of(network, replace(metadata, inference=inference), sites).run(
            [contract.LOGITS], {"image": images, "seeds": seeds}
        )[0]
        for inference in (Inference.MC, Inference.MOMENTS)
    )
    # Without correlations mean and variance are nearly right.
    spread = exact.std(axis=0)
    assert (np.abs(exact.mean(axis=0) - moments.mean(axis=0)) < 0.1 * spread).all()
    assert np.allclose(moments.std(axis=0), spread, rtol=0.2)
    costs = assembly.contract_model(network.classifier, sites, metadata)[1].costs
    # The stem runs once; behind its mask, mean and variance of all other layers run in every pass.
    assert (costs.macs_once, costs.macs_per_pass) == (5832, 2 * (1728 + 64 + 128))
