"""Bernoulli dropout: what a network or a file has already stays random, with masks from the seeded noise."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from conftest import Call, Digits
from helpers.errors import raises
from helpers.nets import Net, export
from torch import Tensor, nn
from torch.nn import functional as F

from uce_edge.contract import Inference, NoiseKind, PerturbationKind
from uce_edge.errors import UceEdgeError, UsageError
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge.runtime.model import Model
from uce_edge_export.graph.assembly import IR_VERSION
from uce_edge_export.graph.builder import OPSET, Builder
from uce_edge_export.noise import noise_table
from uce_edge_export.noise.perturbations import BernoulliDropout
from uce_edge_export.options import Options
from uce_edge_export.transform.noise_free import find_features
from uce_edge_export.transform.simplification import infer_shapes
from uce_edge_train import export_module, gaussianize

SPEC = ImageSpec(8, 8, 3)
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
KEEP = Options(dropout=("keep",))
MASKS = [kind for kind in PerturbationKind if kind.startswith("bernoulli")]


def described(inference: str = "mc", noise: str = "table") -> Metadata:
    return Metadata(("a", "b", "c", "d"), SPEC, inference=Inference(inference), noise=NoiseKind(noise))


def network(dropout: nn.Module, flat: bool = False) -> nn.Module:
    """A convolution with batch-norm, dropout on its map or on its features, and a classifier; statistics are odd."""
    torch.manual_seed(0)
    features = [nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    body = [*features, dropout] if flat else [dropout, *features]
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), *body, nn.Linear(24, 4))
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    return model


class Masked(nn.Module):
    """Dropout with given masks, by the formulas of its paper."""

    def __init__(self, kept: np.ndarray, p: float, alpha: bool) -> None:
        super().__init__()
        self.kept, self.p, self.alpha = torch.from_numpy(kept.astype(np.float32)), p, alpha

    def forward(self, x: Tensor) -> Tensor:
        if not self.alpha:
            return x * self.kept / (1 - self.p)
        low = -1.0507009873554805 * 1.6732632423543772
        a = (1 - self.p + self.p * (1 - self.p) * low**2) ** -0.5
        return a * (x * self.kept + low * (1 - self.kept)) - a * self.p * low


LAYERS = {
    "Dropout": (nn.Dropout(0.3), (6, 6, 6)),
    "Dropout2d": (nn.Dropout2d(0.3), (6, 1, 1)),
    "AlphaDropout": (nn.AlphaDropout(0.3), (6, 6, 6)),
    "FeatureAlphaDropout": (nn.FeatureAlphaDropout(0.3), (6, 1, 1)),
    "Dropout1d": (nn.Sequential(nn.Flatten(2), nn.Dropout1d(0.3), nn.Unflatten(2, (6, 6))), (6, 1)),
    "Dropout3d": (nn.Sequential(nn.Unflatten(1, (3, 2)), nn.Dropout3d(0.3), nn.Flatten(1, 2)), (3, 1, 1, 1)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_dropout_has_the_masks_of_the_seeds(name: str, tmp_path: Path) -> None:
    layer, shape = LAYERS[name]
    model = network(layer)
    done = export_module(model, described(), tmp_path / "m.onnx", dropout="keep")
    assert done.parity.largest_difference < 1e-4
    seeds = np.array([3, 4, 5])
    (normals,) = noise_table.layer_noise(seeds, noise_table.Plan((math.prod(shape),)))
    pixels = torch.from_numpy(IMAGES).float().permute(0, 3, 1, 2) / 255
    ours = drawn(onnxruntime.InferenceSession(done.path, providers=["CPUExecutionProvider"]), seeds, IMAGES)
    for one_pass, logits in zip(normals, ours, strict=True):
        masked = Masked(one_pass.reshape(shape) > -0.5244005127, 0.3, "Alpha" in name)
        if isinstance(layer, nn.Sequential):
            masked = nn.Sequential(layer[0], masked, layer[2])
        copy = nn.Sequential(*model[:3], masked, *model[4:]).eval()
        with torch.no_grad():
            assert np.allclose(logits, copy(pixels).numpy(), atol=1e-5)
    (told,) = done.metadata.layers
    assert told.p == 0.3
    assert told.kind == {
        "Dropout": "bernoulli", "AlphaDropout": "bernoulli-alpha", "FeatureAlphaDropout": "bernoulli-channel-alpha",
    }.get(name, "bernoulli-channel")  # fmt: skip


@pytest.mark.parametrize("kind", MASKS)
def test_masks_are_the_same_in_the_graph_and_in_numpy(kind: PerturbationKind) -> None:
    dropout = BernoulliDropout(0.2, kind)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 6, 5, 5), np.float32)
    noise = rng.standard_normal((3, *dropout.normals((6, 5, 5))), np.float32)
    g = Builder()
    value, normals = ir.val("x", ir.DataType.FLOAT, x.shape), ir.val("noise", ir.DataType.FLOAT, noise.shape)
    node = ir.node("Identity", [value])
    y = dropout.perturb(g, dropout.prepare(g, node, [value]), dropout.mask(g, normals))
    y.name, y.dtype = "y", ir.DataType.FLOAT
    built = ir.Graph([value, normals], [y], nodes=g.nodes, initializers=g.initializers, opset_imports={"": OPSET})
    session = onnxruntime.InferenceSession(
        ir.to_proto(ir.Model(built, ir_version=IR_VERSION)).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert np.allclose(
        session.run(None, {"x": x, "noise": noise})[0], dropout.reference(node, [x], x, noise), atol=1e-6
    )


class Functional(nn.Module):
    """Dropout as functions: switched by the mode, always on, and in a block of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.block, self.last = nn.Linear(192, 32), nn.Sequential(nn.Linear(32, 32)), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.first(x.flatten(1))), 0.2, self.training)
        x = F.dropout(F.selu(self.block(x)), 0.1, True)
        return self.last(F.alpha_dropout(x, 0.4, self.training))


