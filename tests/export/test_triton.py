"""A repository for Triton: its configuration follows the published schema, and is true of the file beside it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from conftest import GOLDEN, Call
from helpers.served import started

from uce_edge import Model, contract

triton = pytest.importorskip("uce_edge_export.publish.triton", reason="the extra `recalibrate` is not installed")
schema = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="tritonclient is not installed")
text_format = pytest.importorskip("google.protobuf.text_format")

KINDS = ["novelty", "moments", "laplace", "ensemble"]
TYPES = {"tensor(uint8)": "TYPE_UINT8", "tensor(int32)": "TYPE_INT32", "tensor(float)": "TYPE_FP32"}


def read(folder: Path) -> Any:
    return text_format.Parse((folder / "config.pbtxt").read_text(), schema.ModelConfig())


def lengths(tensor: Any) -> list[int]:
    """The shape of a tensor of the file, as Triton sees it: what is open is -1."""
    return [length if isinstance(length, int) else -1 for length in tensor.shape]


@pytest.mark.parametrize("kind", KINDS)
def test_the_configuration_is_true_of_the_file(kind: str, tmp_path: Path) -> None:
    source = GOLDEN / f"digits-{kind}.onnx"
    folder = triton.write_repository(source, tmp_path / "models")
    config = read(folder)
    assert (config.name, config.backend) == (f"digits-{kind}", "onnxruntime")
    assert config.HasField("dynamic_batching")
    session = onnxruntime.InferenceSession(folder / "1" / config.default_model_filename)
    (fed,), (declared,) = session.get_inputs(), config.input
    assert (fed.name, declared.name, TYPES[fed.type]) == ("image", "image", schema.DataType.Name(declared.data_type))
    assert lengths(fed) == [-1, *declared.dims]
    given = {tensor.name: tensor for tensor in session.get_outputs()}
    names = [output.name for output in config.output]
    assert not {contract.LOGITS, contract.PASS_PROBABILITIES} & set(names)
    assert len(names) == len(given) - 2
    answers = {}
    for batch in (1, 3):
        pixels = np.random.default_rng(1).integers(0, 256, (3, *declared.dims), np.uint8)[:batch]
        answers[batch] = dict(zip(names, session.run(names, {"image": pixels}), strict=True))
    for output in config.output:
        inner = list(output.reshape.shape) if output.HasField("reshape") else list(output.dims)
        assert output.dims  # Triton refuses none
        assert np.prod(output.dims) == np.prod(inner)
        assert TYPES[given[output.name].type] == schema.DataType.Name(output.data_type)
        assert lengths(given[output.name]) == [-1, *inner]  # Triton compares exactly
        for batch, values in answers.items():
            assert list(values[output.name].shape) == [batch, *inner]
        np.testing.assert_allclose(answers[1][output.name], answers[3][output.name][:1], atol=1e-6)
    own = Model(source, "cpu").predict(pixels)
    np.testing.assert_allclose(answers[3]["probabilities"], own.probabilities, atol=1e-5)
    np.testing.assert_allclose(answers[3]["uncertainty"], own.uncertainty, atol=1e-5)


def test_labels_and_the_image_of_the_warm_up_are_there(tmp_path: Path) -> None:
    folder = triton.write_repository(GOLDEN / "digits-mc.onnx", tmp_path)
    config = read(folder)
    assert (folder / config.output[0].label_filename).read_text().splitlines() == [str(digit) for digit in range(10)]
    (warm_up,) = config.model_warmup
    fed = warm_up.inputs["image"]
    raw = (folder / "warmup" / fed.input_data_file).read_bytes()
    assert (warm_up.batch_size, len(raw)) == (1, np.prod(fed.dims))
    model = Model(folder / "1" / "model.onnx", "cpu")
    probe = next(probe for probe in model.metadata.probe if probe.pattern == "weyl")
    said = model.predict(np.frombuffer(raw, np.uint8).reshape(1, *fed.dims))
    np.testing.assert_allclose(said.probabilities[0], probe.outputs["probabilities"], atol=1e-6)


def test_a_batch_is_as_large_as_its_passes_allow() -> None:
    small = Model(GOLDEN / "digits-mc.onnx", "cpu").metadata
    large = json.loads(small.to_json())
    large["costs"] = {"macs_once": 0, "macs_per_pass": 1, "bytes_per_pass": 2**26}
    assert triton.max_batch(small) == 32
    assert triton.max_batch(type(small).from_document(large)) == 1


def test_a_second_run_changes_nothing_and_another_model_is_not_written_over(tmp_path: Path, call: Call) -> None:
    model, other = tmp_path / "a.onnx", tmp_path / "other" / "a.onnx"
    other.parent.mkdir()
    shutil.copy(GOLDEN / "digits-mc.onnx", model)
    shutil.copy(GOLDEN / "digits-moments.onnx", other)
    repository = tmp_path / "models"
    said = call("export", model, "--triton", repository)
    assert said.code == 0, said.err
    written = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in repository.rglob("*") if path.is_file()}
    assert call("export", model, "--triton", repository).code == 0
    said = call("export", other, "--triton", repository)
    assert (said.code, "it belongs to another model, or was edited" in said.err) == (2, True)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in written} == written
    assert len([path for path in repository.rglob("*") if path.is_file()]) == len(written)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["MODEL"], "Choose what to write with --triton DIR, --hub DIR or --ort"),
        (["MODEL", "--triton", "FILE"], "is a file, not a folder"),
        (["MODEL", "--triton", "x", "--hub", "x"], "different files"),
        (["MODEL", "--triton", "x", "--samples", "5"], "--samples cannot change it"),
        (["MODEL", "MODEL", "--triton", "x"], "only one can be given"),
        (["nobody.onnx", "--triton", "x"], "no model file"),
        (["a b.onnx", "--triton", "x"], "the name of the model"),
        (["--untrained", "resnet9", "--noise", "input", "--triton", "x"], "for experiments"),
    ],
)
def test_what_cannot_be_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("MODEL", "a b.onnx"):
        shutil.copy(GOLDEN / "digits-moments.onnx", name.replace("MODEL", "model.onnx"))
    Path("FILE").write_text("")
    said = call("export", *(word.replace("MODEL", "model.onnx") for word in arguments))
    assert said.code in (1, 2)
    assert words in said.err, said.err
    assert not Path("x").exists()


def test_the_readme_says_how_to_ask(tmp_path: Path) -> None:
    """Its program runs against a server of the same protocol, which is not Triton."""
    pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
    folder = triton.write_repository(GOLDEN / "digits-novelty.onnx", tmp_path)
    program = (folder / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    assert "0.0.1:8000" in program
    with started(f"digits-novelty={folder / '1' / 'model.onnx'}") as server:
        found: dict[str, Any] = {}
        exec(program.replace("8000", str(server.port)), found)
        found["client"].close()
    own = Model(GOLDEN / "digits-novelty.onnx", "cpu").predict(found["pixels"], reject="auto")
    assert found["label"].tolist() == own.class_ids.tolist()
    assert found["accepted"].tolist() == [str(decision) == "accept" for decision in own.decisions]
