"""Third-party files and requests that cannot be honoured: each is refused in a sentence, and nothing is written."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.errors import raises
from helpers.nets import Net, export, simple, wide
from onnx import TensorProto, helper
from PIL import Image

from uce_edge.contract import Inference
from uce_edge.errors import ModelFileError
from uce_edge.runtime.model import Model
from uce_edge_export.source import third_party

# What cannot be sampled.


def _if(net: Net) -> onnx.ModelProto:
    x = net.head(net.stem())
    inner = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Relu", [x], ["inner"])], "branch", [], [inner])
    return net.model(net.If(net.constant(np.array(True)), then_branch=branch, else_branch=branch))


def _loop(net: Net) -> onnx.ModelProto:
    x = net.head(net.stem())
    kinds = {"i": TensorProto.INT64, "go": TensorProto.BOOL, "a": TensorProto.FLOAT, "b": TensorProto.FLOAT}
    info = {name: helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()}
    results = [helper.make_tensor_value_info("go_on", TensorProto.BOOL, []), info["b"]]
    nodes = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Identity", ["go"], ["go_on"])]
    body = helper.make_graph(nodes, "body", [info["i"], info["go"], info["a"]], results)
    return net.model(net.Loop(net.constant(np.int64(2)), net.constant(np.array(True)), x, body=body))


def _integers(net: Net) -> onnx.ModelProto:
    x = net.Cast(net.pool(net.stem()), to=TensorProto.UINT8)
    y = net.MatMulInteger(x, net.constant(net.rng.integers(0, 255, (6, 4)).astype(np.uint8)))
    return net.model(net.Cast(y, to=TensorProto.FLOAT))


def _quantized(net: Net) -> onnx.ModelProto:
    scale, zero = net.constant(np.float32(0.1)), net.constant(np.uint8(0))
    x = net.QuantizeLinear(net.stem(), scale, zero)
    weight = net.constant(net.rng.integers(0, 255, (6, 6, 3, 3)).astype(np.uint8))
    y = net.QLinearConv(x, scale, zero, weight, scale, zero, scale, zero)
    return net.model(net.head(net.DequantizeLinear(y, scale, zero)))


def _two_outputs(net: Net) -> onnx.ModelProto:
    x = net.stem()
    return net.model(net.head(x), net.head(x))


def _columns(net: Net, axis: int = 1) -> onnx.ModelProto:
    """The images of a batch as columns."""
    y = net.Transpose(net.head(net.conv(net.stem(), 6, 6)), perm=[1, 0])
    return net.model(net.Transpose(net.Softmax(y, axis=axis), perm=[1, 0]))


def _centred(net: Net, early: bool) -> onnx.ModelProto:
    """Batch statistics, as of a batch-norm left in training mode."""
    x = net.stem()
    x = x if early else net.conv(x, 6, 6)
    centred = net.Sub(net.Mul(x, net.constant(np.float32(2))), net.ReduceMean(x, net.constant([0])))
    return net.model(net.head(net.conv(centred, 6, 6)))


def _masked(net: Net) -> onnx.ModelProto:
    x = net.head(net.stem())
    net.Dropout(x, outputs=2)
    return net.model(net.Where(net.nodes[-1].output[1], x, net.Relu(x)))


def _flat(net: Net, *shape: int) -> onnx.ModelProto:
    return net.model(net.Conv("image", net.weight(6, 3, *[3] * (len(shape) - 2))), shape=shape)


REFUSED: dict[str, tuple[Callable[[Net], onnx.ModelProto], str]] = {
    "1d": (lambda net: _flat(net, 1, 3, 8), "source.input"),
    "3d": (lambda net: _flat(net, 1, 3, 4, 8, 8), "source.input"),
    "two inputs": (lambda net: net.model(net.head(net.stem()), extra=("age",)), "source.inputs"),
    "two outputs": (_two_outputs, "source.outputs"),
    "a map": (lambda net: net.model(net.conv(net.stem(), 6, 6)), "source.outputs"),
    "one class": (lambda net: net.model(net.Gemm(net.pool(net.stem()), net.weight(6, 1))), "source.one-number"),
    "no second layer": (lambda net: net.model(net.pool(net.stem())), "layer.missing"),
    "no image": (lambda net: net.model(net.Relu(net.weight(1, 4))), "graph.constant-output"),
    "random": (lambda net: net.model(net.head(net.RandomNormalLike(net.stem()))), "source.operator"),
    "custom": (lambda net: net.model(net.head(net.Swish(net.stem(), domain="com.acme"))), "source.operator"),
    "integer": (_integers, "source.operator"),
    "quantized": (_quantized, "source.operator"),
    "if": (_if, "source.operator"),
    "loop": (_loop, "source.operator"),
    "columns": (_columns, "graph.batch-mixing"),
    "batch statistics behind noise": (lambda net: _centred(net, False), "graph.batch-mixing"),
    "batch statistics before noise": (lambda net: _centred(net, True), "graph.batch-mixing"),
    "dropout mask": (_masked, "dropout.mask-used"),
    "old opset": (lambda net: simple(Net(6)), "source.opset"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_sampled_is_named(case: str, tmp_path: Path) -> None:
    make, code = REFUSED[case]
    with raises(code):
        export(make(Net()), tmp_path)
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize("case", ["batch statistics behind noise", "batch statistics before noise"])
def test_a_deterministic_file_must_not_mix_images_either(case: str, tmp_path: Path) -> None:
    with raises("graph.batch-mixing"):
        export(REFUSED[case][0](Net()), tmp_path, inference=Inference.DETERMINISTIC)


def test_a_size_the_network_cannot_take(tmp_path: Path) -> None:
    net = Net()
    proto = net.model(net.MatMul(net.Flatten(net.stem()), net.weight(384, 4)), shape=("n", 3, "h", "w"))
    export(proto, tmp_path, size=(8, 8))
    with raises("source.size"):
        export(proto, tmp_path, size=(9, 8))
    with raises("source.size-open"):
        export(proto, tmp_path)
    with raises("argument.size"):
        export(simple(Net()), tmp_path, size=(8, 9))


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    for content in (b"", b"no model\n", simple(Net()).SerializeToString()[:-50]):
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match=r"net\.onnx (is not a valid|cannot be read as an) ONNX model"):
            third_party.load(path)
    for absent in (tmp_path, tmp_path / "absent.onnx"):
        with raises("source.missing", ModelFileError):
            third_party.load(absent)


def test_external_data_is_read_from_the_models_folder_only(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    path = tmp_path / "inside" / "net.onnx"
    onnx.save_model(simple(Net()), path, save_as_external_data=True, location="x.bin", size_threshold=0)
    assert third_party.load(path).classes == 4
    (tmp_path / "inside" / "x.bin").rename(tmp_path / "x.bin")
    with pytest.raises(ModelFileError, match=r"net\.onnx"):
        third_party.load(path)
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = "../x.bin"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelFileError, match=r"net\.onnx"):
        third_party.load(path)


# The command line.


@pytest.fixture
def network(monkeypatch, tmp_path) -> None:
    """net.onnx in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("net.onnx").write_bytes(wide().SerializeToString())