def test_functional_dropout_is_kept_whatever_switches_it(tmp_path: Path) -> None:
    done = export_module(Functional(), described(), tmp_path / "m.onnx", dropout="keep")
    assert [(layer.p, layer.kind) for layer in done.metadata.layers] == [
        (0.2, "bernoulli"), (0.1, "bernoulli"), (0.4, "bernoulli-alpha"),
    ]  # fmt: skip
    assert len({layer.name for layer in done.metadata.layers}) == 3


def test_functional_dropout_is_removed_unless_it_is_kept(tmp_path: Path) -> None:
    model = Functional()
    done = export_module(model, described("deterministic"), tmp_path / "m.onnx")
    assert "Dropout" not in {node.op_type for node in onnx.load(done.path).graph.node}
    assert done.parity.largest_difference < 1e-4


def test_everything_before_the_first_dropout_runs_once(tmp_path: Path) -> None:
    done = export_module(network(nn.Dropout(0.2)), described(), tmp_path / "m.onnx", dropout="keep")
    assert (done.metadata.costs.macs_once, done.metadata.costs.macs_per_pass) == (6 * 6 * 6 * 27, 24 * 4)
    assert not {"Dropout", "BatchNormalization"} & {node.op_type for node in onnx.load(done.path).graph.node}


def test_bernoulli_and_gaussian_dropout_mix(tmp_path: Path) -> None:
    model = gaussianize(network(nn.Dropout2d(0.3)), 0.1)
    done = export_module(model, described(), tmp_path / "m.onnx", dropout="keep")
    assert [(layer.name, layer.kind, layer.p) for layer in done.metadata.layers] == [
        ("3", "bernoulli-channel", 0.3), ("6.weight", "gaussian", 0.1),
    ]  # fmt: skip
    with pytest.warns(UserWarning, match="dropout of 3 is not in the file"):
        alone = export_module(model, described(), tmp_path / "gaussian.onnx")
    assert [layer.kind for layer in alone.metadata.layers] == ["gaussian"]


