"""Many predictions: the same from every thread, and nothing left behind.

`make soak` makes UCE_EDGE_SOAK predictions, `make test` two thousand.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from conftest import GOLDEN

from uce_edge import Model, Prediction

LONG = int(os.environ.get("UCE_EDGE_SOAK", "0"))
THREADS = 8


@pytest.mark.filterwarnings("ignore::uce_edge.runtime.model.SamplesWarning")
@pytest.mark.parametrize("name", ["digits-novelty.onnx", "digits-moments.onnx"])
def test_eight_threads_on_one_model_give_the_bits_of_one(name: str) -> None:
    model = Model(GOLDEN / name, "cpu", threads=2)
    spec, each = model.metadata.image, 200 if LONG else 12
    images = np.random.default_rng(0).integers(0, 256, (5, spec.height, spec.width, spec.channels), np.uint8)

    def asked(number: int) -> bytes:
        early = 0.1 if number % 3 == 0 and "moments" not in name else None
        found = model.predict(images[: 1 + number % 5], samples=2 + number % 7, seed=number, reject=0.3, adaptive=early)
        return as_bytes(found)

    alone = [asked(number) for number in range(each)]
    start = Barrier(THREADS)

    def thread(offset: int) -> list[bytes]:
        start.wait(timeout=60)
        return [asked((number + offset) % each) for number in range(each)]

    with ThreadPoolExecutor(THREADS) as pool:
        for offset, found in enumerate(pool.map(thread, range(THREADS))):
            assert found == alone[offset:] + alone[:offset]
    print(f"{name}: {THREADS} threads, {each} predictions each, bit for bit as one after the other")


def as_bytes(found: Prediction) -> bytes:
    arrays = [
        found.probabilities,
        found.uncertainty,
        found.model_uncertainty,
        found.standard_error,
        found.error_probability,
        found.class_ids,
        found.drawn,
    ]
    return b"".join(array.tobytes() for array in arrays) + str(found.decisions).encode()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read as Linux tells it")
def test_many_predictions_leave_nothing_behind(tmp_path: Path) -> None:
    program = Path(__file__).with_name("predicting.py")
    wanted = LONG or 2000
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, program, str(wanted), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    looks = json.loads(done.stdout)["looks"]
    print(f"{wanted} predictions: {looks[0]} after a tenth, {looks[-1]} at the end")
    assert len(looks) == 10
    # What is kept is kept after a few hundred of them: buffers of ONNX Runtime, pages of the allocator.
    assert looks[-1]["kilobytes"] - looks[1]["kilobytes"] < 2000
    assert looks[-1]["descriptors"] == looks[0]["descriptors"]
    assert abs(looks[-1]["threads"] - looks[0]["threads"]) <= 1  # the last one that decodes may not have ended yet