@pytest.mark.usefixtures("network")
def test_export_from_and_info(call) -> None:
    done = call(
        "export", "--from", "net.onnx", "--classes", "a, b,c,d", "--p", "0.1", "--p", "head=0.3", "--mean", "0.5"
    )
    assert done.code == 0, done.err
    assert "Next: uce-edge calibrate net-uce.onnx --data FOLDER" in done.err
    Path("names.txt").write_text("a\nb\n\nc\nd\n")
    assert call("export", "--from", "net.onnx", "--classes", "names.txt", "--out", "again.onnx").code == 0
    assert Model("net-uce.onnx", "cpu").classes == Model("again.onnx", "cpu").classes == ("a", "b", "c", "d")
    text = call("info", "net-uce.onnx", "--all").out
    for part in ("4: a, b, c, d", "imported from net.onnx", "3 layers", "p = 0.1   body.0", "p = 0.3   head",
                 "M once", "sha256 source", "8 x 8 x 3 uint8"):  # fmt: skip
        assert part in text
    document = json.loads(call("info", "net-uce.onnx", "--json").out)
    assert document["layers"][-1] == {"kind": "gaussian", "name": "head", "p": 0.3}
    assert document["image"]["mean"] == [0.5]
    again = call("export", "--from", "net-uce.onnx")
    assert again.code == 2
    assert "net-uce.onnx is a uce-edge model already" in again.err
    long = ",".join(f"class{i:04}" for i in range(1000))
    assert (
        "4 names, one per output of the model, but got 1000"
        in call("export", "--from", "net.onnx", "--classes", long).err
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--classes", "a,b"], "`classes` to be 4 names"),
        (["--classes", "latin1.txt"], "`classes` to be names, or a text file in UTF-8"),
        (["--mean", "1,2"], "`mean` to be one number or 3"),
        (["--mean", "x"], "`mean` to be numbers"),
        (["--mean", "nan"], "`mean` to be one number or 3"),
        (["--std", "0"], "`std` to be positive"),
        (["--std", "1,2"], "`std` to be one number or 3"),
        (["--scale", "0"], "`scale` and `std` to be positive"),
        (["--scale", "inf"], "`scale` and `std` to be positive"),
        (["--p", "1.5"], "`p` to be a rate between 0 and 1"),
        (["--p", "x=y"], "`p` to be a rate between 0 and 1"),
        (["--p", "abc=0.1"], "`p` to be a pattern for a layer after the first"),
        (["--p", "0.2", "--p", "stem=0.1"], "but got 'stem=0.1'"),
        (["--noisy", "last:0"], "`noisy` to be all, tail, last:6, no-depthwise or a pattern"),
        (["--noisy", "neck*"], "a pattern for one of body.0, body.1, head"),
        (["--size", "8"], "`size` to be HEIGHTxWIDTH"),
        (["--samples", "0"], "`samples` to be an integer between 1 and 4096"),
        (["--out", "m.bin"], "`out` to be a file name ending in .onnx"),
        (["--untrained", "resnet8"], "Choose one of"),
        (["runs/digits"], "Choose one of"),
        (["--noise", "none"], "--inference deterministic"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("network")
def test_wrong_arguments_are_named_and_nothing_is_written(call, arguments: list[str], sentence: str) -> None:
    Path("latin1.txt").write_bytes("é\n".encode("latin-1"))
    before = sorted(Path().rglob("*"))
    done = call("export", "--from", "net.onnx", *arguments)
    assert done.code == 2, done.err
    assert sentence in done.err
    assert done.err.count("\n") == 1
    assert sorted(Path().rglob("*")) == before


@pytest.fixture
def labelled(network: None, rng: np.random.Generator) -> Path:
    """data/ with the images of four classes, which differ in their colour."""
    colours = {"blue": (0, 0, 200), "gray": (99, 99, 99), "green": (0, 200, 0), "red": (200, 0, 0)}
    for name, colour in colours.items():
        folder = Path("data", name)
        folder.mkdir(parents=True)
        for number in range(70):
            pixels = np.clip(rng.normal(colour, 40, (8, 8, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return Path("data")


def test_labelled_images_make_somebody_else_s_file_complete(call, labelled: Path) -> None:
    done = call("export", "--from", "net.onnx", "--inference", "deterministic", "--data", labelled, "--out", "m.onnx")
    assert done.code == 0, done.err
    assert "Assumed order of the model's outputs: blue, gray, green, red." in done.err
    assert "Next: uce-edge predict --model m.onnx image.png --reject auto" in done.err
    model = Model("m.onnx", "cpu")
    assert model.classes == ("blue", "gray", "green", "red")
    assert model.metadata.calibration.samples == 1
    assert model.metadata.rule.gate.level <= 0.05
    own = np.stack([np.asarray(Image.open(path)) for path in sorted(labelled.rglob("*.png"))])
    assert (model.predict(own).novelty < model.metadata.rule.cutoff).mean() < 0.06
    assert sorted(path.name for path in Path().iterdir()) == ["data", "m.json", "m.onnx", "net.onnx"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--classes", "red,green,blue,white"], "the classes of data"),
        (["--target-error", "2"], "between 0 and 1"),
        (["--data", "nothing"], "`data`"),
    ],
)
@pytest.mark.usefixtures("labelled")
def test_wrong_images_are_named_before_anything_slow(call, arguments: list[str], sentence: str) -> None:
    done = call("export", "--from", "net.onnx", "--data", "data", *arguments, "--out", "m.onnx")
    assert done.code == 2, done.err
    assert sentence in done.err
    assert not Path("m.onnx").exists()


@pytest.mark.usefixtures("network")
def test_labelled_images_go_with_somebody_else_s_file(call) -> None:
    assert "need --from" in call("export", "runs/digits", "--data", "data").err
    assert "add --data" in call("export", "--from", "net.onnx", "--target-error", "0.1").err