def test_a_module_that_is_called_twice_has_two_masks(tmp_path: Path) -> None:
    class Twice(Functional):
        def forward(self, x: Tensor) -> Tensor:
            x = self.drop(F.relu(self.first(x.flatten(1))))
            return self.last(self.drop(F.relu(self.block(x))))

    model = Twice()
    model.drop = nn.Dropout(0.5)
    done = export_module(model, described(), tmp_path / "m.onnx", dropout="keep")
    assert [(layer.name, layer.p) for layer in done.metadata.layers] == [("drop", 0.5), ("drop", 0.5)]


@pytest.mark.parametrize(("noisy", "rates"), [("last:2", [0.2, 0.1, 0.4]), ("last:1", [0.1, 0.4])])
def test_noise_starts_where_it_is_told_to(noisy: str, rates: list[float], tmp_path: Path) -> None:
    options = Options((noisy,), dropout=("keep",))
    done = export_module(Functional(), described(), tmp_path / "m.onnx", options=options)
    assert [layer.p for layer in done.metadata.layers] == rates


@pytest.mark.parametrize("noise", ["randn", "input"])
@pytest.mark.parametrize("name", ["Dropout", "Dropout2d"])
def test_masks_come_from_any_noise(noise: str, name: str, tmp_path: Path) -> None:
    done = export_module(network(LAYERS[name][0]), described(noise=noise), tmp_path / "m.onnx", dropout="keep")
    assert done.metadata.noise == noise
    assert done.parity.largest_difference < 1e-4


# What the masks are


@pytest.fixture(scope="module")
def masks(tmp_path_factory: pytest.TempPathFactory) -> onnxruntime.InferenceSession:
    """A file whose first two logits are masked ones, so that its answers show their masks; 512 values in all."""

    class Shown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spread, self.drop, self.fold = nn.Linear(192, 512), nn.Dropout(0.25), nn.Linear(512, 512, bias=False)
            nn.init.zeros_(self.spread.weight)
            nn.init.ones_(self.spread.bias)
            self.fold.weight.data = torch.eye(512)

        def forward(self, x: Tensor) -> Tensor:
            return self.fold(self.drop(self.spread(x.flatten(1))))

    path = tmp_path_factory.mktemp("masks") / "m.onnx"
    metadata = Metadata(tuple(f"{i}" for i in range(512)), SPEC)
    export_module(Shown(), metadata, path, dropout="keep")
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def drawn(session: onnxruntime.InferenceSession, seeds: object, images: np.ndarray = IMAGES[:1]) -> np.ndarray:
    return session.run(["logits"], {"image": images, "seeds": np.array(seeds, np.int32)})[0]


def test_masks_have_their_rate_and_keep_the_mean(masks: onnxruntime.InferenceSession) -> None:
    values = drawn(masks, np.arange(4096))[:, 0]
    assert set(np.unique(values.round(5))) == {0, np.float32(1.33333)}
    kept = values > 0
    # Every value is kept in three of four passes; 4096 passes leave 0.0068 open.
    assert np.abs(kept.mean(axis=0) - 0.75).max() < 5 * 0.0068
    assert abs(kept.mean() - 0.75) < 0.001


def test_masks_are_independent_between_passes_and_blocks(masks: onnxruntime.InferenceSession) -> None:
    kept = (drawn(masks, np.arange(4096))[:, 0] > 0).astype(float)
    standard = (kept - kept.mean(axis=0)) / kept.std(axis=0)
    blocks = standard[:, :256].T @ standard[:, 256:] / len(kept)
    passes = standard[:-1].T @ standard[1:] / (len(kept) - 1)
    for correlations in (blocks, passes):
        # 6 standard errors: 250,000 pairs reach 5
        assert np.abs(correlations).max() < 6 / math.sqrt(len(kept))
    # Within a block, a table of 1021 rows leaves a little: no trend, and 0.03 in the mean square.
    block = (standard[:, :256].T @ standard[:, :256] / len(kept))[np.triu_indices(256, 1)]
    assert abs(block.mean()) < 0.001
    assert np.sqrt(np.square(block).mean()) < 0.035


