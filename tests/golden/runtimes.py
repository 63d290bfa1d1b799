"""Another runtime on the goldens: `python runtimes.py onnxruntime`, or uce_edge, openvino, tract, mnn.

Needs numpy and that runtime alone, so that it runs in an empty environment. Prints, per file, the largest difference of
an output that a caller would read: a share of itself for `novelty_score`, of the reference images for `novelty`. Exits
with 1 when one is above 1e-5, when `novelty` is off by more than one reference image, when `decision` or `in_set`
differs, or when `decision` accepts NaN.
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
REQUIRED = [output for output in CONTRACT["outputs"] if output["required"]]
TOLERANCE = 1e-5
REFERENCE_IMAGES = 135
"""That a novelty of these files counts."""
Run = Callable[[np.ndarray, np.ndarray], list[Any]]


def open_model(name: str, path: Path, samples: int) -> Run:
    """A file in a runtime; a file of another contract ends the program."""
    version = description(path).get("contract")
    if version != CONTRACT["contract"] and name != "uce_edge":
        sys.exit(f"{path} follows model contract {version}, and this program reads contract {CONTRACT['contract']}.")
    opened: Run = globals()[f"with_{name}"](path, samples)
    return opened


def description(path: Path) -> dict[str, Any]:
    """The metadata, from the file beside the model: most runtimes cannot read it from the model itself."""
    document: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    return document


def outputs_read(path: Path) -> list[str]:
    """What a caller reads of a file: the outputs of an image that it has and that are known here."""
    listed = description(path).get("outputs", [])
    known = [output for output in CONTRACT["outputs"] if output["per"] == "image"]
    return [output["name"] for output in known if output["required"] or output["name"] in listed]


def takes_seeds(path: Path) -> bool:
    """Whether the graph has the input `seeds`."""
    about = description(path)
    return not (about["inference"] == "deterministic" or about.get("baked"))


def inputs(path: Path, image: np.ndarray, seeds: np.ndarray) -> dict[str, np.ndarray]:
    """What the graph takes."""
    return {"image": image, "seeds": seeds} if takes_seeds(path) else {"image": image}


def with_onnxruntime(path: Path, _: int) -> Run:
    """ONNX Runtime itself, for other versions of it."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = outputs_read(path)
    return lambda image, seeds: session.run(names, inputs(path, image, seeds))


