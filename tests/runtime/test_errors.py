"""Messages name what their reader writes: arguments in Python, options on the command line."""

from pathlib import Path

import pytest
from conftest import GOLDEN, Call
from PIL import Image

from uce_edge import Model, UceEdgeError
from uce_edge.errors import argument, naming_options
from uce_edge.runtime.providers import Device

SPELLED = [
    (("samples", 25), "samples=25", "--samples 25"),
    (("max_memory",), "max_memory=", "--max-memory"),
    (("device", Device.CPU), "device='cpu'", "--device cpu"),
    (("verify", False), "verify=False", "--no-verify"),
    (("download", True), "download=True", "--download"),
]


@pytest.mark.parametrize(("given", "python", "command_line"), SPELLED)
def test_an_argument_is_spelled_as_its_reader_writes_it(given, python: str, command_line: str) -> None:
    assert argument(*given) == python
    with naming_options():
        assert argument(*given) == command_line
        with naming_options(False):
            assert argument(*given) == python
    assert argument(*given) == python


@pytest.mark.parametrize(
    ("wrong", "python", "command_line"),
    [
        ({"samples": 0}, "samples=25", "--samples 25"),
        ({"seed": -1}, "seed=0", "--seed 0"),
        ({"reject": 2.0}, "reject=0.3", "--reject 0.3"),
        ({"adaptive": 2.0}, "adaptive=0.1", "--adaptive 0.1"),
    ],
)
def test_one_mistake_is_told_in_two_tongues(
    call: Call, tmp_path: Path, wrong: dict[str, object], python: str, command_line: str
) -> None:
    file, image = GOLDEN / "digits-mc.onnx", tmp_path / "black.png"
    Image.new("L", (8, 8)).save(image)
    with pytest.raises(UceEdgeError) as error:
        Model(file, "cpu").predict([str(image)], **wrong)  # type: ignore[arg-type]
    assert python in str(error.value)
    assert "--" not in str(error.value).partition("uce-edge calibrate")[0]
    ((name, value),) = wrong.items()
    printed = call("predict", "--model", file, image, f"--{name}={value}")
    assert printed.code == 2
    assert command_line in printed.err
    assert python not in printed.err