def test_a_mask_depends_on_its_seed_alone(masks: onnxruntime.InferenceSession) -> None:
    together = drawn(masks, [7, 8, 9, 2**24 - 1], IMAGES)
    assert (together == together[:, :1]).all()  # these images have the same values, and one mask
    split = np.concatenate([drawn(masks, [7]), drawn(masks, [8, 9, 2**24 - 1])])
    assert np.array_equal(together[:, :1], split)
    assert not np.array_equal(together[0], together[1])


# Moments


@pytest.mark.parametrize("function", [F.dropout, F.alpha_dropout])
def test_mean_and_variance_of_masked_values_are_right(function: Callable[..., Tensor], tmp_path: Path) -> None:
    class Independent(Functional):
        """Masked twice; a layer in between and one behind give every unit one input, so that units stay independent."""

        def forward(self, x: Tensor) -> Tensor:
            x = function(F.relu(self.first(x.flatten(1))), 0.1, self.training)
            x = function(self.block(x), 0.2, self.training)
            return self.last(self.more(x))

    model = Independent()
    model.more = nn.Linear(32, 32)
    for layer in (model.block[0], model.more):
        layer.weight.data = torch.diag(torch.linspace(0.5, 2, 32))
    exact, moments = (
        export_module(model, described(inference), tmp_path / f"{inference}.onnx", dropout="keep")
        for inference in ("mc", "moments")
    )
    assert len(moments.metadata.layers) == 2
    ours, theirs = (Model(done.path, "cpu").logits(IMAGES, 4096) for done in (moments, exact))
    spread = theirs.std(axis=0)
    assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) < 0.1 * spread).all()
    assert np.allclose(ours.std(axis=0), spread, rtol=0.1)


def test_a_mask_before_the_last_layer_is_drawn_exactly_by_moments(tmp_path: Path) -> None:
    model = network(nn.Dropout(0.2), flat=True)
    exact, moments = (
        export_module(model, described(inference), tmp_path / f"{inference}.onnx", dropout="keep")
        for inference in ("mc", "moments")
    )
    ours, theirs = (Model(done.path, "cpu").logits(IMAGES, 20) for done in (moments, exact))
    assert np.allclose(ours, theirs, atol=1e-5)


def test_whole_channels_have_no_rule_for_moments(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.2), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 4))
    with raises("moments.operator"):
        export_module(model, described("moments"), tmp_path / "m.onnx", dropout="keep")
    assert not list(tmp_path.iterdir())
    options = Options(sample_from="1", dropout=("keep",))
    assert export_module(model, described("moments"), tmp_path / "m.onnx", options=options).metadata.layers


# The network without its masks


@pytest.mark.parametrize("name", ["Dropout", "Dropout2d", "AlphaDropout"])
def test_the_features_of_a_masked_network_are_those_of_evaluation_mode(name: str, tmp_path: Path) -> None:
    model = network(LAYERS[name][0])
    done = export_module(model, described(), tmp_path / "m.onnx", dropout="keep")
    loaded = infer_shapes(ir.load(done.path))
    (features,) = find_features(loaded.graph)
    features.value.name = features.value.name or "features"
    loaded.graph.outputs.append(features.value)
    session = onnxruntime.InferenceSession(ir.to_proto(loaded).SerializeToString(), providers=["CPUExecutionProvider"])
    ours = session.run([features.value.name], {"image": IMAGES, "seeds": np.arange(5, dtype=np.int32)})[0]
    with torch.no_grad():
        theirs = model.eval()[:-1](torch.from_numpy(IMAGES).float().permute(0, 3, 1, 2) / 255).numpy()
    assert np.allclose(ours, theirs, atol=1e-5)


# Somebody else's files


def dropped(opset: int, ratio: float | None = 0.3, training: bool = True, last: bool = False) -> onnx.ModelProto:
    net = Net(opset)
    x = net.conv(net.stem(), 6, 6)
    if opset < 12:
        given, attributes = (), {} if ratio is None else {"ratio": ratio}
    else:
        given = () if ratio is None else (net.constant(np.float32(ratio)), net.constant(np.array(training)))
        attributes = {"seed": 5}
    x = net.Dropout(x, *given, **attributes)
    return net.model(net.head(net.Relu(x)))


