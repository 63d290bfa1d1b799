"""`--range`, from the training images to the answer: the run and the file keep it, and the same pixels come out."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Call
from helpers.nets import Net, simple
from PIL import Image

from uce_edge import Model
from uce_edge.images.gray_range import Range
from uce_edge.images.gray_survey import RangeWarning


@pytest.fixture
def sensor(tmp_path: Path) -> Path:
    """A camera of 12 bits that writes 16-bit PNG files: dark things, and bright ones."""
    rng = np.random.default_rng(0)
    for name, low in (("bright", 2500), ("dark", 0)):
        (tmp_path / "sensor" / name).mkdir(parents=True)
        for number in range(30):
            values = rng.integers(low, low + 1500, (8, 8)).astype(np.uint16)
            Image.fromarray(values).save(tmp_path / "sensor" / name / f"{number}.png")
    return tmp_path / "sensor"


def test_auto_is_chosen_said_stored_and_applied(call: Call, sensor: Path, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "sensor.onnx"
    done = call("train", "--data", sensor, "--size", "8x8", "--epochs", 1, "--dropout", "none", "--out", run)
    assert done.code == 0, done.err
    assert "0..4095" in done.err
    done = call("export", run, "--inference", "deterministic", "--out", file)
    assert done.code == 0, done.err
    model = Model(file, "cpu")
    assert model.metadata.image.range == Range(0, 4095)
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 65
    plain = np.floor(deep * (255 / 4095) + 0.5).astype(np.uint8)
    by_depth, by_bytes = model.predict([deep]), model.predict([plain])
    np.testing.assert_array_equal(by_depth.probabilities, by_bytes.probabilities)
    assert "gray values 0..4095" in call("info", file).out
    Image.fromarray((deep * 16).astype(np.uint16)).save(tmp_path / "other.png")
    with pytest.warns(RangeWarning, match="range"):
        call("predict", "--model", file, tmp_path / "other.png")


def test_a_network_of_others_is_given_a_range(call: Call, sensor: Path, tmp_path: Path) -> None:
    onnx.save(simple(Net()), tmp_path / "net.onnx")
    file = tmp_path / "out.onnx"
    options = ("export", "--from", tmp_path / "net.onnx", "--inference", "deterministic", "--out", file)
    done = call(*options, "--range", "-1000..400")
    assert done.code == 0, done.err
    assert Model(file, "cpu").metadata.image.range == Range(-1000, 400)
    assert call(*options, "--range", "dark").code == 2
