"""Export a model: build the graph, pass the gate, write the file and its description."""

import importlib.metadata
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from torch import nn

from uce_edge import contract
from uce_edge.contract import Inference, Method, NoiseKind, Precision, pass_seeds
from uce_edge.errors import UsageError
from uce_edge.files import replacing
from uce_edge.guarantee import Guarantee, NoGuaranteeError
from uce_edge.metadata import Calibration, ImageSpec, Metadata
from uce_edge.metrics import nll
from uce_edge.model import Model
from uce_edge_export import foreign, graph, moments_fit, precision, twin, verify
from uce_edge_export.choices import Expand
from uce_edge_export.description import check_name, write_description
from uce_edge_export.promise import measure, store
from uce_edge_export.reference import graph_reference
from uce_edge_export.sites import Site, select, sites_by_rule
from uce_edge_train.calibrate import fit
from uce_edge_train.data import Dataset, Split
from uce_edge_train.layers import deterministic
from uce_edge_train.runs import Run, load_model, weights_sha256

_COUNTED = 1000  # held-out images that say what a threshold lets through, when nothing is promised


@dataclass(frozen=True)
class Exported:
    """What was written and what the gate found."""

    path: Path
    metadata: Metadata
    parity: verify.Parity
    change: precision.Change | None = None
    """What a smaller precision cost, where that could be measured."""


@dataclass(frozen=True)
class ExportedRun(Exported):
    """An export of a run, judged on its calibration images."""

    file_nll: float = math.nan
    """NLL of the written file."""
    torch_nll: float | None = None
    """NLL of the PyTorch model with exact passes and its own calibration map, at the fit; None if it has none."""
    promised: Guarantee | NoGuaranteeError | None = None
    """The stored threshold, or why there is none, where the calibration asked for one."""


@dataclass(frozen=True)
class Options:
    """How the noise gets into the graph."""

    from_layer: str | None = None
    """The weight layer where noise starts, by number or name pattern; None for all noisy layers."""
    expand: Expand = Expand.LATE
    """Where one image becomes N."""
    bake: bool = False
    """Make the seeds a constant: N is fixed, and the file takes an image alone."""
    sample_from: str | None = None
    """For moments, the weight layer from which on values are drawn; None for the last one."""


def export_module(
    model: nn.Module,
    metadata: Metadata,
    out: str | Path,
    images: npt.NDArray[np.uint8] | None = None,
    options: Options = Options(),
) -> Exported:
    """Write a Gaussian-dropout model as a contract file; nothing is written unless it passes the parity gate.

    Args:
        model: A classifier after `gaussianize`, from normalised pixels [batch, channels, height, width] to logits.
        metadata: Classes, image, inference, noise, calibration; layers and costs are filled in.
        out: The `.onnx` file; `NAME.json` is written beside it for runtimes that cannot read ONNX metadata.
        images: Images for the gate, as the file takes them; None for random pixels.
        options: How the noise gets into the graph.
    """
    check_name(out)
    _refuse(metadata, options)
    classifier, sites = _noisy_graph(model, metadata.image, metadata.inference, options)
    reference = twin.torch_reference(model, metadata.image, sites)
    return write(classifier, sites, metadata, out, images, reference, options)


def _refuse(metadata: Metadata, options: Options, labelled: bool = False) -> None:
    """Refuse what does not go together, before anything slow happens."""
    inference, noise = metadata.inference, metadata.noise
    precision.refuse(metadata.precision, inference, labelled)
    if options.bake and (inference is Inference.DETERMINISTIC or noise is NoiseKind.INPUT):
        raise UsageError("Only a model that takes seeds can have them baked in: leave --bake-samples out.")
    if inference is not Inference.MOMENTS:
        if options.sample_from is not None:
            raise UsageError("--sample-from goes with --inference moments.")
        return
    if noise is NoiseKind.INPUT:
        raise UsageError("Noise as graph inputs goes with exact passes: --noise input --inference mc")
    if options.expand is Expand.EARLY:
        raise UsageError("A moments graph computes one image, not N: leave --expand out, or use --inference mc")


def _noisy_graph(
    model: nn.Module, image: ImageSpec, inference: Inference, options: Options
) -> tuple[graph.Classifier, list[Site]]:
    classifier = twin.export_twin(model, image)
    if inference is Inference.DETERMINISTIC:
        return classifier, []
    return classifier, select(twin.noisy_sites(classifier, model), classifier.graph, options.from_layer)


def write(
    classifier: graph.Classifier,
    sites: list[Site],
    metadata: Metadata,
    out: str | Path,
    images: npt.NDArray[np.uint8] | None,
    reference: verify.Reference,
    options: Options = Options(),
    data: Split | None = None,
) -> Exported:
    """Build a contract file, run it against its reference, and only then put it in its place.

    With `data`, labelled images, a smaller precision is judged by what it costs.
    """
    out = check_name(out)
    metadata = replace(
        metadata,
        noise=metadata.noise if sites else NoiseKind.NONE,
        baked=options.bake,
        tools=_versions() | metadata.tools,
    )
    built, metadata = graph.contract_model(
        classifier, sites, metadata, expand_early=options.expand is Expand.EARLY, sample_from=options.sample_from
    )
    fed = None
    if sites:
        exact = replace(metadata, noise=NoiseKind.INPUT, inference=Inference.MC)
        twin_with_inputs, _ = graph.contract_model(classifier, sites, exact)
        fed = ir.to_proto(twin_with_inputs).SerializeToString()
    if images is None:
        spec = metadata.image
        shape = (3, spec.height, spec.width, spec.channels)
        images = np.random.default_rng(0).integers(0, 256, shape).astype(spec.dtype)
    with replacing(out) as path:
        ir.save(built, path)
        parity = verify.check(path, metadata, images[:3], reference, [site.size for site in sites], fed)
        change = None
        if metadata.precision is not Precision.FP32:
            change = precision.reduce(path, metadata, data)
            verify.check_again(path, metadata, images[:3])
        if options.bake:
            _bake(path, metadata)
    write_description(out, metadata)
    return Exported(out, metadata, parity, change)


