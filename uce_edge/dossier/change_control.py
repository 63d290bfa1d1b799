"""Change control: what recalibration may change, and what it must pass."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from uce_edge.contract import BY_CONFIDENCE, CUTOFF, IN_SET, LIMITS, VARIANCE_SCALE
from uce_edge.dossier.promises import PromiseCheck
from uce_edge.evaluation import Evaluation
from uce_edge.output.wording import at_most, percent
from uce_edge.rejection.guarantee import upper_bound


@dataclass(frozen=True)
class Check:
    """One condition that a changed file must meet before it is used."""

    name: str
    condition: str
    command: str


MAY_CHANGE = {
    "calibration.*": "the parameters of the calibration map",
    VARIANCE_SCALE: "the scale of the drawn variance, in a moments file",
    LIMITS: "the largest score that is accepted, by class",
    CUTOFF: "the novelty at or below which an image is rejected",
    BY_CONFIDENCE: "whether the score is 1 - confidence",
    f"{IN_SET}.*": "the limits of the prediction sets",
    "metadata": "the calibration, the rule with its promises, held-out counts, the monitor reference, probes, digests",
}
"""Initializers and metadata that `uce-edge calibrate model.onnx` may change, and what they hold."""

MUST_NOT_CHANGE = (
    "the weights of the network and the nodes of the graph",
    "the classes and their order",
    "the image: size, resize, scaling, gray range",
    "the noise: its layers, its rates and its table",
)


def checks(evaluation: Evaluation, promises: Iterable[PromiseCheck], images: Sequence[str]) -> list[Check]:
    """The conditions, with numbers of the present file.

    Args:
        evaluation: That of the present file.
        promises: Its promises. Each has a check, because recalibration may move the limit behind any of them.
        images: The options that name its images, as `evaluate` and `compare` take them.
    """
    chosen = shlex.join(images)
    metrics = evaluation.metrics
    accuracy, error = metrics["accuracy"], metrics["tuce"]
    found = [
        Check("integrity", "the new file passes all checks", "uce-edge verify NEW.onnx"),
        Check(
            "same images",
            f"evaluated on the {evaluation.images:,} images of this dossier, which took part in no fit",
            f"uce-edge evaluate NEW.onnx {chosen}",
        ),
        Check(
            "accuracy",
            f"not below {100 * (accuracy.low or 0):.1f} %, the lower end of the present interval "
            f"(now {100 * (accuracy.value or 0):.1f} %)",
            f"uce-edge evaluate NEW.onnx {chosen} --json",
        ),
        Check(
            "calibration",
            "the two-sided test of the twin-referenced error does not find over- or underconfidence "
            f"(T-UCE now {100 * (error.value or 0):.2f} %)",
            f"uce-edge evaluate NEW.onnx {chosen} --json",
        ),
        Check(
            "no worse",
            "the paired comparison finds no metric worse than that of the present file",
            f"uce-edge compare OLD.onnx NEW.onnx {chosen}",
        ),
    ]
    found += [
        Check(
            f"promise: {one.name}",
            f"the new file promises this or more: {one.promise}; its own dossier finds the promise kept, or the images "
            f"too few to decide, which is then recorded (now {one.here})",
            f"uce-edge dossier NEW.onnx {chosen} --out NEW",
        )
        for one in promises
    ]
    found += [
        Check(
            f"out of distribution: {one.name}",
            f"at most {at_most(upper_bound(round(accepted * one.images), one.images, 0.95))} of these "
            f"{one.images:,} images are accepted, the 95 % bound of the present share (now {percent(accepted)})",
            shlex.join(["uce-edge", "evaluate", "NEW.onnx", *images, "--ood", one.name, "--json"]),
        )
        for one, accepted in ((one, one.accepted if one.gated is None else one.gated) for one in evaluation.ood)
    ]
    if evaluation.metadata.probe:
        found.append(Check("replay", "logged decisions of the old file replay as before", "uce-edge replay LOG.jsonl"))
    return found
