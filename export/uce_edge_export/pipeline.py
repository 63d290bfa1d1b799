"""Export: build the graph, check, measure and publish the file."""

import importlib.metadata
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge.calibration.label_sets import SetPromise
from uce_edge.calibration.novelty import NoveltyError
from uce_edge.calibration.novelty_features import FeatureChoice
from uce_edge.contract import Inference, NoiseKind, Precision, Sigma
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError
from uce_edge.metadata import ImageSpec, Metadata
from uce_edge.metrics import nll
from uce_edge.rejection.guarantee import NoGuaranteeError
from uce_edge.rejection.promises import NoveltyPromise, Promise
from uce_edge.rejection.rule import RejectRule
from uce_edge_export.check import novelty_levels, parity_gate, quantisation_steps, sigma_error
from uce_edge_export.check.graph_reference import graph_reference
from uce_edge_export.check.held_out_rejection import Known, measure
from uce_edge_export.check.quality import Judgement
from uce_edge_export.graph import assembly, laplace_draws, novelty_score
from uce_edge_export.noise import moments_calibration
from uce_edge_export.noise.sites import Site, in_form, in_order, select, sites_by_rule, sites_of_marks
from uce_edge_export.options import Expand, Options
from uce_edge_export.publish.draft import Draft, destination
from uce_edge_export.source import third_party
from uce_edge_export.transform import precision
from uce_edge_export.transform.baked_seeds import bake_seeds
from uce_edge_export.transform.noise_free import noise_free_layers
from uce_edge_export.transform.simplification import infer_shapes


@dataclass(frozen=True)
class Labelled:
    """Labelled images of a trained run, for its file."""

    calibration: Split
    """The images of the map."""
    held_out: Split | None
    """Images that nothing was fitted on; None to skip the measurement."""
    promise: Promise | None
    """The promised error, if any."""
    novelty: NoveltyPromise | None = None
    """The promise of the novelty gate, if there is one."""
    training: Split | None = None
    """The training images, which fit the gate if nothing that it looks at was trained on them."""
    sets: SetPromise | None = None
    """The promise of the prediction sets, if there is one."""


@dataclass(frozen=True)
class Built:
    """A draft that passed the parity gate."""

    draft: Draft
    parity: parity_gate.Parity
    judgements: dict[str, Judgement] = field(default_factory=dict)
    """The costs of cheaper forms, by name, where they could be measured."""
    notes: tuple[str, ...] = ()
    """Changes to the network, for the user: sentences without their full stops."""
    untrained_features: bool = False
    """Whether nothing that the novelty gate looks at was trained."""

    @property
    def metadata(self) -> Metadata:
        """Of the draft."""
        return self.draft.metadata


@dataclass(frozen=True)
class Exported:
    """A written file and the results of its checks."""

    path: Path
    metadata: Metadata
    parity: parity_gate.Parity
    judgements: dict[str, Judgement] = field(default_factory=dict)
    """The costs of cheaper forms, by name, where they could be measured."""
    file_nll: float = math.nan
    """NLL of the written file on the calibration images, where there are some."""
    refused: NoGuaranteeError | None = None
    """Why the requested promise is not made."""
    costs: novelty_levels.Costs | None = None
    """The costs of other levels of the novelty gate; None without one."""
    notes: tuple[str, ...] = ()
    """Changes to the network, for the user: sentences without their full stops."""
    untrained_features: bool = False
    """Whether nothing that the novelty gate looks at was trained."""


def refuse(metadata: Metadata, options: Options, labelled: bool = False) -> None:
    """Reject options that exclude each other."""
    inference, noise = metadata.inference, metadata.noise
    precision.refuse(metadata.precision, inference, labelled)
    sigma_error.refuse(options.sigma, inference)
    if options.dropout and inference is Inference.DETERMINISTIC:
        raise UsageError(
            "A deterministic model has no noise: leave --dropout out, or use --inference mc.", "export.noise-missing"
        )
    if options.bake and (inference is Inference.DETERMINISTIC or noise is NoiseKind.INPUT):
        raise UsageError(
            "Only a model that takes seeds can have them baked in: leave --bake-samples out.", "export.seeds-missing"
        )
    if inference is not Inference.MOMENTS:
        if options.sample_from is not None:
            raise UsageError("--sample-from goes with --inference moments.", "export.needs-moments")
        return
    if noise is NoiseKind.INPUT:
        raise UsageError(
            "Noise as graph inputs goes with exact passes: --noise input --inference mc", "export.noise-input"
        )
    if options.expand is Expand.EARLY:
        raise UsageError(
            "A moments graph computes one image, not N: leave --expand out, or use --inference mc",
            "export.expand-moments",
        )