def _bake(path: Path, metadata: Metadata) -> None:
    """Turn the input `seeds` into the constant 0, 1, ..., N - 1."""
    model = ir.load(path)
    (seeds,) = (value for value in model.graph.inputs if value.name == contract.SEEDS)
    model.graph.inputs.remove(seeds)
    seeds.const_value = ir.tensor(np.array(pass_seeds(metadata.samples, 0), np.int32), name=contract.SEEDS)
    seeds.shape = ir.Shape([metadata.samples])
    model.graph.register_initializer(seeds)
    ir.save(model, path)


def export_run(
    folder: str | Path,
    out: str | Path,
    dataset: Dataset,
    inference: Inference = Inference.MC,
    noise: NoiseKind = NoiseKind.TABLE,
    samples: int | None = None,
    options: Options = Options(),
    numbers: Precision = Precision.FP32,
) -> ExportedRun:
    """Export a trained run with its calibration.

    Args:
        folder: The run.
        out: The `.onnx` file.
        dataset: The run's dataset; its calibration images feed the gate.
        inference: The kind of graph.
        noise: Where the noise comes from.
        samples: The default number of passes, used when the run is not calibrated at one; None for 25, or for the
            draws of a moments graph.
        options: How the noise gets into the graph.
        numbers: The precision of the network.
    """
    check_name(out)
    run = Run.load(folder)
    model = load_model(run, folder)
    data = dataset.splits["calibration"]
    calibration = run.calibration
    metadata = replace(metadata_of(run, model, inference, noise, calibration), precision=numbers)
    _refuse(metadata, options, labelled=noise is not NoiseKind.INPUT)
    samples = default_samples(inference) if samples is None else samples
    pass_seeds(samples, 0)
    classifier, sites = _noisy_graph(model, run.image, inference, options)
    if inference is Inference.DETERMINISTIC:
        # Without noise the logits have another scale: the same map needs parameters of its own.
        with deterministic(model):
            calibration = fit(model, run.image, data, calibration.method, 1)
    elif inference is Inference.MOMENTS:
        described = replace(metadata, samples=samples)
        calibration = moments_fit.fit(
            model, classifier, sites, described, data, calibration.method, options.sample_from
        )
    elif calibration.samples is None:
        calibration = fit(model, run.image, data, Method.NONE, samples)
    if options.bake and calibration.samples != samples:
        raise UsageError(
            f"{folder} is calibrated at {calibration.samples} passes, and {samples} shall be baked in. Calibrate it "
            f"there first: uce-edge calibrate {folder} --samples {samples}"
        )
    metadata = replace(metadata, calibration=calibration, samples=calibration.samples or 1)
    reference = twin.torch_reference(model, run.image, sites)
    done = write(classifier, sites, metadata, out, data.images, reference, options, data)
    file_nll = math.nan
    promised: Guarantee | NoGuaranteeError | None = None
    if noise is not NoiseKind.INPUT:  # which only a caller with noise of its own can run
        written = Model(out, "cpu")
        file_nll = nll(written.predict(data.images).probabilities, data.labels)
        kept = dataset.splits["guarantee"]
        kept = kept if run.promise else kept.at_most(_COUNTED)
        promised, metadata = measure(written, kept, run.promise)
        with replacing(out) as path:
            shutil.copyfile(out, path)
            store(path, metadata)
        write_description(Path(out), metadata)
        done = replace(done, metadata=metadata)
    exact = run.calibration if inference is Inference.MOMENTS else calibration
    torch_nll = exact.report.get("nll_after")
    return ExportedRun(done.path, done.metadata, done.parity, done.change, file_nll, torch_nll, promised)


def default_samples(inference: Inference) -> int:
    """The number of passes of a file when nobody says otherwise."""
    return {Inference.MC: 25, Inference.MOMENTS: moments_fit.SAMPLES, Inference.DETERMINISTIC: 1}[inference]


def export_foreign(
    found: foreign.Foreign, metadata: Metadata, out: str | Path, p: Sequence[str], options: Options = Options()
) -> Exported:
    """Give a third-party ONNX classifier Gaussian dropout and write it as a contract file.

    Args:
        found: The classifier, as read by `foreign.load`.
        metadata: What the file says of itself, from `foreign.metadata`.
        out: The `.onnx` file.
        p: Rates as "0.2" for all layers after the first, or "PATTERN=0.1" by weight name; the last match wins.
        options: How the noise gets into the graph.
    """
    check_name(out)
    _refuse(metadata, options)
    sites = []
    if metadata.inference is not Inference.DETERMINISTIC:
        layers = sites_by_rule(found.classifier.graph, p)
        sites = select(layers, found.classifier.graph, options.from_layer)
    reference = graph_reference(found.classifier, metadata.image, sites)
    foreign.check_original(found, metadata.image, reference)
    return write(found.classifier, sites, metadata, out, None, reference, options)


def metadata_of(
    run: Run, model: nn.Module, inference: Inference, noise: NoiseKind, calibration: Calibration
) -> Metadata:
    """What the file of a run says of itself."""
    return Metadata(
        classes=run.class_names,
        image=run.image,
        inference=inference,
        noise=noise,
        architecture=run.recipe.arch,
        samples=calibration.samples or 1,
        calibration=calibration,
        trained_on=run.trained_on,
        hashes={"weights": weights_sha256(model), "splits": run.split_hashes},
        tools=run.tools,
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