def with_uce_edge(path: Path, samples: int) -> Run:
    """This package, with whatever ONNX Runtime is beside it."""
    import uce_edge
    from uce_edge import contract
    from uce_edge.runtime.model import GuaranteeWarning, SamplesWarning

    model = uce_edge.Model(path, "cpu")
    for kind in (SamplesWarning, GuaranteeWarning):  # some cases have other passes on purpose
        warnings.simplefilter("ignore", kind)
    names = outputs_read(path)
    passes = samples or None
    reject: Any = "auto" if model.metadata.rule is not None else 1.0

    def run(image: np.ndarray, seeds: np.ndarray) -> list[Any]:
        answer = model.predict(image, passes, int(seeds[0]) // contract.MAX_SAMPLES if passes else 0, reject=reject)
        reasons = list(CONTRACT["decisions"].values())
        computed = {"class_id": answer.class_ids, "decision": [reasons.index(reason) for reason in answer.reasons]}
        computed |= {"in_set": answer.in_set}
        return [computed[name] if name in computed else getattr(answer, name) for name in names]

    return run


def with_openvino(path: Path, _: int) -> Run:
    """OpenVINO on the processor; by itself it may compute in bfloat16 where the processor has it."""
    import openvino

    model = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    names = outputs_read(path)

    def run(image: np.ndarray, seeds: np.ndarray) -> list[Any]:
        values = model(inputs(path, image, seeds))
        return [values[name] for name in names]

    return run


def with_tract(path: Path, samples: int) -> Run:
    """Sonos' tract; it wants the shapes of the inputs, and knows outputs by their place alone.

    It takes the name of a dimension between inputs and outputs for a size of its own, so these names are removed.
    """
    import tract

    nameless = Path(tempfile.mkdtemp()) / path.name
    nameless.write_bytes(without(path.read_bytes(), (_GRAPH, _VALUE_INFO)))
    model = tract.onnx().load(str(nameless))
    shape = CASES[0]["shape"]
    model.set_input_fact(0, ",".join(map(str, shape)) + ",u8")
    if takes_seeds(path):
        model.set_input_fact(1, f"{samples},i32")
    runnable = model.into_model().into_runnable()
    places = [output["name"] for output in REQUIRED] + description(path).get("outputs", [])
    names = outputs_read(path)

    def run(image: np.ndarray, seeds: np.ndarray) -> list[Any]:
        values = dict(zip(places, runnable.run([*inputs(path, image, seeds).values()]), strict=True))
        return [values[name].to_numpy() for name in names]

    return run


_GRAPH, _VALUE_INFO = 7, 13
"""Numbers of fields in ONNX's ModelProto and GraphProto."""


def without(message: bytes, fields: tuple[int, ...]) -> bytes:
    """A protobuf message without a field, which is found by the numbers of the fields that it is in."""
    kept, at = [], 0
    while at < len(message):
        start = at
        key, at = varint(message, at)
        number, kind = key >> 3, key & 7
        size, body = 0, at
        if kind == 0:
            _, at = varint(message, at)
        elif kind == 2:
            size, body = varint(message, at)
            at = body + size
        else:
            at += 8 if kind == 1 else 4
        if number != fields[0] or kind != 2:
            kept.append(message[start:at])
        elif len(fields) > 1:
            inner = without(message[body:at], fields[1:])
            kept.append(bytes([key]) + encoded(len(inner)) + inner)
    return b"".join(kept)


def varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def encoded(value: int) -> bytes:
    """A number as protobuf writes it."""
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def with_mnn(path: Path, _: int) -> Run:
    """MNN, after its own converter, which installs more packages by itself: into this environment, and no other."""
    import MNN

    converted = Path(tempfile.mkdtemp()) / "model.mnn"
    command = ["mnnconvert", "-f", "ONNX", "--modelFile", str(path), "--MNNModel", str(converted), "--bizCode", "uce"]
    tools = Path(sys.executable).parent
    subprocess.run([tools / command[0], *command[1:]], check=True, capture_output=True, env={"PATH": str(tools)})
    taken = ["image", "seeds"] if takes_seeds(path) else ["image"]
    module = MNN.nn.load_module_from_file(str(converted), taken, outputs_read(path))

    def run(image: np.ndarray, seeds: np.ndarray) -> list[Any]:
        pixels = MNN.expr.const(image.tobytes(), list(image.shape), MNN.expr.NCHW, MNN.expr.uint8)
        passes = [MNN.expr.const(seeds, [len(seeds)], MNN.expr.NCHW, MNN.expr.int)] if takes_seeds(path) else []
        return [value.read() for value in module.forward([pixels, *passes])]

    return run


def compared(case: dict[str, Any], values: dict[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """Per output, how far it is from the golden one, and how far it may be."""
    result = {}
    for name, value in values.items():
        if name not in case["outputs"]:  # the decision of a file of contract 1
            continue
        wanted = np.array(case["outputs"][name]["values"])
        difference, allowed = float(np.abs(value - wanted).max()), TOLERANCE
        if name == "novelty_score":
            difference /= float(wanted.max())
        elif name == "novelty":  # it counts reference images, and rounding may move the score past one of them
            allowed += 1 / (REFERENCE_IMAGES + 1)
        result[name] = (difference, allowed)
    return result


def rejects_nan(name: str) -> bool:
    """Whether probabilities of NaN are rejected, by digits-rule-none with a temperature of NaN."""
    source = HERE / "digits-rule-none.onnx"
    (temperature,) = description(source)["calibration"]["parameters"]["temperature"]
    content, value = source.read_bytes(), np.float32(temperature).tobytes()
    assert content.count(value) == 1
    path = Path(tempfile.mkdtemp()) / source.name
    path.write_bytes(content.replace(value, np.float32(np.nan).tobytes()))
    path.with_suffix(".json").write_text(source.with_suffix(".json").read_text())
    run = open_model(name, path, 0)  # kept: the values of MNN live as long as it
    values = run(np.zeros((1, 8, 8, 1), np.uint8), np.zeros(0, np.int32))
    decision = dict(zip(outputs_read(path), values, strict=True))["decision"]
    return bool(np.ravel(decision)[0] & 1)


def main(name: str) -> int:
    """Run all cases; files of contract 1 with this package alone, which converts them."""
    opened: dict[tuple[str, int], Run] = {}
    worst: dict[str, dict[str, float]] = {}
    wrong = []
    for case in CASES:
        path, samples = HERE / case["model"], len(case["seeds"])
        if name != "uce_edge" and "decision" not in case["outputs"]:
            continue
        if (path.name, samples) not in opened:
            opened[path.name, samples] = open_model(name, path, samples)
        image = np.frombuffer((HERE / case["image"]).read_bytes(), np.uint8).reshape(case["shape"])
        answered = opened[path.name, samples](image, np.array(case["seeds"], np.int32))
        read = [np.asarray(value, np.float64).ravel() for value in answered]
        values = dict(zip(outputs_read(path), read, strict=True))
        seen = worst.setdefault(path.name, {})
        for output, (difference, allowed) in compared(case, values).items():
            kind = output if output.startswith("novelty") else "the others"
            seen[kind] = max(seen.get(kind, 0.0), difference)
            if not difference <= allowed:
                wrong.append(f"{output} of {path.name} and {case['image']} is off by {difference:.1e}")
        if values["decision"].tolist() != [case["decision"]]:
            wrong.append(f"{path.name} and {case['image']}: the decision is {values['decision'].tolist()}")
    if name != "uce_edge" and not rejects_nan(name):  # this package refuses a file that was changed
        wrong.append("probabilities of NaN are accepted")
    for model, differences in worst.items():
        parts = [
            f"{difference:.1e}" + (f" ({kind})" if len(differences) > 1 else "")
            for kind, difference in differences.items()
        ]
        print(f"{name}: {model} within {', '.join(parts)}")
    for sentence in wrong:
        print(f"{name}: {sentence}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
