"""Export a trained run: build the graph, pass the gate, write the file and its description."""

import importlib.metadata
import json
import math
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import torch

from uce_edge.contract import ImageSpec, Inference, Metadata, Method
from uce_edge.errors import UsageError, expected
from uce_edge.files import replacing
from uce_edge.metrics import nll
from uce_edge.model import Model
from uce_edge_export import gaussian, graph, twin, verify
from uce_edge_train.calibrate import fit_map, mc_logits
from uce_edge_train.data import Dataset, Split
from uce_edge_train.fit import normalise
from uce_edge_train.layers import deterministic
from uce_edge_train.runs import Run, load_model, weights_sha256


@dataclass(frozen=True)
class Exported:
    """What was written and what the gate found."""

    path: Path
    metadata: Metadata
    parity: verify.Parity
    file_nll: float
    """NLL of the written file on the calibration images."""
    torch_nll: float
    """NLL of the PyTorch model with the same calibration map, at the fit."""


def export_run(
    folder: str | Path,
    out: str | Path,
    dataset: Dataset,
    inference: Inference = Inference.MC,
    samples: int = 25,
) -> Exported:
    """Export a run as a model file; nothing is written unless the file passes the parity gate.

    Args:
        folder: The run.
        out: The `.onnx` file; `NAME.json` is written beside it for runtimes that cannot read ONNX metadata.
        dataset: The run's dataset; its calibration images feed the gate.
        inference: The kind of graph.
        samples: The default number of passes, used when the run is not calibrated.
    """
    out = Path(out)
    if out.suffix != ".onnx":
        raise UsageError(
            expected("`out`", "a file name ending in .onnx", str(out), f"Use: --out {out.stem or 'model'}.onnx")
        )
    run = Run.load(folder)
    model = load_model(run, folder)
    data = dataset.splits["calibration"]
    pixels = normalise(torch.from_numpy(data.images), run)
    calibration = run.calibration
    if inference is Inference.DETERMINISTIC:
        # Without noise the logits have another scale: the same map needs parameters of its own.
        with deterministic(model):
            calibration = fit_map(calibration.method, mc_logits(model, pixels, 1, 0), torch.from_numpy(data.labels))
    elif calibration.samples is None:
        calibration = fit_map(Method.NONE, mc_logits(model, pixels, samples, 0), torch.from_numpy(data.labels))
    height, width, channels = run.image_shape
    deterministic_twin = twin.export_twin(model, channels, height, width)
    rates = twin.rates_of(model)
    metadata = Metadata(
        classes=run.class_names,
        image=ImageSpec(height, width, channels, mean=run.mean, std=run.std),
        inference=inference,
        noise="none" if inference is Inference.DETERMINISTIC else "table",
        architecture=run.arch,
        samples=calibration.samples or samples,
        calibration=calibration,
        hashes={"weights": weights_sha256(model), "splits": run.split_hashes},
        tools=run.tools | _versions(),
    )
    built = graph.contract_model(deterministic_twin, rates, metadata)
    sites = gaussian.find_sites(deterministic_twin.graph, rates)
    layers = [(site.layer.name.removesuffix(".weight"), math.prod(site.shape)) for site in sites]
    with replacing(out) as path:
        ir.save(built, path)
        parity = verify.check(path, model, data.images[:3], pixels[:3], inference, layers)
        finished = Model(path, "cpu")
        file_nll = _file_nll(finished, data)
    with replacing(out.with_suffix(".json")) as path:
        path.write_text(json.dumps(json.loads(finished.metadata.to_json()), indent=2) + "\n")
    return Exported(out, finished.metadata, parity, file_nll, float(calibration.report["nll_after"]))


def _file_nll(model: Model, data: Split) -> float:
    return nll(model.predict(data.images).probabilities, data.labels)


def _versions() -> dict[str, str]:
    names = {"uce_edge": "uce-edge", "onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"}
    found = {}
    for key, distribution in names.items():
        try:
            found[key] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