@pytest.mark.parametrize("opset", [7, 11, 12, 13, 18, 22])
@pytest.mark.parametrize("training", [True, False])
def test_dropout_nodes_of_a_file_are_kept_at_any_opset(opset: int, training: bool, tmp_path: Path) -> None:
    _, done = export(dropped(opset, training=training), tmp_path, (), KEEP)
    assert [(layer.p, layer.kind) for layer in done.metadata.layers] == [(0.3, "bernoulli")]
    assert done.metadata.costs.macs_per_pass == 6 * 4
    assert done.notes == ()


def test_a_dropout_node_without_a_ratio_drops_half(tmp_path: Path) -> None:
    for opset in (7, 12):
        assert export(dropped(opset, None), tmp_path, (), KEEP)[1].metadata.layers[0].p == 0.5


def test_a_file_mixes_its_dropout_with_gaussian_layers_and_masks_on_values(tmp_path: Path) -> None:
    net = Net()
    x = net.Relu(net.conv(net.Dropout(net.stem(), net.constant(np.float32(0.1))), 6, 6))
    proto = net.model(net.Gemm(net.pool(x), net.weight(6, 4, name="last")))
    _, done = export(proto, tmp_path, ("last=0.2",), Options(dropout=("keep", "v5.*=0.4", "v6.*=0.05")))
    assert [(layer.name, layer.kind, layer.p) for layer in done.metadata.layers] == [
        ("Dropout2", "bernoulli", 0.1), ("v5.0", "bernoulli", 0.4), ("v6.0", "bernoulli", 0.05),
        ("last", "gaussian", 0.2),
    ]  # fmt: skip
    assert done.parity.largest_difference < 1e-4


def test_dropout_is_removed_from_a_file_unless_it_is_kept(tmp_path: Path) -> None:
    _, done = export(dropped(18), tmp_path)
    assert {layer.kind for layer in done.metadata.layers} == {"gaussian"}
    assert "--dropout keep" in done.notes[0]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("keep",), "dropout.missing"),
        (("nothing*=0.2",), "argument.dropout"),
        (("v5.0=0.2",), "argument.dropout"),  # the logits
    ],
)
def test_what_a_file_does_not_have_cannot_be_kept(options: tuple[str, ...], code: str, tmp_path: Path) -> None:
    net = Net()
    proto = net.model(net.head(net.conv(net.stem(), 6, 6)))
    with raises(code):
        export(proto, tmp_path, (), Options(dropout=options))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ratio", [1.0, 1.5, -0.1])
def test_a_ratio_that_leaves_nothing_is_refused(ratio: float, tmp_path: Path) -> None:
    with raises("dropout.rate"):
        export(dropped(12, ratio), tmp_path, (), KEEP)


def test_a_ratio_of_0_is_nothing_to_keep(tmp_path: Path) -> None:
    with raises("dropout.zero"):
        export(dropped(12, 0.0), tmp_path, (), KEEP)
    net = Net()
    x = net.Dropout(net.Dropout(net.stem(), net.constant(np.float32(0))), net.constant(np.float32(0.2)))
    _, done = export(net.model(net.head(x)), tmp_path, (), KEEP)
    assert [layer.p for layer in done.metadata.layers] == [0.2]
    assert done.notes == ("the Dropout Dropout2 has the ratio 0: there is nothing to keep",)


def test_a_ratio_that_the_model_computes_is_refused(tmp_path: Path) -> None:
    net = Net()
    x = net.stem()
    ratio = net.ReduceMean(net.Sigmoid(x), keepdims=0)
    with raises("dropout.computed"):
        export(net.model(net.head(net.Dropout(x, ratio))), tmp_path, (), KEEP)


# What cannot be kept in a network


class Hidden(Functional):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x.flatten(1)))
        if self.training:
            x = F.dropout(x, 0.2)
        return self.last(x)


class Fused(Functional):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x.flatten(1))).reshape(-1, 4, 8)
        rate = 0.1 if self.training else 0.0
        return self.last(F.scaled_dot_product_attention(x, x, x, None, rate).flatten(1))


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), *layers, nn.Linear(8, 4))


