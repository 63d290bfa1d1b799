"""Export a model: build the graph, pass the gate, write the file and its description."""

import importlib.metadata
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import nn

from uce_edge.contract import Calibration, Inference, Metadata, Method
from uce_edge.errors import UsageError, expected
from uce_edge.files import replacing
from uce_edge.metrics import nll
from uce_edge.model import Model
from uce_edge_export import gaussian, graph, twin, verify
from uce_edge_train.calibrate import fit_map, mc_logits
from uce_edge_train.data import Dataset
from uce_edge_train.fit import normalise
from uce_edge_train.layers import deterministic
from uce_edge_train.runs import Run, load_model, weights_sha256


@dataclass(frozen=True)
class Exported:
    """What was written and what the gate found."""

    path: Path
    metadata: Metadata
    parity: verify.Parity


@dataclass(frozen=True)
class ExportedRun(Exported):
    """An export of a run, judged on its calibration images."""

    file_nll: float
    """NLL of the written file."""
    torch_nll: float
    """NLL of the PyTorch model with the same calibration map, at the fit."""


def export_module(
    model: nn.Module, metadata: Metadata, out: str | Path, images: npt.NDArray[np.uint8] | None = None
) -> Exported:
    """Write a Gaussian-dropout model as a contract file; nothing is written unless it passes the parity gate.

    Args:
        model: A classifier after `gaussianize`, from normalised pixels [batch, channels, height, width] to logits.
        metadata: Classes, image, inference, calibration; the noisy layers are filled in.
        out: The `.onnx` file; `NAME.json` is written beside it for runtimes that cannot read ONNX metadata.
        images: Images for the gate, as the file takes them; None for random pixels.
    """
    out = Path(out)
    if out.suffix != ".onnx":
        raise UsageError(
            expected("`out`", "a file name ending in .onnx", str(out), f"Use: --out {out.stem or 'model'}.onnx")
        )
    spec = metadata.image
    deterministic_twin = twin.export_twin(model, spec.channels, spec.height, spec.width)
    rates = {} if metadata.inference is Inference.DETERMINISTIC else twin.rates_of(model)
    sites = gaussian.find_sites(deterministic_twin.graph, rates) if rates else []
    built, metadata = graph.contract_model(deterministic_twin, sites, metadata)
    layers = [(site.layer.name.removesuffix(".weight"), math.prod(site.shape)) for site in sites]
    if images is None:
        images = np.random.default_rng(0).integers(0, 256, (3, spec.height, spec.width, spec.channels), dtype=np.uint8)
    with replacing(out) as path:
        ir.save(built, path)
        parity = verify.check(path, model, images[:3], metadata, layers)
    with replacing(out.with_suffix(".json")) as path:
        path.write_text(json.dumps(json.loads(metadata.to_json()), indent=2) + "\n")
    return Exported(out, metadata, parity)


def export_run(
    folder: str | Path, out: str | Path, dataset: Dataset, inference: Inference = Inference.MC, samples: int = 25
) -> ExportedRun:
    """Export a trained run with its calibration.

    Args:
        folder: The run.
        out: The `.onnx` file.
        dataset: The run's dataset; its calibration images feed the gate.
        inference: The kind of graph.
        samples: The default number of passes, used when the run is not calibrated.
    """
    run = Run.load(folder)
    model = load_model(run, folder)
    data = dataset.splits["calibration"]
    pixels, labels = normalise(torch.from_numpy(data.images), run.image), torch.from_numpy(data.labels)
    calibration = run.calibration
    if inference is Inference.DETERMINISTIC:
        # Without noise the logits have another scale: the same map needs parameters of its own.
        with deterministic(model):
            calibration = fit_map(calibration.method, mc_logits(model, pixels, 1, 0), labels)
    elif calibration.samples is None:
        calibration = fit_map(Method.NONE, mc_logits(model, pixels, samples, 0), labels)
    metadata = metadata_of(run, model, inference, calibration)
    done = export_module(model, metadata, out, data.images)
    file_nll = nll(Model(out, "cpu").predict(data.images).probabilities, data.labels)
    return ExportedRun(done.path, done.metadata, done.parity, file_nll, float(calibration.report["nll_after"]))


def metadata_of(run: Run, model: nn.Module, inference: Inference, calibration: Calibration) -> Metadata:
    """What the file of a run says of itself."""
    return Metadata(
        classes=run.class_names,
        image=run.image,
        inference=inference,
        noise="none" if inference is Inference.DETERMINISTIC else "table",
        architecture=run.arch,
        samples=calibration.samples or 1,
        calibration=calibration,
        hashes={"weights": weights_sha256(model), "splits": run.split_hashes},
        tools=run.tools | _versions(),
    )


def _versions() -> dict[str, str]:
    names = {"uce_edge": "uce-edge", "onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"}
    found = {}
    for key, distribution in names.items():
        try:
            found[key] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
