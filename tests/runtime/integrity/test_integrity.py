"""A file that was changed after it was published is refused, by whichever byte."""

import gc
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import GOLDEN, Call
from helpers.errors import raises

from uce_edge import IntegrityWarning, Model, contract, models
from uce_edge.audit.decision_log import Audit
from uce_edge.errors import DeviceWarning, ModelFileError
from uce_edge.integrity import protobuf, verification
from uce_edge.integrity.digests import MARK, of_document
from uce_edge.integrity.protobuf import ExternalDataError
from uce_edge.integrity.self_test import Pattern, image
from uce_edge.metadata import Metadata
from uce_edge.models import bundled, kinds
from uce_edge.runtime import providers

pytest.importorskip("onnx_ir", reason="publishing a file needs onnx-ir")
import onnx_ir as ir

from uce_edge_export import ort_format
from uce_edge_export.publish.draft import Draft, publish
from uce_edge_export.transform import baked_seeds

OLD = GOLDEN / "digits-minor-0.onnx"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with digests and probe images, and its description."""
    path = tmp_path_factory.mktemp("published") / "m.onnx"
    with publish(ir.load(OLD), Model(OLD, "cpu").metadata, path):
        pass
    return path


@pytest.fixture
def copied(published: Path, tmp_path: Path) -> Path:
    shutil.copy(published.with_suffix(".json"), tmp_path)
    return Path(shutil.copy(published, tmp_path))


def resealed(path: Path, out: Path, **changes: object) -> Path:
    """A file that says something else of itself, with digests that fit."""
    draft = Draft(path.read_bytes(), Model(path, "cpu").metadata)
    draft.describe(replace(draft.metadata, **changes))  # type: ignore[arg-type]
    out.write_bytes(draft.content())
    return out


# What is stored


def test_the_digest_of_the_graph_is_that_of_the_file_without_its_document(published: Path) -> None:
    proto = onnx.load(published)
    (entry,) = (entry for entry in proto.metadata_props if entry.key == contract.KEY)
    stored = json.loads(entry.value)["digests"]["graph"]
    proto.metadata_props.remove(entry)
    assert hashlib.sha256(proto.SerializeToString()).hexdigest() == stored


def test_the_digest_of_the_document_does_not_depend_on_its_layout(published: Path) -> None:
    metadata = Model(published, "cpu").metadata
    digest = metadata.digests.metadata
    text = published.with_suffix(".json").read_text()
    compact = json.dumps(json.loads(text) | {"digests": metadata.digests.to_document() | {"metadata": ""}},
                         sort_keys=True, separators=(",", ":"))  # fmt: skip
    assert hashlib.sha256(compact.encode()).hexdigest() == digest
    assert {of_document(one, digest) for one in (text, metadata.to_json())} == {digest}
    assert of_document('{"a b": "c\\" d"}') == hashlib.sha256(b'{"a b":"c\\" d"}').hexdigest()


@pytest.mark.parametrize("kind", kinds("cifar10"))
def test_the_bundled_files_have_them(kind: str) -> None:
    model = Model(bundled(kind, "cifar10"), "cpu")
    assert model.digests == model.metadata.digests is not None
    tested = model.self_test()
    assert tested.images == 2
    assert tested.passed


# Changed bytes


def test_no_changed_byte_goes_unnoticed(published: Path, tmp_path: Path) -> None:
    content, dice, path = published.read_bytes(), random.Random(0), tmp_path / "m.onnx"
    start = content.rindex(contract.KEY.encode(), 0, content.index(b'"architecture"'))
    anywhere = [dice.randrange(len(content)) for _ in range(150)]
    in_the_document = [dice.randrange(start, len(content)) for _ in range(150)]
    unnoticed = []
    for place in anywhere + in_the_document:
        changed = bytearray(content)
        changed[place] ^= dice.randrange(1, 256)
        path.write_bytes(changed)
        try:
            if (
                verification.check(path, bytes(changed)) is None
            ):  # what says nothing of itself any more is not one of ours
                Model(path, "cpu")
            unnoticed.append(place)
        except ModelFileError:
            pass
    assert unnoticed == []


THROUGH_MODEL = """
import random, sys
from pathlib import Path
from uce_edge import Model
from uce_edge.errors import UceEdgeError

source, path = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
dice, noticed = random.Random(1), 0
for _ in range(40):
    changed = bytearray(source)
    changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    path.write_bytes(changed)
    try:
        Model(path, "cpu")
    except UceEdgeError as error:
        assert "\\n" not in str(error) and str(path) in str(error), error
        noticed += 1
