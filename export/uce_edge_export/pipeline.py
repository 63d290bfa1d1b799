"""Export a model: build the graph, pass the gate, measure the file, publish it."""

import importlib.metadata
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge.calibration.novelty import NoveltyError
from uce_edge.contract import Inference, NoiseKind, Precision, Sigma
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge.metrics import nll
from uce_edge.rejection.guarantee import NoGuaranteeError
from uce_edge.rejection.promises import NoveltyPromise, Promise
from uce_edge.rejection.rule import RejectRule
from uce_edge_export.check import novelty_levels, parity_gate, sigma_error
from uce_edge_export.check.graph_reference import graph_reference
from uce_edge_export.check.held_out_rejection import Known, measure
from uce_edge_export.check.quality import Judgement
from uce_edge_export.graph import assembly, laplace_draws, novelty_score
from uce_edge_export.noise import moments_calibration
from uce_edge_export.noise.sites import Site, factored, in_order, select, sites_by_rule, sites_of_marks
from uce_edge_export.options import Expand, Options
from uce_edge_export.publish.draft import check_name, publish
from uce_edge_export.source import third_party
from uce_edge_export.transform import precision
from uce_edge_export.transform.baked_seeds import bake_seeds


@dataclass(frozen=True)
class Labelled:
    """Labelled images of a trained run, which say how good its file is."""

    calibration: Split
    """What the map was fitted on."""
    held_out: Split | None
    """What nothing was fitted on; None where rejection is not to be measured."""
    promise: Promise | None
    """What a rejection threshold shall keep, if anything."""
    novelty: NoveltyPromise | None = None
    """What the gate against foreign images shall keep, if there shall be one."""


@dataclass(frozen=True)
class Exported:
    """What was written and what the gate found."""

    path: Path
    metadata: Metadata
    parity: parity_gate.Parity
    judgements: dict[str, Judgement] = field(default_factory=dict)
    """What cheaper forms cost, by their names, where that could be measured."""
    file_nll: float = math.nan
    """NLL of the written file on the calibration images, where there are some."""
    refused: NoGuaranteeError | None = None
    """Why the promise that was asked for is not made."""
    costs: novelty_levels.Costs | None = None
    """What other levels of the novelty gate would do; None for a file without one."""
    notes: tuple[str, ...] = ()
    """What was changed on the way, for the user: sentences without their full stops."""


def refuse(metadata: Metadata, options: Options, labelled: bool = False) -> None:
    """Refuse what does not go together, before anything slow happens."""
    inference, noise = metadata.inference, metadata.noise
    precision.refuse(metadata.precision, inference, labelled)
    sigma_error.refuse(options.sigma, inference)
    if options.dropout and inference is Inference.DETERMINISTIC:
        raise UsageError("A deterministic model has no noise: leave --dropout out, or use --inference mc.")
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
    classifier: assembly.Classifier,
    sites: list[Site],
    metadata: Metadata,
    out: str | Path,
    images: npt.NDArray[np.uint8] | None,
    reference: parity_gate.Reference,
    options: Options = Options(),
    labelled: Labelled | None = None,
    trained: list[Site] | None = None,
    drawn: laplace_draws.Drawn | None = None,
    judged: Split | None = None,
) -> Exported:
    """Build a contract file, run it against its reference, measure it, and only then put it in its place.

    Args:
        classifier: The network without noise.
        sites: Its noisy layers.
        metadata: What the file says of itself; layers, costs and what is measured are filled in.
        out: The `.onnx` file.
        images: Images for the gate, as the file takes them; None for random pixels.
        reference: The network with noise, computed by somebody else.
        options: How the noise gets into the graph.
        labelled: Images that say what a cheaper form costs, and what rejection does; None where there are none.
        trained: The noisy layers as they were trained, where that was with another sigma.
        drawn: The posterior that the last layer of a deterministic classifier is given, if any.
        judged: Labelled images for smaller numbers, where there are none of a trained run.
    """
    out = check_name(out)
    metadata = replace(
        metadata,
        noise=metadata.noise if sites else NoiseKind.NONE,
        sigma=sigma_error.of_sites(sites),
        tools=_versions() | metadata.tools,
    )
    early = options.expand is Expand.EARLY

    def build(layers: list[Site]) -> tuple[ir.Model, Metadata]:
        return assembly.contract_model(
            classifier, layers, metadata, expand_early=early, sample_from=options.sample_from
        )

    built, metadata = build(sites)
    images = random_pixels(metadata.image) if images is None else images[:3]
    errors = {} if trained is None else sigma_error.layer_errors(classifier, metadata.image, trained, sites, images)
    judgements: dict[str, Judgement] = {}
    with publish(built, metadata, out) as draft:
        fed = _with_noise_inputs(classifier, sites, metadata)
        parity = parity_gate.check(draft, images, reference, [site.size for site in sites], fed)
        if trained and errors and labelled:
            form = f"{metadata.sigma} sigma"
            judgements[form] = sigma_error.judge(draft, build(trained)[0], labelled.calibration, errors)
        if metadata.precision is not Precision.FP32:
            change = precision.reduce(draft, labelled.calibration if labelled else judged)
            judgements |= {} if change is None else {metadata.precision.value: change}
            parity_gate.check_again(draft, images)
        if drawn is not None:
            parity = laplace_draws.add(draft, drawn, images)
        if options.bake:
            bake_seeds(draft)
        notes = (sigma_error.describe(errors, metadata.sigma),) if errors else ()
        file_nll, measured, costs = math.nan, None, None
        if labelled and labelled.held_out:
            gated = (
                novelty_score.add(draft, labelled.calibration, labelled.novelty) if labelled.novelty else RejectRule()
            )
            if isinstance(gated, NoveltyError):
                why = str(gated).removesuffix(".")
                notes = (*notes, f"the file has no gate against out-of-distribution images. {why}")
                gated = RejectRule()
            elif gated.decides:
                costs = novelty_levels.compare(draft, labelled.calibration, labelled.promise, gated)
            known = Known.of(draft, labelled.calibration)
            file_nll = nll(known.said.probabilities, known.labels)
            measured = measure(draft, labelled.held_out, labelled.promise, gated, known)
    refused = measured if isinstance(measured, NoGuaranteeError) else None
    return Exported(out, draft.metadata, parity, judgements, file_nll, refused, costs, notes)


