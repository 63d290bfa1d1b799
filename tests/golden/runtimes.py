"""Another runtime on the goldens: `python runtimes.py onnxruntime`, or uce_edge, openvino, tract, mnn.

Needs numpy and that runtime alone, so that it runs in an empty environment. Prints the largest difference of an output
that a caller would read, per file; exits with 1 when one is above 1e-5.
"""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
HERE = Path(__file__).resolve().parent
CASES = json.loads((HERE / "cases.json").read_text())
CONTRACT = json.loads((HERE / "contract.json").read_text())
REQUIRED = [output for output in CONTRACT["outputs"] if output["optional_since"] is None]
READ = [output["name"] for output in REQUIRED if output["per"] == "image"]
Run = Callable[[np.ndarray, np.ndarray], list[Any]]


def open_model(name: str, path: Path, samples: int) -> Run:
    """A file in a runtime, unless it follows a contract whose numbers would be misread."""
    version = description(path).get("contract")
    if version != CONTRACT["contract"]:
        sys.exit(f"{path} follows model contract {version}, and this program reads contract {CONTRACT['contract']}.")
    opened: Run = globals()[f"with_{name}"](path, samples)
    return opened


def description(path: Path) -> dict[str, Any]:
    """The metadata, from the file beside the model: most runtimes cannot read it from the model itself."""
    document: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    return document


def with_onnxruntime(path: Path, _: int) -> Run:
    """ONNX Runtime itself, for other versions of it."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda image, seeds: session.run(READ, {"image": image, "seeds": seeds})


def with_uce_edge(path: Path, samples: int) -> Run:
    """This package, with whatever ONNX Runtime is beside it."""
    import uce_edge
    from uce_edge import contract
    from uce_edge.model import SamplesWarning

    model = uce_edge.Model(path, "cpu")
    warnings.simplefilter("ignore", SamplesWarning)  # some cases have fewer passes on purpose

    def run(image: np.ndarray, seeds: np.ndarray) -> list[Any]:
        found = model.predict(image, samples, int(seeds[0]) // contract.MAX_SAMPLES)
        return [found.class_ids if name == "class_id" else getattr(found, name) for name in READ]

    return run


def with_openvino(path: Path, _: int) -> Run:
    """OpenVINO on the processor; by itself it may compute in bfloat16 where the processor has it."""
    import openvino

    model = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(image: np.ndarray, seeds: np.ndarray) -> list[Any]:
        found = model({"image": image, "seeds": seeds})
        return [found[name] for name in READ]

    return run


def with_tract(path: Path, samples: int) -> Run:
    """Sonos' tract; it wants the shapes of the inputs, and knows outputs by their place alone."""
    import tract

    model = tract.onnx().load(str(path))
    shape = CASES[0]["shape"]
    model.set_input_fact(0, ",".join(map(str, shape)) + ",u8")
    model.set_input_fact(1, f"{samples},i32")
    runnable = model.into_model().into_runnable()
    names = [output["name"] for output in REQUIRED] + description(path).get("outputs", [])

    def run(image: np.ndarray, seeds: np.ndarray) -> list[Any]:
        values = dict(zip(names, runnable.run([image, seeds]), strict=True))
        return [values[name].to_numpy() for name in READ]

    return run


def with_mnn(path: Path, _: int) -> Run:
    """MNN, after its own converter, which installs more packages by itself: into this environment, and no other."""
    import MNN

    converted = Path(tempfile.mkdtemp()) / "model.mnn"
    command = ["mnnconvert", "-f", "ONNX", "--modelFile", str(path), "--MNNModel", str(converted), "--bizCode", "uce"]
    tools = Path(sys.executable).parent
    subprocess.run([tools / command[0], *command[1:]], check=True, capture_output=True, env={"PATH": str(tools)})
    module = MNN.nn.load_module_from_file(str(converted), ["image", "seeds"], READ)

    def run(image: np.ndarray, seeds: np.ndarray) -> list[Any]:
        pixels = MNN.expr.const(image.tobytes(), list(image.shape), MNN.expr.NCHW, MNN.expr.uint8)
        passes = MNN.expr.const(seeds, [len(seeds)], MNN.expr.NCHW, MNN.expr.int)
        return [value.read() for value in module.forward([pixels, passes])]

    return run


def main(name: str) -> int:
    """Run all cases."""
    opened: dict[tuple[str, int], Run] = {}
    worst: dict[str, float] = {}
    for case in CASES:
        key = (case["model"], len(case["seeds"]))
        if key not in opened:
            opened[key] = open_model(name, HERE / case["model"], key[1])
        image = np.frombuffer((HERE / case["image"]).read_bytes(), np.uint8).reshape(case["shape"])
        found = opened[key](image, np.array(case["seeds"], np.int32))
        for output, value in zip(READ, found, strict=True):
            wanted = np.array(case["outputs"][output]["values"])
            difference = np.abs(np.asarray(value, np.float64).ravel() - wanted).max()
            worst[case["model"]] = max(worst.get(case["model"], 0.0), float(difference))
    for model, difference in worst.items():
        print(f"{name}: {model} within {difference:.1e}")
    return int(max(worst.values()) > 1e-5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