print(noticed)
"""


def test_a_model_refuses_them_with_a_sentence(published: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", THROUGH_MODEL, published, tmp_path / "m.onnx"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "40\n", "")


def test_without_the_check_most_of_them_would_answer(published: Path, tmp_path: Path) -> None:
    """What the digests are for: a changed weight loads, and answers otherwise."""
    changed = bytearray(published.read_bytes())
    middle = len(changed) // 2
    changed[middle : middle + 400] = bytes(400)
    (tmp_path / "m.onnx").write_bytes(changed)
    with raises("digest.mismatch"):
        Model(tmp_path / "m.onnx", "cpu")
    with pytest.warns(IntegrityWarning, match="without a check"):
        careless = Model(tmp_path / "m.onnx", "cpu", verify=False)
    assert careless.digests is None


def edited(path: Path, out: Path, change: str, to: str) -> Path:
    proto = onnx.load(path)
    (entry,) = (entry for entry in proto.metadata_props if entry.key == contract.KEY)
    assert change in entry.value
    entry.value = entry.value.replace(change, to, 1)
    onnx.save(proto, out)
    return out


@pytest.mark.parametrize(
    ("change", "to", "code"),
    [
        ('"samples": 25', '"samples": 24', "digest.mismatch"),
        ('"digests"', '"digestz"', "digest.missing"),
        ('"classes": ["0", "1"', '"classes": ["1", "0"', "digest.mismatch"),
    ],
)
def test_an_edited_document_is_refused(published: Path, tmp_path: Path, change: str, to: str, code: str) -> None:
    with raises(code):
        Model(edited(published, tmp_path / "m.onnx", change, to), "cpu")


def test_plain_keys_of_other_tools_are_covered(published: Path, tmp_path: Path) -> None:
    proto = onnx.load(published)
    assert any(entry.key == MARK for entry in proto.metadata_props)
    next(entry for entry in proto.metadata_props if entry.key == "imgsz").value = "[9, 9]"
    onnx.save(proto, tmp_path / "m.onnx")
    with raises("digest.mismatch"):
        Model(tmp_path / "m.onnx", "cpu")


def test_a_file_that_describes_itself_twice_is_refused(published: Path, tmp_path: Path) -> None:
    proto = onnx.load(published)
    proto.metadata_props.add(key=contract.KEY, value="{}")
    onnx.save(proto, tmp_path / "m.onnx")
    with raises("digest.mismatch"):
        Model(tmp_path / "m.onnx", "cpu")


# Files from before, and several files


def test_an_older_file_loads_and_says_that_it_has_none(call: Call) -> None:
    assert Model(OLD, "cpu").digests is None
    assert "none: the file was written before digests existed" in call("info", OLD).out
    printed = call("verify", OLD)
    assert (printed.code, printed.out) == (1, "")
    assert "has no digests" in printed.err


def test_weights_in_another_file_are_refused(published: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save_model(onnx.load(published), path, save_as_external_data=True, location="m.bin", size_threshold=0)
    with raises("model.external-data", ModelFileError):
        Model(path, "cpu", verify=False)
    # In an attribute of a node, too; and a word in a text is no file.
    tensor = onnx.helper.make_tensor("t", onnx.TensorProto.FLOAT, [1], [0.0])
    tensor.external_data.add(key="location", value="x.bin")
    node = onnx.helper.make_node("Constant", [], ["y"], value=tensor)
    graph = onnx.helper.make_graph([node], "location", [], [])
    with pytest.raises(ExternalDataError):
        protobuf.check(onnx.helper.make_model(graph).SerializeToString())
    del tensor.external_data[:]
    node = onnx.helper.make_node("Constant", [], ["y"], value=tensor)
    graph = onnx.helper.make_graph([node], "location", [], [])
    protobuf.check(onnx.helper.make_model(graph).SerializeToString())


# The description, and ONNX Runtime's own format


def test_a_description_of_another_model_is_noticed(copied: Path, call: Call) -> None:
    assert call("verify", copied).code == 0
    # Of an earlier calibration: the same graph, and another number of passes.
    earlier = Model(resealed(copied, copied.with_name("earlier.onnx"), samples=24), "cpu").metadata
    assert earlier.digests.graph == Model(copied, "cpu").digests.graph
    copied.with_suffix(".json").write_text(earlier.to_json(indent=2))
    assert call("verify", copied).code == 1
    with raises("description.mismatch"):
        verification.check_description(copied, Model(copied, "cpu").metadata)


def test_an_edited_description_is_noticed(copied: Path, call: Call) -> None:
    description = copied.with_suffix(".json")
    description.write_text(description.read_text().replace('"samples": 25', '"samples": 26'))
    printed = call("verify", copied)
    assert printed.code == 1
    assert f"uce-edge info {copied} --json > {description}" in printed.err
    with raises("digest.mismatch"):
        verification.check_description(copied, Model(copied, "cpu").metadata)


def test_an_ort_file_is_compared_with_its_description(copied: Path, call: Call) -> None:
    converted = ort_format.convert(copied)
    assert Model(converted, "cpu").digests.ort == hashlib.sha256(converted.read_bytes()).hexdigest()
    assert call("verify", converted).code == call("verify", copied).code == 0
    content = converted.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(content), 20):
        changed = bytearray(content)
        changed[place] ^= 1
        if verification.is_ort(changed):
            converted.write_bytes(changed)
            with raises("digest.mismatch"):
                Model(converted, "cpu")
    converted.write_bytes(content)
    copied.with_suffix(".json").unlink()
    with pytest.warns(IntegrityWarning, match="cannot be checked"):
        Model(converted, "cpu")


# Probe images


def test_the_probe_images_are_made_by_the_rule_of_the_contract(published: Path) -> None:
    spec = replace(Model(published, "cpu").metadata.image, height=3, width=4, channels=2)
    weyl, ramp = (image(pattern, spec) for pattern in Pattern)
    for y in range(3):
        for x in range(4):
            for c in range(2):
                assert weyl[y, x, c] == (2654435761 * ((y * 4 + x) * 2 + c) % 2**32) >> 24
                assert ramp[y, x, c] == 255 * (y + x + c) // (3 + 4 + 2 - 3)
    assert weyl.dtype == ramp.dtype == np.uint8
    assert image(Pattern.RAMP, replace(spec, height=1, width=1, channels=1)).item() == 0


def test_verify_tells_what_it_compared(copied: Path, call: Call) -> None:
    printed = call("verify", copied)
    assert (printed.code, printed.err) == (0, "")
    digests = Model(copied, "cpu").digests
    for word in (digests.graph, digests.metadata, "that of this file", "2 images answered as published"):
        assert word in printed.out
    found = json.loads(call("verify", copied, "--json").out)
    assert found["digests"] == digests.to_document() | {"ort": None}
    assert found["self_test"]["difference"] <= found["self_test"]["allowed"]


def wrong_probe(path: Path, out: Path) -> Path:
    """A file whose probe has another answer, as if this computer were the one that computes wrongly."""
    probes = list(Model(path, "cpu").metadata.probe)
    outputs = probes[1].outputs
    probes[1] = replace(probes[1], outputs=outputs | {"uncertainty": [outputs["uncertainty"][0] + 0.05]})
    return resealed(path, out, probe=tuple(probes))


def test_another_answer_to_a_probe_is_noticed(published: Path, tmp_path: Path, call: Call) -> None:
    path = wrong_probe(published, tmp_path / "m.onnx")
    printed = call("verify", path)
    assert printed.code == 1
    assert "probe images" in printed.err
    found = Model(path, "cpu").self_test()  # on the CPU, only on request
    assert not found.passed
    assert found.difference == pytest.approx(0.05, abs=1e-3)


def test_a_device_that_answers_otherwise_is_not_used(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure's provider is in every wheel, takes no node of ours, and is not the processor: it stands for a card."""
    other = replace(providers._ACCELERATORS[providers.Device.CUDA], providers=("AzureExecutionProvider",))
    if other.providers[0] not in providers.onnxruntime().get_available_providers():
        pytest.skip("this ONNX Runtime has no second provider")
    monkeypatch.setitem(providers._ACCELERATORS, providers.Device.CUDA, other)
    assert Model(published, "cuda").provider == "AzureExecutionProvider"
    path = wrong_probe(published, tmp_path / "m.onnx")
    with raises("device.untrusted"):
        Model(path, "cuda")
    with pytest.warns(DeviceWarning, match="Running on the CPU"):
        assert Model(path, "auto").provider == "CPUExecutionProvider"
    with pytest.warns(IntegrityWarning):
        assert Model(path, "cuda", verify=False).provider == "AzureExecutionProvider"