def build(
    classifier: assembly.Classifier,
    sites: list[Site],
    metadata: Metadata,
    images: npt.NDArray[np.uint8] | None,
    reference: parity_gate.Reference,
    options: Options = Options(),
    trained: list[Site] | None = None,
    drawn: laplace_draws.Drawn | None = None,
    judged: Split | None = None,
    judge_sigma: bool = False,
    tolerance: float = parity_gate.TOLERANCE,
    features: FeatureChoice = FeatureChoice(),
) -> Built:
    """Build a contract file in memory, and check its parity.

    Args:
        classifier: The network without noise.
        sites: Its noisy layers.
        metadata: Of the file; layers and costs are filled in.
        images: Images for the gate, as the file takes them; None for random pixels.
        reference: An independent computation of the network with noise.
        options: How the noise gets into the graph.
        trained: The noisy layers as they were trained, where that was with another sigma.
        drawn: The posterior over the last layer of a deterministic classifier, if any.
        judged: Labelled images that measure the quality of a lower precision; None where there are none.
        judge_sigma: Whether they also measure that of another sigma.
        tolerance: The difference that the gate allows.
        features: What the novelty gate will look at.
    """
    metadata = replace(
        metadata,
        noise=metadata.noise if sites else NoiseKind.NONE,
        sigma=sigma_error.of_sites(sites),
        tools=_versions() | metadata.tools,
    )
    early = options.expand is Expand.EARLY

    def graph(layers: list[Site]) -> tuple[ir.Model, Metadata]:
        return assembly.contract_model(
            classifier,
            layers,
            metadata,
            expand_early=early,
            sample_from=options.sample_from,
            with_heatmap=options.heatmap,
        )

    model, metadata = graph(sites)
    names = noise_free_layers(infer_shapes(model).graph)  # a lower precision may change them
    draft = Draft.of(model, replace(metadata, novelty_layers=features.layers(names)))
    metadata = draft.metadata
    images = random_pixels(metadata.image) if images is None else images[:3]
    errors = {} if trained is None else sigma_error.layer_errors(classifier, metadata.image, trained, sites, images)
    judgements: dict[str, Judgement] = {}
    fed = _with_noise_inputs(classifier, sites, metadata)
    parity = parity_gate.check(draft, images, reference, [site.size for site in sites], fed, tolerance)
    changed = bool(trained) and sigma_error.of_sites(trained or []) is not metadata.sigma
    if changed and trained and judged and judge_sigma:
        judgements[f"{metadata.sigma} sigma"] = sigma_error.judge(draft, graph(trained)[0], judged, errors)
    if metadata.precision is not Precision.FP32:
        change = precision.reduce(draft, judged)
        judgements |= {} if change is None else {metadata.precision.value: change}
        parity_gate.check_again(draft, images)
    if drawn is not None:
        parity = laplace_draws.add(draft, drawn, images)
    if options.bake:
        bake_seeds(draft)
    notes = (sigma_error.describe(errors, metadata.sigma),) if changed else ()
    return Built(draft, parity, judgements, notes, features.are_untrained(names))


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
    features: FeatureChoice = FeatureChoice(),
) -> Exported:
    """Build, measure and publish a contract file.

    Args:
        classifier: As in `build`, like the others that are not listed.
        sites: The noisy layers.
        metadata: Of the file.
        out: The `.onnx` file.
        images: Images for the gate.
        reference: For the gate.
        options: How the noise gets into the graph.
        labelled: Images that measure quality and fit the reject rule; None where there are none.
        trained: The noisy layers as they were trained.
        drawn: The posterior.
        features: What the novelty gate looks at.
    """
    file_nll, measured, costs = math.nan, None, None
    judged = None if labelled is None else labelled.calibration
    with destination(out) as save:
        built = build(
            classifier,
            sites,
            metadata,
            images,
            reference,
            options,
            trained,
            drawn,
            judged,
            judge_sigma=True,
            features=features,
        )
        draft, notes = built.draft, built.notes
        if labelled and labelled.held_out:
            gate: RejectRule | NoveltyError = RejectRule()
            training = labelled.training if built.untrained_features else None
            if labelled.novelty:
                gate = novelty_score.add(draft, labelled.calibration, labelled.novelty, training)
            if isinstance(gate, NoveltyError):
                why = str(gate).removesuffix(".")
                notes, gate = (*notes, f"the file has no gate against out-of-distribution images. {why}"), RejectRule()
            known = Known.of(draft, labelled.calibration)
            if gate.decides:
                costs = novelty_levels.compare(draft, labelled.calibration, known, labelled.promise, gate, training)
            file_nll = nll(known.prediction.probabilities, known.labels)
            measured = measure(draft, labelled.held_out, labelled.promise, gate, known, labelled.sets)
        save(draft)
    refused = measured if isinstance(measured, NoGuaranteeError) else None
    return Exported(
        Path(out),
        draft.metadata,
        built.parity,
        built.judgements,
        file_nll,
        refused,
        costs,
        notes,
        built.untrained_features,
    )


