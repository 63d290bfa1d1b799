"""A file is published once: whenever the process dies, a model is whole and no description is a wrong one."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from conftest import GOLDEN, Digits
from helpers.errors import raises

from uce_edge.datasets.splits import Dataset, Split
from uce_edge.errors import ImageError, ModelFileError, UceEdgeError
from uce_edge.runtime.model import Model
from uce_edge_export.publish.draft import Draft, publish
from uce_edge_train.export import export_run

SOURCE = GOLDEN / "digits-mc.onnx"

# Publishes a changed copy over m.onnx, and dies before a given change of a name in the folder.
DYING = """
import os, sys
from dataclasses import replace
import numpy as np
import onnx_ir as ir
from uce_edge.runtime.model import Model
from uce_edge_export.publish.draft import Draft, publish

source, out, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
folder = os.path.dirname(out)

def die(event, arguments):
    global left
    if event in ("os.rename", "os.remove") and os.path.dirname(os.fspath(arguments[0])) == folder:
        left -= 1
        if left < 0:
            os._exit(9)

model, metadata = ir.load(source), replace(Model(source, "cpu").metadata, architecture="new")
sys.addaudithook(die)
with publish(model, metadata, out) as draft:
    draft.describe(replace(metadata, architecture="newest"))
"""


def old_pair(folder: Path) -> Path:
    out = folder / "m.onnx"
    with publish(ir.load(SOURCE), replace(Model(SOURCE, "cpu").metadata, architecture="old"), out):
        pass
    return out


def test_killed_at_any_change_of_a_name_it_leaves_a_whole_model_and_no_wrong_description(tmp_path: Path) -> None:
    states = []
    for kill_at in range(20):
        folder = tmp_path / str(kill_at)
        out = old_pair(folder)
        done = subprocess.run([sys.executable, "-c", DYING, SOURCE, out, str(kill_at)], check=False)
        metadata = Model(out, "cpu").metadata
        description = folder / "m.json"
        if description.exists():
            assert json.loads(description.read_text()) == json.loads(metadata.to_json())
        states.append((metadata.architecture, description.exists()))
        if done.returncode == 0:
            break
        assert done.returncode == 9
    assert done.returncode == 0
    in_order = [("old", True), ("old", False), ("newest", False), ("newest", True)]
    assert list(dict.fromkeys(states)) == in_order
    assert sorted(path.name for path in folder.iterdir()) == ["m.json", "m.onnx"]


def test_a_block_that_fails_leaves_the_old_pair(tmp_path: Path) -> None:
    out = old_pair(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(KeyboardInterrupt), publish(ir.load(SOURCE), Model(SOURCE, "cpu").metadata, out):
        raise KeyboardInterrupt
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_model_that_cannot_take_its_place_gives_the_description_back(tmp_path: Path) -> None:
    out = old_pair(tmp_path)
    out.unlink()
    out.mkdir()
    before = (tmp_path / "m.json").read_bytes()
    with (
        pytest.raises(UceEdgeError, match=r"Cannot write .*m\.onnx: Is a directory"),
        publish(ir.load(SOURCE), Model(SOURCE, "cpu").metadata, out),
    ):
        pass
    assert (tmp_path / "m.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.json", "m.onnx"]


def test_a_description_that_cannot_be_replaced_leaves_the_old_model(tmp_path: Path) -> None:
    out = old_pair(tmp_path)
    before = out.read_bytes()
    (tmp_path / "m.json").unlink()
    (tmp_path / "m.json").mkdir()
    with (
        pytest.raises(UceEdgeError, match=r"Cannot write .*m\.json"),
        publish(ir.load(SOURCE), Model(SOURCE, "cpu").metadata, out),
    ):
        pass
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.json", "m.onnx"]


def test_a_run_whose_promise_cannot_be_measured_writes_nothing(digits: Digits, tmp_path: Path) -> None:
    splits = dict(digits.dataset.splits)
    held_out = splits["guarantee"]
    splits["guarantee"] = Split(held_out.images[:, :-1], held_out.labels)  # the file refuses such images
    odd = Dataset(digits.dataset.name, digits.dataset.class_names, splits)
    with raises("argument.images", ImageError):
        export_run(digits.run, tmp_path / "m.onnx", odd)
    assert list(tmp_path.iterdir()) == []
    shutil.copy(digits.model, tmp_path / "m.onnx")
    with pytest.raises(ImageError):
        export_run(digits.run, tmp_path / "m.onnx", odd)
    assert (tmp_path / "m.onnx").read_bytes() == digits.model.read_bytes()


def test_a_model_and_a_draft_are_opened_from_bytes() -> None:
    content, images = SOURCE.read_bytes(), np.zeros((2, 8, 8, 1), np.uint8)
    file, memory = Model(SOURCE, "cpu"), Model(content, "cpu")
    assert memory.content() == content
    assert memory.sha256 == file.sha256
    np.testing.assert_array_equal(memory.predict(images).probabilities, file.predict(images).probabilities)
    draft = Draft(content, file.metadata)
    opened = draft.model
    draft.describe(replace(draft.metadata, architecture="newest"))
    assert draft.model is opened  # the graph is the same
    draft.rewrite(draft.graph())
    assert draft.model is not opened
    assert draft.model.metadata.architecture == "newest"
    assert draft.metadata.digests == Model(draft.content(), "cpu").digests
    with pytest.raises(ModelFileError):
        Model(b"not a model", "cpu")