def test_an_answer_that_is_not_a_number_fails(published: Path) -> None:
    from uce_edge.integrity.self_test import compare

    stored = Model(published, "cpu").metadata.probe
    answered = [one.outputs | {"uncertainty": [float("nan")]} for one in stored]
    assert not compare(stored, answered, "CPUExecutionProvider", exact=False).passed


def test_what_is_read_from_a_file_is_what_was_sealed(published: Path) -> None:
    metadata = Model(published, "cpu").metadata
    assert Metadata.from_properties(metadata.to_properties(), "m.onnx") == metadata
    assert metadata.sealed(metadata.digests.graph) == metadata


# The same bytes are checked, loaded and logged


def swap_after(monkeypatch: pytest.MonkeyPatch, path: Path, other: bytes) -> None:
    """Another file takes the place as soon as the check is over."""
    check = verification.check

    def checked(*args: object, **options: object) -> object:
        found = check(*args, **options)  # type: ignore[arg-type]
        path.write_bytes(other)
        return found

    monkeypatch.setattr(verification, "check", checked)


def test_a_file_that_is_swapped_after_the_check_is_not_loaded(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = copied.read_bytes()
    other = edited(copied, tmp_path / "other.onnx", '"classes": ["0"', '"classes": ["evil"').read_bytes()
    swap_after(monkeypatch, copied, other)
    model = Model(copied, "cpu")
    assert copied.read_bytes() == other
    assert model.classes[0] == "0"
    assert model.sha256 == hashlib.sha256(published).hexdigest()
    log = Audit(tmp_path / "log.jsonl", model)
    log.add(next(model.answers([tmp_path / "nothing.png"])))
    log.close()
    assert json.loads((tmp_path / "log.jsonl").read_text())["model_sha256"] == model.sha256
    with raises("model.replaced"):  # what is written from a model is that model
        model.content()
    copied.write_bytes(published)
    with raises("model.replaced"):
        baked_seeds.bake_file(copied, tmp_path / "baked.onnx")
    assert not (tmp_path / "baked.onnx").exists()


def test_a_loaded_model_does_not_keep_its_file_in_memory(published: Path) -> None:
    Model(published, "cpu")  # imports
    gc.collect()
    tracemalloc.start()
    try:
        model = Model(published, "cpu")
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < published.stat().st_size / 2
        assert model.sha256
    finally:
        tracemalloc.stop()


def test_an_onnx_file_that_looks_like_the_other_format_is_not_waved_through(published: Path, tmp_path: Path) -> None:
    """A producer called ORTM at the right place."""
    proto, path = onnx.load(published), tmp_path / "m.onnx"
    assert proto.ir_version < 128
    proto.producer_name = "ORTM"
    proto.graph.initializer[0].raw_data = bytes(len(proto.graph.initializer[0].raw_data))
    path.write_bytes(proto.SerializeToString())
    assert verification.is_ort(path.read_bytes())
    with pytest.raises(ModelFileError):
        Model(path, "cpu")


@pytest.mark.parametrize("kind", ["pipe", "folder", "long name", "sparse", "empty"])
def test_what_is_not_a_model_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.onnx"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "long name":
        path = tmp_path / f"{'m' * 300}.onnx"
    else:
        with path.open("wb") as file:
            file.truncate(3 << 30 if kind == "sparse" else 0)
    with pytest.raises(ModelFileError):
        models.load(path, "cpu")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"samples":', '"samples{own}":'),
        ('"classes": ["0"', '"classes": ["0{own}"'),
        ('"digests": {', '"digests": {"x": "{own}", '),
        ('{"', '{"{own}": 0, "'),
    ],
)
def test_the_digest_is_left_out_in_its_own_place_alone(
    published: Path, tmp_path: Path, before: str, after: str
) -> None:
    own = Model(published, "cpu").digests.metadata
    with raises("digest.mismatch"):
        Model(edited(published, tmp_path / "m.onnx", before, after.replace("{own}", own)), "cpu")


@pytest.mark.parametrize("depth", [34, 200, 3000])
def test_nested_graphs_are_refused_with_a_sentence(tmp_path: Path, call: Call, depth: int) -> None:
    graph = b""
    for _ in range(depth):
        graph = protobuf.bytes_field(1, protobuf.bytes_field(5, protobuf.bytes_field(6, graph)))
    path = tmp_path / "m.onnx"
    path.write_bytes(protobuf.bytes_field(7, graph))
    image = GOLDEN / "pixels"
    out = tmp_path / "out.onnx"
    for words in (["info", path], ["verify", path], ["predict", image, "--model", path],
                  ["export", "--from", path, "--data", "digits", "--out", out]):  # fmt: skip
        printed = call(*words)
        assert printed.code == 1
        assert printed.err.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in printed.err
    assert not out.exists()
