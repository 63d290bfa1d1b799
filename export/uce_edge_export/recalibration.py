"""Recalibrate a model file without its training run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from uce_edge import contract
from uce_edge.calibration import conformal, early_look
from uce_edge.calibration.class_prior import ClassPrior, Mix
from uce_edge.calibration.label_sets import SetPromise
from uce_edge.calibration.logits import Logits, logits_of
from uce_edge.calibration.maps import fit_map
from uce_edge.calibration.novelty import NoveltyError
from uce_edge.calibration.novelty_features import FeatureChoice
from uce_edge.contract import Inference, Method, NoiseKind
from uce_edge.datasets import overlap
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError, expected
from uce_edge.metadata import Metadata
from uce_edge.metrics import nll
from uce_edge.rejection import guarantee
from uce_edge.rejection.guarantee import NoGuaranteeError
from uce_edge.rejection.promises import AUTO_FEATURES, NoveltyPromise, Promise
from uce_edge.rejection.rule import RejectRule
from uce_edge.runtime.model import Model
from uce_edge_export import class_mix
from uce_edge_export.check import novelty_choice, novelty_levels
from uce_edge_export.check.held_out_rejection import Known, measure, predicted
from uce_edge_export.check.parity_gate import ParityError
from uce_edge_export.class_mix import Images
from uce_edge_export.graph import decision, head
from uce_edge_export.graph.assembly import checked
from uce_edge_export.graph.builder import Builder
from uce_edge_export.graph.novelty_score import add as add_novelty
from uce_edge_export.graph.novelty_score import detach, parts
from uce_edge_export.publish.draft import Draft, check_name, graph_of, publish
from uce_edge_export.transform.noise_free import noise_free_layers, raw_logits
from uce_edge_export.transform.simplification import infer_shapes

_COMPARED = 16  # images whose answers must follow from the logits of the map
_ROUNDING = 1e-3  # of a probability


@dataclass(frozen=True)
class Recalibrated:
    """A recalibrated file."""

    path: Path
    metadata: Metadata
    file_nll: float
    """NLL of the new file on the calibration images."""
    refused: NoGuaranteeError | None = None
    """Why the requested promise is not made."""
    unfit: NoveltyError | None = None
    """Why the file has no requested novelty output."""
    costs: novelty_levels.Costs | None = None
    """The costs of other levels of the gate; None without one."""
    features: novelty_choice.Chosen | None = None
    """Why the gate looks at these layers, where that was chosen."""
    mix: Mix | None = None
    """The mix of classes that the file was corrected for."""


def recalibrate(
    source: str | Path | Model,
    out: str | Path,
    data: Split,
    method: Method,
    samples: int | None = None,
    seed: int = 0,
    promise: Promise | None = None,
    novelty: NoveltyPromise | None = None,
    held_out: Split | None = None,
    monitor: bool = False,
    training: Split | None = None,
    choose_features: bool = False,
    sets: SetPromise | None = None,
    class_prior: ClassPrior | None = None,
) -> Recalibrated:
    """Recalibrate a file on labelled images, as a new file.

    Args:
        source: Any contract file, or one that is loaded on the CPU.
        out: The new file.
        data: Labelled images, as the file takes them.
        method: The calibration map, which may be another kind than the file has.
        samples: The number of passes to calibrate for, and the new file's default; None for the old file's number.
        seed: Which passes to use.
        promise: The error that the reject rule must keep. If the images cannot prove it, the file gets the new
            map and no threshold. If they are too few for any proof, they are refused before anything is computed.
        novelty: The promise of the novelty gate, which is fitted on the images of the map. None writes a file without
            a gate. If it has no level and the images are too few, the file has no gate either.
        held_out: Labelled images that nothing is fitted on, which measure the reject rule. None takes half of
            `data` if something is promised; that half is then not used for the map.
        monitor: Fit on half of the images without a promise too, and store the monitor's reference from the rest.
            With a promise, or with `held_out`, this is always done.
        training: Training images of the network, which fit the novelty gate if nothing that it looks at was trained on
            them. None where there are none.
        choose_features: Whether `auto` chooses what the gate looks at, instead of keeping it.
        sets: The promise of the prediction sets, which `held_out` fits. None writes a file without sets.
        class_prior: The mix of classes where the file will run. All but the map is then fitted to the subsets of the
            images that have this mix. None for the mix of `data`.
    """
    out = check_name(out)
    model = source if isinstance(source, Model) else Model(source, "cpu", spin=False)
    if out.exists() and Path(model.path).exists() and out.samefile(model.path):
        raise UsageError(expected("`out`", "a new file", str(out), "The old file is kept: choose another --out"))
    n = model.metadata.samples if samples is None else samples
    data = overlap.without_seen(model.metadata.trained_on, data, "the calibration set")
    counted = held_out
    given = len(data) if held_out is None else None
    if counted is None and (promise is not None or sets is not None or monitor):
        data, counted = data.halves()
    if promise is not None:
        promise.targets(model.classes)  # refuses classes that do not exist
    _check_possible(counted, promise, sets, model.classes, given)
    network, chosen = graph_of(model), None
    looked_at = _layers(network, novelty, model.metadata.novelty_layers)
    if novelty is not None and novelty.features == AUTO_FEATURES and choose_features and model.metadata.members == 1:
        chosen = novelty_choice.choose(network, parts(data, training)[0], model.metadata.image)
        looked_at = looked_at if chosen is None else chosen.layers
    members = model.metadata.members
    if model.metadata.takes_seeds and not model.metadata.runs_once:
        remedy = "Check the scaling of the pixels, the order of their channels, and the order of the classes."
        early_look.refuse_chance(
            data, n, lambda some, passes: logits_of(model, some.images, passes, seed, members, "early look"), remedy
        )
    logits = logits_of(model, data.images, n, seed, members)
    calibration = fit_map(method, logits, data.labels, seed, members=members)
    own_parameters = {k: v for k, v in model.metadata.calibration.parameters.items() if k == "variance_scale"}
    calibration = replace(calibration, parameters=calibration.parameters | own_parameters)
    mix = None
    if class_prior is not None:
        again = None if class_prior.images is None else logits_of(model, class_prior.images, n, seed, members)
        mixed = class_mix.correct(calibration, logits, class_prior, again, Images(data, counted, model.classes))
        calibration, mix, data, counted = mixed.calibration, mixed.mix, mixed.data, mixed.counted
        _check_possible(counted, promise, sets, model.classes)
    network, described = detach(network, model.metadata)
    metadata = replace(
        described.without_promises(),  # they hold for the old map
        outputs=tuple(name for name in described.outputs if name in contract.MAPS),
        calibration=calibration,
        samples=n,
        novelty_layers=looked_at,
        hashes=replace(model.metadata.hashes, calibration_data=data.sha256()),
    )
    measured = None
    with publish(replace_head(network, metadata), metadata, out) as draft:
        _check_logits(draft.model, model, data, n, seed)
        added = RejectRule() if novelty is None else add_novelty(draft, data, novelty, training)
        gate = added if isinstance(added, RejectRule) else RejectRule()
        known = _known(draft, data, logits if seed == 0 and class_prior is None else None)
        file_nll = _check_likelihood(draft, known, data, n, seed, calibration.outcome.nll_after)
        costs = novelty_levels.compare(draft, data, known, promise, gate, training) if gate.decides else None
        if counted is not None:
            measured = measure(draft, counted, promise, gate, known, sets)
        elif gate.decides:
            draft.describe(replace(draft.metadata, rule=gate))
    refused = measured if isinstance(measured, NoGuaranteeError) else None
    unfit = added if isinstance(added, NoveltyError) else None
    return Recalibrated(out, draft.metadata, file_nll, refused, unfit, costs, chosen, mix)


def _check_possible(
    counted: Split | None,
    promise: Promise | None,
    sets: SetPromise | None,
    classes: Sequence[str],
    given: int | None = None,
) -> None:
    """Refuse held-out images that are too few for any promise; `given` are those before they were halved."""
    if counted is not None and promise is not None:
        guarantee.check_possible(len(counted.one_per_group()), promise, given, grouped=counted.groups is not None)
    if counted is not None and sets is not None:
        conformal.check_possible(counted.one_per_group().labels, sets, classes, halved=given is not None)


def _layers(network: ir.Model, novelty: NoveltyPromise | None, stored: tuple[int, ...]) -> tuple[int, ...]:
    """The layers that the gate looks at, as requested or as stored."""
    if novelty is None or novelty.features == AUTO_FEATURES:
        return stored
    return FeatureChoice(novelty.features).layers(noise_free_layers(infer_shapes(network).graph), stored)


def replace_head(model: ir.Model, metadata: Metadata) -> ir.Model:
    """Replace everything behind the raw logits."""
    graph = model.graph
    logits = raw_logits(graph)
    constants = list(graph.initializers.values())
    old = [str(value.name) for value in constants if _is_head(str(value.name))]
    g = Builder(taken={str(value.name) for value in constants} - set(old))
    samples = None
    if metadata.inference is not Inference.DETERMINISTIC:
        # Baked seeds are an initializer, which stays.
        seeds = next(value for value in (*graph.inputs, *constants) if value.name == contract.SEEDS)
        samples = g.Shape(seeds, start=0, end=1)
    former = {str(value.name): value for value in graph.outputs}
    kept = [value for name, value in former.items() if name in contract.MAPS]
    for name in former.keys() - set(contract.MAPS):
        former[name].name = f"{name}.old"
    for name in old:
        graph.initializers[name].name = f"{name}.old"
    outputs = head.emit(g, logits, samples, len(metadata.classes), metadata.calibration, metadata.members)
    fresh = {value.name: value for value in outputs}
    g.append_to(graph)
    graph.outputs[:] = [*outputs, *kept]
    if kept:  # of the class that the new head predicts
        former[contract.CLASS_ID].replace_all_uses_with(fresh[contract.CLASS_ID])
        graph.sort()
    return checked(model)


def _is_head(initializer: str) -> bool:
    """Whether an initializer belongs to the replaced head."""
    prefixes = ("calibration.", decision.PREFIX, f"{contract.IN_SET}.")
    return initializer.startswith(prefixes) and initializer != contract.VARIANCE_SCALE


def _check_logits(fresh: Model, old: Model, data: Split, samples: int, seed: int) -> None:
    """Require the old network."""
    if fresh.metadata.noise is not NoiseKind.RANDN:
        ours, theirs = (model.logits(data.images[:2], samples, seed) for model in (fresh, old))
        if not np.array_equal(ours, theirs):
            raise ParityError(
                "The recalibrated file has other logits than the old one. Nothing was written.", "parity.logits"
            )


def _known(draft: Draft, data: Split, logits: Logits | None) -> Known:
    """The file's answers for the calibration images.

    Args:
        draft: The file.
        data: The images.
        logits: Those of the file's own passes, if they were drawn for the map; some answers must then follow from them.
    """
    metadata = draft.metadata
    if logits is None or metadata.runs_once or not (metadata.takes_seeds and metadata.noise.replays):
        return Known.of(draft, data)
    known = Known.of_passes(draft, data, logits)
    numbers = replace(data, images=np.arange(len(data))).at_most(_COMPARED).images
    ours, theirs = known.prediction[numbers], predicted(draft, data.images[numbers], "checking the likelihood")
    if not np.abs(ours.probabilities - theirs.probabilities).max() <= _ROUNDING:
        raise _other_likelihood(*(nll(one.probabilities, data.labels[numbers]) for one in (theirs, ours)))
    return known


def _check_likelihood(draft: Draft, known: Known, data: Split, samples: int, seed: int, expected_nll: float) -> float:
    """Require the fitted likelihood."""
    prediction = known.prediction
    if seed != 0:
        prediction = predicted(draft, data.images, "checking the likelihood", samples, seed)
    file_nll = nll(prediction.probabilities, data.labels)
    near = abs(file_nll - expected_nll) <= 1e-3 * max(1.0, expected_nll)
    if draft.metadata.noise is not NoiseKind.RANDN and not near:
        raise _other_likelihood(file_nll, expected_nll)
    return file_nll


def _other_likelihood(file_nll: float, expected_nll: float) -> ParityError:
    return ParityError(
        f"The recalibrated file has NLL {file_nll:.4f}, the fit {expected_nll:.4f}. Nothing was written.",
        "parity.likelihood",
    )
