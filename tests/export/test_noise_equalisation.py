"""Channels in units of their own noise: fewer products, the same answers."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from helpers.nets import Net

from uce_edge import contract
from uce_edge.contract import Inference, NoiseKind
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge.runtime.providers import onnxruntime
from uce_edge_export.check.graph_reference import graph_reference
from uce_edge_export.graph import assembly
from uce_edge_export.graph.weight_layers import per_image_shape
from uce_edge_export.noise.perturbations import BernoulliDropout, FactoredDropout
from uce_edge_export.noise.sites import Site, factored, in_order, sites_by_rule
from uce_edge_export.source import third_party
from uce_edge_export.transform import noise_equalisation


def layer(net: Net, x: str, inputs: int, outputs: int, size: int = 3, group: int = 1) -> str:
    """A convolution whose channels differ by a factor of ten in size."""
    weights = (
        net.rng.standard_normal((outputs, inputs // group, size, size))
        * np.linspace(0.1, 1, outputs)[:, None, None, None]
    )
    parameters = (net.constant(values.astype(np.float32)) for values in (weights, net.rng.standard_normal(outputs)))
    return net.Conv(x, *parameters, group=group, pads=[size // 2] * 4)


def chain(net: Net) -> str:
    """Two layers in a row; the second has groups, the third one takes a pool."""
    x = net.Relu(layer(net, net.stem(), 6, 8))
    x = net.MaxPool(net.Relu(layer(net, x, 8, 8)), kernel_shape=[2, 2], strides=[2, 2])
    x = net.Relu(layer(net, x, 8, 8, group=2))
    return net.head(net.Relu(layer(net, x, 8, 6, size=1)))


def two_readers(net: Net) -> str:
    """A layer that two others take, one of them depthwise."""
    x = net.Relu(layer(net, net.stem(), 6, 8))
    return net.head(net.Relu(net.Add(layer(net, x, 8, 8), layer(net, x, 8, 8, group=8))), 8)


def residual(net: Net) -> str:
    """The inner layer of a block is behind a ReLU alone, the outer one behind a sum."""
    x = net.stem()
    return net.head(net.Relu(net.Add(x, layer(net, net.Relu(layer(net, x, 6, 8)), 8, 6))))


def perceptron(net: Net) -> str:
    """Matrices of either orientation."""
    x = net.Relu(net.Gemm(net.Flatten(net.stem()), net.weight(384, 10), net.weight(10)))
    x = net.Relu(net.Gemm(x, net.weight(12, 10), net.weight(12), transB=1))
    return net.Gemm(net.Relu(net.Gemm(x, net.weight(12, 5), net.weight(5))), net.weight(5, 4))


NETWORKS = {network.__name__: network for network in (chain, two_readers, residual, perceptron)}
EVENED = {"chain": 2, "two_readers": 1, "residual": 1, "perceptron": 2}
"""How many layers of each network can be changed: none whose output is a sum, or the operand of the last layer."""


def load(tmp_path: Path, network: Callable[[Net], str]) -> tuple[third_party.ThirdParty, list[Site]]:
    net = Net()
    source = tmp_path / "net.onnx"
    source.write_bytes(net.model(network(net)).SerializeToString())
    found = third_party.load(source)
    return found, factored(sites_by_rule(found.classifier.graph, ["0.2"]))


def run(model: ir.Model, feed: dict[str, np.ndarray]) -> np.ndarray:
    content = ir.to_proto(model).SerializeToString()
    return onnxruntime().InferenceSession(content, providers=["CPUExecutionProvider"]).run([contract.LOGITS], feed)[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_pass_is_that_of_the_network_as_it_is(tmp_path: Path, name: str) -> None:
    network, sites = load(tmp_path, NETWORKS[name])
    metadata = Metadata(tuple("abcd"), ImageSpec(8, 8, 3), noise=NoiseKind.INPUT)
    images = np.random.default_rng(2).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    noises = [np.random.default_rng(3).standard_normal((7, site.size), np.float32) for site in sites]
    feed = {f"noise.{i}": values for i, values in enumerate(noises)} | {"image": images, "seeds": np.zeros(7, np.int32)}
    model, written = assembly.contract_model(network.classifier, sites, metadata)
    theirs = graph_reference(network.classifier, metadata.image, sites)(images, noises)
    assert np.allclose(run(model, feed), theirs, atol=1e-4 * np.abs(theirs).max())
    assert [layer.name for layer in written.layers] == [site.name for site in sites]
    evened, _ = noise_equalisation.even(network.classifier.graph, sites)
    alike = [isinstance(s.perturbation, FactoredDropout) and s.perturbation.factors.even for s in evened]
    assert sum(alike) == EVENED[name]


@pytest.mark.parametrize("name", NETWORKS)
def test_moments_are_those_of_the_network_as_it_is(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, sites = load(tmp_path, NETWORKS[name])
    metadata = Metadata(tuple("abcd"), ImageSpec(8, 8, 3), inference=Inference.MOMENTS)
    images = np.random.default_rng(2).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    feed = {"image": images, "seeds": np.arange(50, dtype=np.int32)}
    ours, _ = assembly.contract_model(network.classifier, sites, metadata)
    monkeypatch.setattr(noise_equalisation, "even", lambda _, sites: (sites, {}))
    theirs, _ = assembly.contract_model(network.classifier, sites, metadata)
    a, b = run(ours, feed), run(theirs, feed)
    assert np.allclose(a, b, atol=1e-4 * np.abs(b).max())
    fewer, more = (Counter(node.op_type for node in model.graph) for model in (ours, theirs))
    assert fewer["Max"] == more["Max"]
    if name != "two_readers":  # whose depthwise layer, which is exact, wants the products all the same
        assert fewer["Mul"] < more["Mul"]


def test_the_classifier_stays_as_it_is(tmp_path: Path) -> None:
    network, sites = load(tmp_path, chain)
    before = ir.to_proto(network.classifier.model).SerializeToString()
    evened, weights = noise_equalisation.even(network.classifier.graph, sites)
    assert ir.to_proto(network.classifier.model).SerializeToString() == before
    assert weights
    assert [site.name for site in evened] == [site.name for site in sites]


def test_a_channel_without_weights_and_a_shared_weight_are_left_alone(tmp_path: Path) -> None:
    def dead(net: Net) -> str:
        weights = net.rng.standard_normal((8, 6, 3, 3)).astype(np.float32)
        weights[3] = 0
        x = net.Relu(net.Conv(net.stem(), net.constant(weights), pads=[1, 1, 1, 1]))
        return net.head(net.Relu(layer(net, x, 8, 6)))

    def shared(net: Net) -> str:
        weights = net.weight(6, 6, 3, 3)
        x = net.Relu(net.Conv(net.stem(), weights, pads=[1, 1, 1, 1]))
        return net.head(net.Relu(net.Conv(x, weights, pads=[1, 1, 1, 1])))

    for number, network in enumerate((dead, shared)):
        (tmp_path / str(number)).mkdir()
        found, sites = load(tmp_path / str(number), network)
        evened, weights = noise_equalisation.even(found.classifier.graph, sites)
        assert not weights
        assert evened == sites


def test_a_small_channel_is_not_made_huge(tmp_path: Path) -> None:
    """Its bias would be, and the square of that overflows in float16."""

    def small(net: Net) -> str:
        weights = net.rng.standard_normal((8, 6, 3, 3)).astype(np.float32)
        weights[3] *= 0.02
        x = net.Relu(net.Conv(net.stem(), net.constant(weights), net.constant(np.full(8, 6, np.float32)), pads=[1] * 4))
        return net.head(net.Relu(layer(net, x, 8, 6)))

    found, sites = load(tmp_path, small)
    assert not noise_equalisation.even(found.classifier.graph, sites)[1]


@pytest.mark.parametrize("width", [5, 8])
def test_one_output_is_not_taken_for_even_outputs(tmp_path: Path, width: int) -> None:
    """A single channel has one map, too, but the layer behind it sums over columns: times the map would be wrong."""

    def columns(net: Net) -> str:
        x = net.Relu(net.conv(net.stem(), 6, 1))
        return net.Gemm(net.Flatten(net.Relu(net.MatMul(x, net.weight(8, width)))), net.weight(8 * width, 4))

    network, sites = load(tmp_path, columns)
    metadata = Metadata(tuple("abcd"), ImageSpec(8, 8, 3), inference=Inference.MOMENTS)
    model, _ = assembly.contract_model(network.classifier, sites, metadata)
    feed = {"image": np.full((1, 8, 8, 3), 90, np.uint8), "seeds": np.arange(5, dtype=np.int32)}
    assert np.isfinite(run(model, feed)).all()
    assert not noise_equalisation.even(network.classifier.graph, sites)[1]


def test_noise_on_a_relu_stops_it(tmp_path: Path) -> None:
    network, sites = load(tmp_path, residual)
    masks = [
        Site(node, str(node.name), BernoulliDropout(0.3), per_image_shape(node.outputs[0], "relu"))
        for node in network.classifier.graph
        if node.op_type == "Relu"
    ]
    _, weights = noise_equalisation.even(network.classifier.graph, in_order(network.classifier.graph, [*sites, *masks]))
    assert not weights
