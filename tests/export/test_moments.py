"""Mean and variance instead of samples: every rule against integration, whole networks against exact passes."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from conftest import Call, Digits
from helpers.errors import raises
from scipy import integrate, special, stats
from torch import nn

from uce_edge.contract import Inference, Method, NoiseKind, Sigma
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge.metrics import nll
from uce_edge.runtime.model import Model
from uce_edge_export.graph.builder import Builder
from uce_edge_export.noise import moments
from uce_edge_export.noise.moments_calibration import scale_for
from uce_edge_export.noise.uncertain import Uncertain
from uce_edge_export.options import Expand, Options
from uce_edge_export.recalibration import recalibrate
from uce_edge_train import gaussianize
from uce_edge_train.export import export_module, export_run
from uce_edge_train.networks import architectures

MEANS = np.array([-30.0, -4, -1.5, -0.3, 0, 1e-3, 0.4, 1, 3, 5.9, 6.2, 25], np.float32)
DEVIATIONS = np.array([1e-6, 1e-2, 0.5, 1, 3], np.float32)


class Bench:
    """Rules as a graph that ONNX Runtime runs."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self.g = Builder()
        self.inputs: list[ir.Value] = []
        self.given: list[Uncertain] = []
        for i, shape in enumerate(shapes):
            mean, variance = (ir.val(f"{name}{i}", ir.DataType.FLOAT, shape) for name in "mv")
            self.inputs += [mean, variance]
            self.given.append(Uncertain(mean, variance))

    def apply(self, kind: str, *operands: Uncertain | ir.Value | None, **attributes: object) -> Uncertain:
        node = ir.node(kind, [ir.val(f"x{i}") for i in range(len(operands))], attributes)
        for value, operand in zip(node.inputs, operands, strict=True):
            if isinstance(operand, Uncertain):
                value.shape = operand.mean.shape  # type: ignore[union-attr]
            elif operand is not None:
                value.const_value = operand.const_value  # type: ignore[union-attr]
        node.outputs[0].shape = ir.Shape([1, 2, 1, 1])  # what pools to one position leaves
        return moments.propagate(self.g, node, operands)[0]

    def constant(self, value: object) -> ir.Value:
        return self.g.constant(np.asarray(value))

    def run(self, result: Uncertain, *arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        outputs = [self.g.Identity(result.mean), self.g.Identity(result.variance)]
        for value in outputs:
            value.dtype = ir.DataType.FLOAT
        graph = ir.Graph(
            self.inputs, outputs, nodes=self.g.nodes, initializers=self.g.initializers, opset_imports={"": 18}, name="g"
        )
        proto = ir.to_proto(ir.Model(graph, ir_version=9)).SerializeToString()
        feed = {value.name: array.astype(np.float32) for value, array in zip(self.inputs, arrays, strict=True)}
        mean, variance = onnxruntime.InferenceSession(proto).run(None, feed)
        return mean, variance


def exact(function: Callable[[np.ndarray], np.ndarray], mean: float, deviation: float) -> tuple[float, float]:
    """Mean and variance of a function of a Gaussian, by adaptive integration."""

    def expectation(power: Callable[[np.ndarray], np.ndarray]) -> float:
        corners = [(c - mean) / deviation for c in (0.0, 6.0, -3.0, 3.0) if abs(c - mean) < 9 * deviation]
        value, _ = integrate.quad(
            lambda z: power(function(np.float64(mean + deviation * z))) * stats.norm.pdf(z),
            -9, 9, limit=400, points=corners or None, epsabs=1e-11,
        )  # fmt: skip
        return float(value)

    first = expectation(lambda y: y)
    return first, expectation(lambda y: (y - first) ** 2)


SMOOTH = {
    "silu": lambda x: x * special.expit(x),
    "gelu": lambda x: x * special.ndtr(x),
    "tanh": np.tanh,
    "sigmoid": special.expit,
}
CORNERED = {
    "relu": lambda x: np.maximum(x, 0),
    "leaky": lambda x: np.where(x > 0, x, 0.1 * x),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
}


def activation(bench: Bench, name: str) -> Uncertain:
    x = bench.given[0]
    match name:
        case "relu":
            return bench.apply("Relu", x)
        case "leaky":
            return bench.apply("LeakyRelu", x, alpha=0.1)
        case "relu6":
            return bench.apply("Clip", x, bench.constant(np.float32(0)), bench.constant(np.float32(6)))
        case "silu":
            return bench.apply("Mul", x, bench.apply("Sigmoid", x))
        case "gelu":  # as PyTorch exports it
            scaled = bench.apply("Div", x, bench.constant(np.float32(math.sqrt(2))))
            cdf = bench.apply("Add", bench.apply("Erf", scaled), bench.constant(np.float32(1)))
            return bench.apply("Mul", bench.apply("Mul", x, bench.constant(np.float32(0.5))), cdf)
    return bench.apply({"hardswish": "HardSwish"}.get(name) or name.capitalize(), x)


def grid(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deviations, and what the rule and the integral say of [points, (mean, variance)]."""
    m, s = (axis.ravel() for axis in np.meshgrid(MEANS, DEVIATIONS))
    bench = Bench((len(m),))
    ours = np.stack(bench.run(activation(bench, name), m, s.astype(np.float64) ** 2), 1)
    function = (CORNERED | SMOOTH)[name]
    wanted = np.array([exact(function, float(a), float(b)) for a, b in zip(m, s, strict=True)])
    assert (ours[:, 1] >= 0).all()
    return s, ours, wanted


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_activations_are_those_of_a_gaussian(name: str) -> None:
    s, ours, wanted = grid(name)
    # Three points are exact for straight lines; a function that bends within a deviation is none.
    for deviation, mean, variance in (
        (1e-6, 0, 0),
        (0.01, 2e-4, 1e-3),
        (0.5, 0.014, 0.08),
        (1, 0.03, 0.11),
        (3, 0.053, 0.32),
    ):
        here = s == np.float32(deviation)
        miss = np.abs(ours - wanted)[here]
        assert miss[:, 0].max() <= mean * deviation + 2e-6
        assert miss[:, 1].max() <= variance * wanted[here, 1].max() + 1e-9


@pytest.mark.parametrize(
    ("name", "mean", "variance"),
    [("relu", 0.0262, 0.0761), ("leaky", 0.0236, 0.0700), ("relu6", 0.0430, 0.1335), ("hardswish", 0.0300, 0.1360)],
)
def test_activations_with_a_kink_are_close_to_those_of_a_gaussian(name: str, mean: float, variance: float) -> None:
    """The largest errors, in deviations and in variances of what they are applied to."""
    s, ours, wanted = grid(name)
    miss = np.abs(ours - wanted)
    assert (miss[:, 0] <= mean * s + 2e-6).all()
    assert (miss[:, 1] <= variance * s**2 + 1e-11).all()


def test_the_largest_errors_of_a_relu_are_those_of_the_documentation() -> None:
    z = np.linspace(-9, 9, 3601)
    bench = Bench((len(z),))
    mean, variance = bench.run(activation(bench, "relu"), z, np.ones(len(z)))
    share, density = special.ndtr(z), stats.norm.pdf(z)
    first = z * share + density
    second = (z**2 + 1) * share + z * density
    assert np.abs(mean - first).max() == pytest.approx(0.0261, abs=1e-4)
    assert np.abs(variance - (second - first**2)).max() == pytest.approx(0.0760, abs=1e-4)
    # What is far from the kink is exact, and what is near it is right on average.
    far = np.abs(z) > 4
    np.testing.assert_allclose(mean[far], np.maximum(z[far], 0), atol=1e-6)
    np.testing.assert_allclose(variance[far], z[far] > 0, atol=1e-6)
    assert abs(np.mean(mean - first)) < 0.0011
    assert abs(np.mean(variance - (second - first**2))) < 0.006


def test_the_largest_errors_between_two_bounds_are_those_of_the_documentation() -> None:
    z = np.linspace(-4, 4, 1601)
    lower, upper = Bench((len(z),)), Bench((len(z),))
    mean, variance = lower.run(activation(lower, "relu6"), z * 0.1, np.full(len(z), 0.01))
    share, density = special.ndtr(z), stats.norm.pdf(z)
    first = z * share + density
    second = (z**2 + 1) * share + z * density
    assert np.abs(mean / 0.1 - first).max() == pytest.approx(0.0396, abs=1e-4)
    assert np.abs(variance / 0.01 - (second - first**2)).max() == pytest.approx(0.1334, abs=1e-4)
    # At the upper bound as at the lower one.
    above, spread = upper.run(activation(upper, "relu6"), 6 - z * 0.1, np.full(len(z), 0.01))
    np.testing.assert_allclose(6 - above, mean, atol=1e-5)
    np.testing.assert_allclose(spread, variance, atol=1e-5)


def test_large_noise_stays_within_two_bounds() -> None:
    bench = Bench((4,))
    mean, variance = bench.run(activation(bench, "relu6"), np.array([-50.0, 0, 3, 60]), np.full(4, 1e6))
    assert ((mean >= 0) & (mean <= 6)).all()
    assert (variance <= 9).all()


def test_a_relu6_takes_few_nodes() -> None:
    bench = Bench((1,))
    result = activation(bench, "relu6")
    assert result.scaled_mean
    assert result.scaled
    assert len(bench.g.nodes) <= 13


def test_a_hardswish_takes_few_nodes() -> None:
    bench = Bench((1,))
    result = activation(bench, "hardswish")
    assert result.scaled_mean
    assert result.scaled
    assert len(bench.g.nodes) <= 13


def test_a_relu_takes_few_nodes_and_no_exponential() -> None:
    bench = Bench((1,))
    result = activation(bench, "relu")
    assert result.mean
    assert result.scaled
    kinds = [node.op_type for node in bench.g.nodes]
    assert len(kinds) <= 10
    assert not {"Exp", "Erf", "Pow"} & set(kinds)


@pytest.mark.parametrize(("low", "high"), [(0, 3.4e38), (-3.4e38, 6), (0, None), (None, 6)])
def test_a_clip_may_have_one_side(low: float | None, high: float | None) -> None:
    bench = Bench((len(MEANS),))
    bounds = [None if bound is None else bench.constant(np.float32(bound)) for bound in (low, high)]
    mean, variance = bench.run(bench.apply("Clip", bench.given[0], *bounds), MEANS, np.full(len(MEANS), 4.0))
    low, high = (-np.inf if low is None else low), (np.inf if high is None else high)
    wanted = np.array([exact(lambda x: np.clip(x, low, high), float(m), 2.0) for m in MEANS])
    assert np.abs(mean - wanted[:, 0]).max() <= 0.0262 * 2
    assert np.abs(variance - wanted[:, 1]).max() <= 0.0761 * 4
    far = np.abs(MEANS - (0 if low == 0 else 6)) > 8
    np.testing.assert_allclose(np.stack([mean, variance], 1)[far], wanted[far], atol=2e-4)


def test_sums_products_and_constants(rng: np.random.Generator) -> None:
    arrays = [rng.normal(size=7), rng.uniform(0.1, 2, 7), rng.normal(size=7), rng.uniform(0.1, 2, 7)]
    m1, v1, m2, v2 = arrays
    two = np.float32(2)
    for kind, mean, variance in (
        ("Add", m1 + m2, v1 + v2),
        ("Sub", m1 - m2, v1 + v2),
        ("Mul", m1 * m2, v1 * v2 + v1 * m2**2 + v2 * m1**2),
    ):
        bench = Bench((7,), (7,))
        found = bench.run(bench.apply(kind, *bench.given), *arrays)
        np.testing.assert_allclose(found, [mean, variance], rtol=1e-4, atol=1e-5)
    for kind, mean, variance in (
        ("Add", m1 + 2, v1), ("Sub", m1 - 2, v1), ("Mul", m1 * 2, v1 * 4), ("Div", m1 / 2, v1 / 4),
    ):  # fmt: skip
        bench = Bench((7,))
        found = bench.run(bench.apply(kind, bench.given[0], bench.constant(two)), m1, v1)
        np.testing.assert_allclose(found, [mean, variance], rtol=1e-4)
    bench = Bench((7, 1))  # a larger operand spreads mean and variance
    found = bench.run(
        bench.apply("Add", bench.given[0], bench.constant(np.ones((1, 3), np.float32))), m1[:, None], v1[:, None]
    )
    assert found[0].shape == found[1].shape == (7, 3)
    bench = Bench((7,))  # x + x is 2 x, not a sum of two independent ones
    found = bench.run(bench.apply("Add", bench.given[0], bench.given[0]), m1, v1)
    np.testing.assert_allclose(found, [2 * m1, 4 * v1], rtol=1e-4, atol=1e-5)


def test_pools_pads_and_batch_norm(rng: np.random.Generator) -> None:
    m, v = rng.normal(size=(1, 2, 4, 4)), rng.uniform(0.1, 1, (1, 2, 4, 4))

    def found(kind: str, *rest: object, **attributes: object) -> tuple[np.ndarray, np.ndarray]:
        bench = Bench((1, 2, 4, 4))
        return bench.run(bench.apply(kind, bench.given[0], *map(bench.constant, rest), **attributes), m, v)

    mean, variance = found("GlobalAveragePool")
    np.testing.assert_allclose(mean, m.mean((2, 3), keepdims=True), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(variance, v.mean((2, 3), keepdims=True) / 16, rtol=1e-4)
    blocks = v.reshape(1, 2, 2, 2, 2, 2).mean((3, 5)) / 4
    np.testing.assert_allclose(found("AveragePool", kernel_shape=[2, 2], strides=[2, 2])[1], blocks, rtol=1e-4)
    corner = found("AveragePool", kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1])[1]
    np.testing.assert_allclose(corner[:, :, 0, 0], v[:, :, 0, 0], rtol=1e-4)  # one cell
    np.testing.assert_allclose(corner[:, :, 0, 1], v[:, :, 0, 1:3].sum(-1) / 4, rtol=1e-4)  # two
    np.testing.assert_allclose(corner[:, :, 1, 1], v[:, :, 1:3, 1:3].sum((-1, -2)) / 16, rtol=1e-4)
    mean, variance = found("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    sampled = m.reshape(1, 2, 2, 2, 2, 2).max((3, 5))
    assert (mean >= sampled - 1e-5).all()  # a maximum is above the maximum of the means
    assert (variance > 0).all()
    padded = found("Pad", np.array([0, 0, 1, 1, 0, 0, 1, 1]), np.float32(5))
    assert padded[0].shape == (1, 2, 6, 6)
    assert padded[0][0, 0, 0, 0] == 5
    assert padded[1][0, 0, 0, 0] == 0
    gamma, beta, mu, var = (rng.uniform(0.5, 2, 2).astype(np.float32) for _ in range(4))
    mean, variance = found("BatchNormalization", gamma, beta, mu, var)
    factor = (gamma / np.sqrt(var + 1e-5)).reshape(1, 2, 1, 1)
    np.testing.assert_allclose(mean, (m - mu.reshape(1, 2, 1, 1)) * factor + beta.reshape(1, 2, 1, 1), rtol=1e-3)
    np.testing.assert_allclose(variance, v * factor**2, rtol=1e-3)


def classifier_file(network: nn.Module, tmp_path: Path, inference: Inference, channels: int = 3, **options) -> Model:
    metadata = Metadata(
        tuple("0123456789"), ImageSpec(16, 16, channels), inference=inference, samples=25, architecture="test"
    )
    done = export_module(network, metadata, tmp_path / f"{inference}.onnx", options=Options(**options))
    return Model(done.path, "cpu")


@pytest.mark.parametrize("sigma", Sigma)
def test_two_layers_agree_with_exact_passes(tmp_path: Path, rng: np.random.Generator, sigma: Sigma) -> None:
    """Hidden units whose only noise is their own are independent: nothing but the ReLU is approximated."""
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(256, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 10)]
    network = gaussianize(nn.Sequential(*layers), 0.4, sigma=sigma)
    images = rng.integers(0, 256, (3, 16, 16, 1), dtype=np.uint8)
    ours = classifier_file(network, tmp_path, Inference.MOMENTS, 1).logits(images, 4096, 0)
    exact_ = classifier_file(network, tmp_path, Inference.MC, 1).logits(images, 4096, 0)
    error = exact_.std(0) / math.sqrt(4096)
    assert (np.abs(ours.mean(0) - exact_.mean(0)) < 6 * error).all()
    np.testing.assert_allclose(ours.std(0), exact_.std(0), rtol=0.07)


class Mixed(nn.Module):
    """One of every kind: pools, SiLU, GELU, leaky ReLU, a residual sum, a concatenation, a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.gate, self.c, self.head = nn.Linear(8, 8), nn.Conv2d(16, 12, 3, padding=1), nn.Linear(12, 10)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(nn.functional.silu(self.stem(x)), 2)
        x = nn.functional.gelu(self.a(x)) + x
        x = nn.functional.max_pool2d(x, 2)
        y = nn.functional.leaky_relu(self.b(x), 0.1)
        y = y * torch.sigmoid(self.gate(y.mean((2, 3))))[:, :, None, None]
        x = nn.functional.avg_pool2d(torch.relu(self.norm(torch.cat([x, y], 1))), 2)
        return self.head(torch.flatten(nn.functional.relu6(self.c(x)).mean((2, 3)), 1))  # type: ignore[no-any-return]


def test_every_kind_of_layer_goes_through(tmp_path: Path, rng: np.random.Generator) -> None:
    torch.manual_seed(0)
    network = gaussianize(Mixed(), 0.1).eval()
    images = rng.integers(0, 256, (4, 16, 16, 3), dtype=np.uint8)
    ours = classifier_file(network, tmp_path, Inference.MOMENTS).logits(images, 1000, 0)
    passes = classifier_file(network, tmp_path, Inference.MC).logits(images, 1000, 0)
    assert np.abs(ours.mean(0) - passes.mean(0)).max() < 0.5 * passes.std(0).mean()
    assert 0.5 < ours.std(0).mean() / passes.std(0).mean() < 1.3


def test_what_has_no_mean_is_named(tmp_path: Path) -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(768, 9), nn.Linear(9, 9), nn.Linear(9, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.b(torch.relu(self.a(x.flatten(1))))
            return self.c(hidden + hidden.argmax(1, keepdim=True))  # type: ignore[no-any-return]

    network = gaussianize(Sorted())
    with raises("moments.operator"):
        classifier_file(network, tmp_path, Inference.MOMENTS)
    assert not list(tmp_path.iterdir())
    classifier_file(network, tmp_path, Inference.MOMENTS, sample_from="1")  # drawn before it


@pytest.fixture(scope="module")
def one_pass(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("moments") / "digits.onnx"
    done = export_run(digits.run, out, digits.dataset, Inference.MOMENTS)
    assert abs(done.file_nll - done.torch_nll) < 0.02
    return out


def test_the_digits_in_one_pass(digits: Digits, one_pass: Path) -> None:
    model, mc = Model(one_pass, "cpu"), Model(digits.model, "cpu")
    test = digits.dataset.splits["test"]
    ours = model.predict(test.images)
    with pytest.warns(UserWarning, match="calibrated"):
        reference, few = mc.predict(test.images, 200, 1), mc.predict(test.images, 25, 2)
    assert ours.samples == 100
    assert model.metadata.calibration.parameters["variance_scale"][0] > 0
    assert nll(ours.probabilities, test.labels) < nll(few.probabilities, test.labels) + 0.01
    distance = np.abs(ours.uncertainty - reference.uncertainty).mean()
    assert distance < 1.5 * np.abs(few.uncertainty - reference.uncertainty).mean()
    # Far from the network without noise.
    assert ours.model_uncertainty.mean() > 0.5 * reference.model_uncertainty.mean()


def test_the_contract_holds(digits: Digits, one_pass: Path) -> None:
    model, images = Model(one_pass, "cpu"), digits.dataset.splits["test"].images[:5]
    assert model.metadata.inference is Inference.MOMENTS
    assert model.metadata.costs.macs_per_pass < 0.01 * model.metadata.costs.macs_once
    together, alone = model.predict(images), model.predict(images[3:4])
    np.testing.assert_array_equal(together.probabilities[3], alone.probabilities[0])
    with pytest.warns(UserWarning, match="calibrated"):
        other = model.predict(images, 50, seed=3)
    assert not np.array_equal(together.uncertainty, other.uncertainty)
    assert model.metadata.held_out is not None


def test_recalibrating_keeps_the_variance(digits: Digits, one_pass: Path, tmp_path: Path) -> None:
    done = recalibrate(one_pass, tmp_path / "new.onnx", digits.dataset.splits["calibration"], Method.VECTOR)
    before = Model(one_pass, "cpu").metadata.calibration.parameters["variance_scale"]
    assert done.metadata.calibration.parameters["variance_scale"] == before
    images = digits.dataset.splits["test"].images[:3]
    np.testing.assert_array_equal(
        Model(one_pass, "cpu").logits(images, 7, 0), Model(tmp_path / "new.onnx", "cpu").logits(images, 7, 0)
    )


def test_from_the_command_line(digits: Digits, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "m.onnx"
    said = call("export", digits.run, "--inference", "moments", "--out", out)
    assert said.code == 0, said.err
    assert "of 32 exact passes" in said.err
    assert re.search(r"^inference +moments, 100 draws by default$", call("info", out).out, re.MULTILINE)
    record = json.loads(call("predict", "--model", out, digits.image, "--reject", 0.3, "--json").out)[0]
    assert (record["samples"], record["status"]) == (100, "ok")
    said = call("export", "--untrained", "resnet8", "--inference", "moments", "--out", tmp_path / "u.onnx")
    assert said.code == 0, said.err
    assert "--sample-from goes with" in call("export", digits.run, "--sample-from", "1").err
    said = call("export", digits.run, "--inference", "moments", "--sample-from", "99", "--out", out)
    assert (said.code, "`sample_from`" in said.err) == (2, True)


def test_noise_in_the_last_layers_alone(digits: Digits, tmp_path: Path) -> None:
    """Nothing to draw leaves the scale at 1; one draw is enough for a file."""
    for layer, drawn in (("classifier*", False), ("blocks.2*", True)):
        out = tmp_path / "m.onnx"
        export_run(digits.run, out, digits.dataset, Inference.MOMENTS, samples=1, options=Options((layer,)))
        metadata = Model(out, "cpu").metadata
        assert (metadata.calibration.parameters["variance_scale"] != [1.0]) == drawn
        assert metadata.samples == 1


def test_a_scale_that_hardly_matters_is_not_fitted() -> None:
    """Behind a noisy tail, the error of a few exact passes would decide it."""

    def spread(share: float) -> Callable[[float], float]:
        return lambda scale: 1 + share * (scale - 1)

    assert scale_for(lambda: 2.5, spread(0.75)) == pytest.approx(3)
    assert scale_for(lambda: pytest.fail("passes are computed"), spread(0.05)) == 1


def test_what_does_not_go_together_is_refused(digits: Digits, tmp_path: Path) -> None:
    cases = {
        "export.expand-moments": (Options(expand=Expand.EARLY), NoiseKind.TABLE),
        "export.noise-input": (Options(), NoiseKind.INPUT),
    }
    for code, (options, noise) in cases.items():
        with raises(code):
            export_run(digits.run, tmp_path / "m.onnx", digits.dataset, Inference.MOMENTS, noise, options=options)
    with raises("argument.samples"):
        export_run(digits.run, tmp_path / "m.onnx", digits.dataset, Inference.MOMENTS, samples=0)
    assert not list(tmp_path.iterdir())


def test_the_runtime_s_own_noise(tmp_path: Path) -> None:
    torch.manual_seed(0)
    noise, network = NoiseKind.RANDN, gaussianize(architectures.build("resnet8", 10, 3))
    metadata = Metadata(tuple("0123456789"), ImageSpec(16, 16, 3), inference=Inference.MOMENTS, noise=noise, samples=9)
    model = Model(export_module(network, metadata, tmp_path / "m.onnx").path, "cpu")
    images = np.zeros((1, 16, 16, 3), np.uint8)
    assert not np.array_equal(model.logits(images, 9, 0), model.logits(images, 9, 0))
