"""Cold start: commands from the shell and back.

    python benchmarks/speed/cold_start.py build/wheel-venv/bin/uce-edge

measures the program of `make wheel-check`, an environment without PyTorch, with the default model and a photo of a cat,
and writes the result into docs/benchmarks.md.
"""

import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE, PHOTO = ROOT / "docs" / "benchmarks.md", "examples/images/cat.jpg"
START = "From an installed wheel, without PyTorch"
AFTER = "\n## Training\n"
TURNS = 9
BARE = """
import os, sys
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import numpy as np, onnxruntime
from PIL import Image
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
_, height, width, channels = session.get_inputs()[0].shape
pixels = np.asarray(Image.open(sys.argv[2]).convert("RGB").resize((width, height)), np.uint8)[None]
print(session.run(["class_id", "uncertainty"], {"image": pixels, "seeds": np.arange(25, dtype=np.int32)}))
"""


def commands(model: Path, folder: Path) -> dict[str, list[str]]:
    """`uce-edge predict one.png`, and a script that does the least.

    Args:
        model: A file with Monte Carlo passes.
        folder: Where the image and the script may be written.
    """
    image, script = folder / "one.png", folder / "bare.py"
    Image.new("RGB", (32, 32), "gray").save(image)
    script.write_text(BARE)
    return {
        "uce-edge predict one.png": [sys.executable, "-m", "uce_edge", "predict", "--model", str(model), str(image)],
        "a bare script": [sys.executable, str(script), str(model), str(image)],
    }


def stored_paragraph() -> str:
    """The paragraph about the installed wheel that the page has."""
    found = re.search(rf"^{START}.*?\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def main(program: str) -> None:
    """Measure the installed program, and write the paragraph."""
    seconds = []
    for _ in range(TURNS):
        begin = time.perf_counter()
        done = subprocess.run([program, "predict", PHOTO], cwd=ROOT, capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - begin)
    if " cat" not in done.stdout.splitlines()[1]:
        raise SystemExit(f"{PHOTO} is no cat:\n{done.stdout}")
    paragraph = (
        f"{START}, `uce-edge predict {PHOTO}` with the default model (224x224, 1,000 classes) takes\n"
        f"{min(seconds):.2f} s from the shell command to its end, best of {TURNS}; the median is "
        f"{statistics.median(seconds):.2f} s (`benchmarks/speed/cold_start.py`).\n\n"
    )
    print(paragraph)
    text, before = PAGE.read_text(), stored_paragraph()
    text = text.replace(before, "") if before else text
    PAGE.write_text(text.replace(AFTER, f"\n{paragraph}{AFTER.lstrip()}", 1))


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).absolute()))
