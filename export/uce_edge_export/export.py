"""Export a model: build the graph, pass the gate, write the file and its description."""

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge import contract
from uce_edge.contract import Inference, NoiseKind, Precision, pass_seeds
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError
from uce_edge.files import replacing
from uce_edge.metadata import Metadata
from uce_edge_export import gate, graph, moments_fit, precision, third_party
from uce_edge_export.description import check_name, write_description
from uce_edge_export.options import Expand, Options
from uce_edge_export.reference import graph_reference
from uce_edge_export.sites import Site, select, sites_by_rule


@dataclass(frozen=True)
class Exported:
    """What was written and what the gate found."""

    path: Path
    metadata: Metadata
    parity: gate.Parity
    change: precision.Change | None = None
    """What a smaller precision cost, where that could be measured."""


def refuse(metadata: Metadata, options: Options, labelled: bool = False) -> None:
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


def write(
    classifier: graph.Classifier,
    sites: list[Site],
    metadata: Metadata,
    out: str | Path,
    images: npt.NDArray[np.uint8] | None,
    reference: gate.Reference,
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
        parity = gate.check(path, metadata, images[:3], reference, [site.size for site in sites], fed)
        change = None
        if metadata.precision is not Precision.FP32:
            change = precision.reduce(path, metadata, data)
            gate.check_again(path, metadata, images[:3])
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


def default_samples(inference: Inference) -> int:
    """The number of passes of a file when nobody says otherwise."""
    return {Inference.MC: 25, Inference.MOMENTS: moments_fit.SAMPLES, Inference.DETERMINISTIC: 1}[inference]


def export_third_party(
    found: third_party.Foreign, metadata: Metadata, out: str | Path, p: Sequence[str], options: Options = Options()
) -> Exported:
    """Give a third-party ONNX classifier Gaussian dropout and write it as a contract file.

    Args:
        found: The classifier, as read by `third_party.load`.
        metadata: What the file says of itself, from `third_party.metadata`.
        out: The `.onnx` file.
        p: Rates as "0.2" for all layers after the first, or "PATTERN=0.1" by weight name; the last match wins.
        options: How the noise gets into the graph.
    """
    check_name(out)
    refuse(metadata, options)
    sites = []
    if metadata.inference is not Inference.DETERMINISTIC:
        layers = sites_by_rule(found.classifier.graph, p)
        sites = select(layers, found.classifier.graph, options.from_layer)
    reference = graph_reference(found.classifier, metadata.image, sites)
    third_party.check_original(found, metadata.image, reference)
    return write(found.classifier, sites, metadata, out, None, reference, options)


def _versions() -> dict[str, str]:
    names = {"uce_edge": "uce-edge", "onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"}
    found = {}
    for key, distribution in names.items():
        try:
            found[key] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
