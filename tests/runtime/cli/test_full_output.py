"""What cannot be written to standard output is told in a sentence."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import GOLDEN, ROOT

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no such device")
@pytest.mark.parametrize("how", ["--jsonl", "--csv", "--json"])
def test_a_full_disk_behind_standard_output_is_told(how: str) -> None:
    image = ROOT / "tests" / "cifar" / "frog.png"
    command = [sys.executable, "-m", "uce_edge", "predict", image, "--model", GOLDEN / "digits-mc.onnx", how]
    with FULL.open("w") as output:
        ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 1
    assert "Cannot write the output: No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