def _with_noise_inputs(classifier: assembly.Classifier, sites: list[Site], metadata: Metadata) -> bytes | None:
    """The same network with exact passes and its noise as graph inputs, as the gate runs it; None without noise."""
    if not sites:
        return None
    exact = replace(metadata, noise=NoiseKind.INPUT, inference=Inference.MC)
    content: bytes = ir.to_proto(assembly.contract_model(classifier, sites, exact)[0]).SerializeToString()
    return content


def random_pixels(spec: ImageSpec) -> npt.NDArray[Any]:
    """Three images for a gate that has no better ones."""
    shape = (3, spec.height, spec.width, spec.channels)
    return np.random.default_rng(0).integers(0, 256, shape).astype(spec.dtype)


def default_samples(inference: Inference) -> int:
    """The number of passes of a file when nobody says otherwise."""
    return {Inference.MC: 25, Inference.MOMENTS: moments_calibration.SAMPLES, Inference.DETERMINISTIC: 1}[inference]


def export_third_party(
    source: third_party.ThirdParty,
    metadata: Metadata,
    out: str | Path,
    p: Sequence[str],
    options: Options = Options(),
    data: Split | None = None,
) -> Exported:
    """Give a third-party ONNX classifier Gaussian dropout, or keep its own, and write it as a contract file.

    Args:
        source: The classifier, as read by `third_party.load` with the same options.
        metadata: What the file says of itself, from `third_party.metadata`.
        out: The `.onnx` file.
        p: Rates of Gaussian dropout: "0.2" for all layers after the first, or "PATTERN=0.1" by weight name. The last
            match counts.
        options: How the noise gets into the graph.
        data: Labelled images. A lower precision needs them to find its ranges, and is judged on them. The parity gate
            runs on them, too.
    """
    check_name(out)
    refuse(metadata, options, labelled=data is not None)
    sites, exact = [], None
    if metadata.inference is not Inference.DETERMINISTIC:
        network = source.classifier.graph
        places = in_order(network, [*sites_by_rule(network, p), *sites_of_marks(network)])
        sites = select(places, network, options.from_layer)
    if options.sigma is Sigma.FACTORED:
        exact, sites = sites, factored(sites)
    reference = graph_reference(source.classifier, metadata.image, sites)
    third_party.check_original(source, metadata.image, reference)
    images = None if data is None or len(data) < 2 else data.images
    done = write(source.classifier, sites, metadata, out, images, reference, options, trained=exact, judged=data)
    return replace(done, notes=(*source.notes, *done.notes))


def _versions() -> dict[str, str]:
    names = {"uce_edge": "uce-edge", "onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"}
    versions = {}
    for key, distribution in names.items():
        try:
            versions[key] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
