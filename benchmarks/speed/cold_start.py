"""The commands of which cold start and load time are measured: from the shell and back."""

import sys
from pathlib import Path

from PIL import Image

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
