"""Predicts many times in a process of its own, and tells what that left behind: memory, descriptors, threads.

python tests/soak/predicting.py 100000
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from uce_edge import Model

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def left() -> dict[str, int]:
    """What the process holds now."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "kilobytes": int(status["VmRSS"].split()[0]),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "threads": int(status["Threads"]),
    }


def main(count: int) -> None:
    """One image after another by every way that there is; and a look after each tenth."""
    warnings.simplefilter("ignore")
    model = Model(GOLDEN / "digits-novelty.onnx", "cpu", threads=1)
    spec = model.metadata.image
    pixels = np.random.default_rng(0).integers(0, 256, (16, spec.height, spec.width, spec.channels), np.uint8)
    image, broken = Path(sys.argv[2]) / "image.pgm", Path(sys.argv[2]) / "broken.png"
    image.write_bytes(f"P5 {spec.width} {spec.height} 255\n".encode() + pixels[0, ..., 0].tobytes())
    broken.write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    looks, start = [], time.monotonic()
    for number in range(count):
        match number % 4:
            case 0 | 1:
                model.predict(pixels[number % 16][None], samples=2, seed=number % 4096)
            case 2:
                model.predict(pixels[:1], samples=10, reject=0.3, adaptive=0.1)
            case _:
                for answer in model.answers([image, broken], samples=2):
                    json.dumps(answer.as_dict())
        if (number + 1) % max(count // 10, 1) == 0:
            looks.append(left())
    print(json.dumps({"looks": looks, "seconds": round(time.monotonic() - start, 1)}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
