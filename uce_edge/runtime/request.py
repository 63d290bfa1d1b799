"""Requests: validated once, resolved once per model file."""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uce_edge import contract
from uce_edge._util.field_rules import Positive, checked
from uce_edge.errors import UceEdgeWarning, UsageError, argument, expected
from uce_edge.rejection.rule import Rejecting, RejectRule, check_threshold

if TYPE_CHECKING:
    from uce_edge.metadata import Metadata

_USER = 5
"""The stack level of the caller of `Model.predict` or `Model.answers`."""


class SamplesWarning(UceEdgeWarning):
    """The number of passes differs from that of the calibration."""


class GuaranteeWarning(UceEdgeWarning):
    """The passes differ from those of the stored promise."""


@dataclass(frozen=True)
class Request:
    """How to predict.

    The first four fields are arguments of `Model.predict`.
    """

    samples: int | None = None
    seed: int = 0
    reject: Rejecting = None
    adaptive: float | None = None
    top: int = 3
    """The number of likeliest classes that an answer lists."""
    keep: bool = False
    """Whether an answer holds the bytes of its file. It always holds those of standard input."""

    def __post_init__(self) -> None:
        contract.pass_seeds(1 if self.samples is None else self.samples, self.seed)
        if self.reject is not None and self.reject != "auto":
            check_threshold(self.reject)
        if self.adaptive is not None:
            contract.check_adaptive(self.adaptive)
        checked("top", Positive, self.top, "Leave it out for 3")


@dataclass(frozen=True)
class Plan:
    """A request with its seeds and reject rule."""

    request: Request
    seeds: range
    rule: RejectRule

    @property
    def samples(self) -> int:
        """The number of passes; with early stopping the largest number."""
        return len(self.seeds)


def resolve(request: Request, metadata: "Metadata", source: str) -> Plan:
    """Resolve a request for a file.

    Warns where its calibration or promise does not hold.

    Args:
        request: The request.
        metadata: The metadata of the file.
        source: The name of the file, for messages.
    """
    seeds = seeds_of(request.samples, request.seed, metadata)
    rule = rule_of(request.reject, metadata, source)
    _warn(request, len(seeds), metadata)
    return Plan(request, seeds, rule)


def seeds_of(samples: int | None, seed: int, metadata: "Metadata") -> range:
    """The seeds of the passes.

    Without `samples`, there are as many as the file stores.
    """
    stored = metadata.samples
    if samples is not None and samples != stored and not metadata.takes_seeds:
        rule = f"{stored} for a {'model with its passes baked in' if metadata.baked else 'deterministic model'}"
        remedy = f"Leave {argument('samples')} out for this file"
        raise UsageError(expected("`samples`", rule, samples, remedy))
    if seed != 0 and metadata.baked:
        rule = "0 for a model with its passes baked in"
        raise UsageError(expected("`seed`", rule, seed, "Export it without --bake-samples"))
    return contract.pass_seeds(stored if samples is None else samples, seed)


def rule_of(reject: Rejecting, metadata: "Metadata", source: str) -> RejectRule:
    """The reject rule of a request for a file."""
    if reject != "auto":
        return RejectRule(limits=None if reject is None else (check_threshold(reject),))
    if metadata.rule is None:
        raise UsageError(
            f"{source} has no stored threshold. Give one ({argument('reject', 0.3)}), or store one with a promise "
            "about the error: uce-edge calibrate --target-error 0.05",
            "model.no-rule",
        )
    return metadata.rule


def _warn(request: Request, samples: int, metadata: "Metadata") -> None:
    promise, fitted, seed = metadata.promise, metadata.calibration.samples, request.seed
    early = request.adaptive is not None
    passes = f"at most {samples}" if early else f"{samples}"
    differs = promise is not None and (early or (samples, seed) != (promise.samples, promise.seed))
    if request.reject == "auto" and promise is not None and differs:
        warnings.warn(
            f"the stored threshold was found with {promise.samples} samples and seed {promise.seed}: "
            f"with {passes} and seed {seed} its promise about the error does not hold",
            GuaranteeWarning,
            stacklevel=_USER,
        )
    sets = metadata.sets
    if sets is not None and (early or (samples, seed) != (sets.samples, sets.seed)):
        warnings.warn(
            f"the prediction sets were fitted with {sets.samples} samples and seed {sets.seed}: with {passes} and seed "
            f"{seed} their promise does not hold",
            GuaranteeWarning,
            stacklevel=_USER,
        )
    if fitted is not None and samples != fitted:
        warnings.warn(
            f"this model was calibrated at {fitted} samples and runs with {passes}: its probabilities are a little off",
            SamplesWarning,
            stacklevel=_USER,
        )
