"""Makes the goldens: small contract files, raw images, and what ONNX Runtime on a processor answers.

    python tests/golden/make.py contract
    python tests/golden/make.py RUN digits-mc digits-moments
    python tests/golden/make.py FACTORED_RUN digits-factored

The first writes contract.json alone, which every reader's test compares its names, limits and accept rule with. The
others write the named files and their cases, and leave those of other files alone. A run is a calibrated digits run:

    uce-edge train --data digits --out RUN                      (FACTORED_RUN: --sigma factored)
    uce-edge calibrate RUN --method temperature --target-error 0.02

Every port's test reads the same files: image as bytes, seeds as numbers, outputs as numbers.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from uce_edge import Model, contract
from uce_edge.contract import Inference, pass_seeds
from uce_edge.metadata import Metadata
from uce_edge.providers import onnxruntime

if TYPE_CHECKING:
    from uce_edge_train.runs import Run

HERE = Path(__file__).resolve().parent
SEEDS = {"default": (0, None), "other": (7, None), "one": (0, 1), "few": (4095, 3)}
"""Name: the seed, and the number of passes (None for the file's own)."""


def contract_document() -> dict[str, Any]:
    """What a reader must agree with; NaN is null."""
    return {
        "contract": contract.VERSION,
        "minor": contract.MINOR,
        "key": contract.KEY,
        "inputs": [contract.IMAGE, contract.SEEDS],
        "outputs": [
            {
                "name": output.name,
                "per": output.per,
                "dtype": output.dtype,
                "shape": output.dimensions,
                "optional_since": output.optional_since,
                "merge": output.merge,
            }
            for output in contract.OUTPUTS
        ],
        "metadata": {"required": Metadata.REQUIRED, "inference": list(Inference)},
        "limits": {
            "max_samples": contract.MAX_SAMPLES,
            "max_seed": contract.MAX_SEED,
            "seed_space": contract.SEED_SPACE,
        },
        "accept": [
            {
                "uncertainty": None if np.isnan(uncertainty) else float(uncertainty),
                "threshold": threshold,
                "accepted": bool(contract.accepts(uncertainty, threshold)),
            }
            for uncertainty, threshold in _edges()
        ],
    }


def _edges() -> list[tuple[np.float32, float]]:
    """Uncertainties at both sides of thresholds that float32 rounds up, down and not at all; and NaN."""
    edges = [(np.float32(np.nan), 1.0)]
    for threshold in (0.0, 0.1, 0.3, 0.5, 0.7, 1.0):
        exact = np.float32(threshold)
        below, above = (np.nextafter(exact, np.float32(end)) for end in (0, 2))
        edges += [(value, threshold) for value in dict.fromkeys((below, exact, above))]
    return edges


def write_contract() -> None:
    """Write contract.json."""
    (HERE / "contract.json").write_text(json.dumps(contract_document(), indent=1) + "\n")


def images(run: "Run") -> dict[str, np.ndarray]:
    """Three digits of the test split, one that is hard, and two that are none."""
    test = run.dataset().splits["test"].images
    rng = np.random.default_rng(0)
    half = ((test[3].astype(int) + test[5]) // 2).astype(np.uint8)
    return {
        "digit-0": test[0], "digit-1": test[1], "digit-2": test[2], "two-digits": half,
        "noise": rng.integers(0, 256, test[0].shape).astype(np.uint8), "black": np.zeros_like(test[0]),
    }  # fmt: skip


FILES = {"digits-mc": Inference.MC, "digits-moments": Inference.MOMENTS, "digits-factored": Inference.MC}


def main(folder: Path, wanted: list[str]) -> None:
    """Write the named goldens."""
    from uce_edge_train.export import export_run
    from uce_edge_train.runs import Run

    write_contract()
    run = Run.load(folder)
    named = images(run)
    for name, pixels in named.items():
        (HERE / f"{name}.raw").write_bytes(pixels.tobytes())
    files = {f"{name}.onnx": FILES[name] for name in wanted}
    cases = [case for case in json.loads((HERE / "cases.json").read_text()) if case["model"] not in files]
    for file, inference in files.items():
        export_run(folder, HERE / file, run.dataset(), inference)
        model = Model(HERE / file, "cpu")
        threshold = model.metadata.reject.threshold if model.metadata.reject else 0.3
        session = onnxruntime().InferenceSession(HERE / file, providers=["CPUExecutionProvider"])
        for name, pixels in named.items():
            for seed, count in SEEDS.values() if name == "digit-0" else [SEEDS["default"]]:
                seeds = pass_seeds(count or model.metadata.samples, seed)
                feed = {contract.IMAGE: pixels[None], contract.SEEDS: np.array(seeds, np.int32)}
                names = [output.name for output in contract.outputs_of(model.metadata.outputs)]
                values = dict(zip(names, session.run(names, feed), strict=True))
                accepted = contract.accepts(values[contract.UNCERTAINTY][0], threshold)
                cases.append(
                    {
                        "model": file,
                        "image": f"{name}.raw",
                        "shape": [1, *pixels.shape],
                        "seeds": list(seeds),
                        "threshold": threshold,
                        "label": model.classes[int(values[contract.CLASS_ID][0])],
                        "decision": "accept" if accepted else "reject",
                        "outputs": {
                            name: {"shape": list(value.shape), "values": [float(str(x)) for x in value.ravel()]}
                            for name, value in values.items()
                            if name not in (contract.PASS_PROBABILITIES, contract.LOGITS) or len(seeds) <= 3
                        },
                    }
                )
    (HERE / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "contract":
        write_contract()
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