UNREACHABLE = {
    "no dropout": (flat(nn.ReLU()), "Sequential has nothing to keep: it has no dropout"),
    "rate 0": (flat(nn.Dropout(0)), "nothing to keep: the rate of 2 is 0"),
    "rate 1": (flat(nn.Dropout(1)), "the rate 1, which leaves nothing"),
    "training mode alone": (Hidden(), "1 of 1 calls of dropout happen in training mode alone"),
    "fused function": (Fused(), "scaled_dot_product_attention is in a fused block"),
    "attention": (
        nn.Sequential(nn.Flatten(2), nn.TransformerEncoderLayer(64, 2, 8, 0.1, batch_first=True), nn.Flatten()),
        r"dropout of 1.self_attn is inside a fused block \(nn.MultiheadAttention\)",
    ),
    "recurrent": (nn.LSTM(8, 4, 2, dropout=0.1), r"dropout of LSTM is inside a fused block \(nn.LSTM\)"),
    "images as channels": (flat(nn.Dropout1d(0.2)), "takes the images of a batch for channels"),
}


@pytest.mark.filterwarnings("ignore:dropout")
@pytest.mark.parametrize("case", UNREACHABLE)
def test_dropout_that_cannot_be_kept_is_refused_by_name(case: str, tmp_path: Path) -> None:
    model, rule = UNREACHABLE[case]
    with pytest.raises(UceEdgeError, match=rule):
        export_module(model, described(), tmp_path / "m.onnx", dropout="keep")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_dropout_in_a_scripted_block_is_refused_by_name(tmp_path: Path) -> None:
    model = flat(torch.jit.script(nn.Sequential(nn.Dropout(0.2))))
    with pytest.raises(UceEdgeError, match=r"dropout of 2.0 is inside a scripted block"):
        export_module(model, described(), tmp_path / "m.onnx", dropout="keep")


def test_what_does_not_go_with_dropout_is_refused(tmp_path: Path) -> None:
    model = network(nn.Dropout(0.2))
    with raises("export.noise-missing"):
        export_module(model, described("deterministic"), tmp_path / "m.onnx", dropout="keep")
    with pytest.raises(UsageError, match=r"put an nn\.Dropout there"):
        export_module(model, described(), tmp_path / "m.onnx", dropout="relu=0.2")
    for wrong in ("0.2", "relu", "relu=1", "relu=x", "Keep"):
        with raises("argument.dropout"):
            Options(dropout=(wrong,))
    assert not list(tmp_path.iterdir())


# The command line


def test_the_command_keeps_dropout_and_info_shows_it(call: Call, tmp_path: Path) -> None:
    source, out = tmp_path / "net.onnx", tmp_path / "mc.onnx"
    source.write_bytes(dropped(18).SerializeToString())
    said = call("export", "--from", source, "--dropout", "keep", "--out", out)
    assert said.code == 0, said.err
    assert "not trained with noise" not in said.err
    shown = call("info", out, "--all").out
    assert "noise: 1 layer, all with Bernoulli masks" in shown
    assert "p = 0.3   Dropout3 (bernoulli)" in shown
    document = json.loads(out.with_suffix(".json").read_text())
    assert document["layers"] == [{"name": "Dropout3", "p": 0.3, "kind": "bernoulli"}]
    mixed = call("export", "--from", source, "--dropout", "keep", "--p", 0.1, "--out", out)
    assert mixed.code == 0
    assert "noise: 3 layers, exact sigma, 1 with Bernoulli masks" in call("info", out).out
    wrong = call("export", "--from", source, "--dropout", "nothing=0.1", "--out", tmp_path / "none.onnx")
    assert wrong.code == 2
    assert "Check the name" in wrong.err


def test_a_run_without_dropout_of_its_own_has_nothing_to_keep(digits: Digits, call: Call, tmp_path: Path) -> None:
    said = call("export", digits.run, "--dropout", "keep", "--out", tmp_path / "m.onnx")
    assert said.code == 2
    assert "ResNet has nothing to keep: it has no dropout" in said.err