def _with_noise_inputs(classifier: assembly.Classifier, sites: list[Site], metadata: Metadata) -> bytes | None:
    """The network with noise as graph inputs, for the gate."""
    if not sites:
        return None
    exact = replace(metadata, noise=NoiseKind.INPUT, inference=Inference.MC)
    content: bytes = ir.to_proto(assembly.contract_model(classifier, sites, exact)[0]).SerializeToString()
    return content


def random_pixels(spec: ImageSpec) -> npt.NDArray[Any]:
    """Three random images for the gate."""
    shape = (3, spec.height, spec.width, spec.channels)
    return np.random.default_rng(0).integers(0, 256, shape).astype(spec.dtype)


def default_samples(inference: Inference) -> int:
    """The default number of passes."""
    return {Inference.MC: 25, Inference.MOMENTS: moments_calibration.SAMPLES, Inference.DETERMINISTIC: 1}[inference]


def export_third_party(
    source: third_party.ThirdParty,
    metadata: Metadata,
    out: str | Path,
    p: Sequence[str],
    options: Options = Options(),
    data: Split | None = None,
) -> Exported:
    """Export a third-party ONNX classifier with dropout noise.

    Args:
        source: The classifier, as read by `third_party.load` with the same options.
        metadata: Of the file, from `third_party.metadata`.
        out: The `.onnx` file.
        p: Rates of Gaussian dropout: "0.2" for all layers after the first, or "PATTERN=0.1" by weight name. The last
            match counts.
        options: How the noise gets into the graph.
        data: Labelled images. A lower precision needs them to find its ranges, and is judged on them. The parity gate
            runs on them, too.
    """
    with destination(out) as save:
        built = build_third_party(source, metadata, p, options, data)
        save(built.draft)
    return Exported(Path(out), built.metadata, built.parity, built.judgements, notes=built.notes)


def build_third_party(
    source: third_party.ThirdParty,
    metadata: Metadata,
    p: Sequence[str],
    options: Options = Options(),
    data: Split | None = None,
) -> Built:
    """Build a third-party classifier's file; see `export_third_party`."""
    refuse(metadata, options, labelled=data is not None)
    sites, exact = [], None
    if metadata.inference is not Inference.DETERMINISTIC:
        network = source.classifier.graph
        places = in_order(network, [*sites_by_rule(network, p), *sites_of_marks(network)])
        sites = select(places, network, options.noisy)
    if options.sigma not in (None, Sigma.EXACT):
        exact, sites = sites, in_form(sites, options.sigma)
    reference = graph_reference(source.classifier, metadata.image, sites)
    images = None if data is None or len(data) < 2 else data.images
    pixels = random_pixels(metadata.image) if images is None else images
    allowed = quantisation_steps.tolerance(source.classifier, metadata.image, pixels)
    third_party.check_original(source, metadata.image, reference, allowed.of_largest)
    built = build(
        source.classifier,
        sites,
        metadata,
        images,
        reference,
        options,
        exact,
        judged=data,
        tolerance=allowed.of_unit_scale,
    )
    return replace(built, notes=(*source.notes, *built.notes))


def _versions() -> dict[str, str]:
    names = {"uce_edge": "uce-edge", "onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"}
    versions = {}
    for key, distribution in names.items():
        try:
            versions[key] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
