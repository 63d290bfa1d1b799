"""Convert the rejection keys of contract 1 to contract 2.

Contract 1 had four keys, of which one was applied: `per_class`, else `doubt`, else the threshold of `rule`, else
`reject`. The cutoff of `rule` applied to all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from uce_edge._util.field_rules import OPTIONAL, Positive, between, strictly_between
from uce_edge._util.records import Record
from uce_edge.contract import MAX_SAMPLES, MAX_SEED, RuleScore
from uce_edge.rejection.promises import ClassPromise, ErrorPromise, Guarantee, NoveltyGuarantee
from uce_edge.rejection.rule import RejectRule


@dataclass(frozen=True)
class _Threshold(Guarantee):
    samples: Annotated[int, between(1, MAX_SAMPLES)]
    seed: Annotated[int, between(0, MAX_SEED)]
    data: str
    date: Annotated[str | None, OPTIONAL] = None
    grouped: Annotated[bool, OPTIONAL] = False

    def promise(self) -> ErrorPromise:
        return ErrorPromise(**{name: value for name, value in vars(self).items() if name != "threshold"})


@dataclass(frozen=True, kw_only=True)
class _ClassLimit(ClassPromise):
    threshold: Annotated[float, between(-1, 1)]


@dataclass(frozen=True)
class _Classes(Record):
    limits: tuple[_ClassLimit, ...]
    confidence: Annotated[float, strictly_between(0, 1)]
    tested: Positive
    samples: Annotated[int, between(1, MAX_SAMPLES)]
    seed: Annotated[int, between(0, MAX_SEED)]
    data: str
    date: Annotated[str | None, OPTIONAL] = None
    grouped: Annotated[bool, OPTIONAL] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(limit.threshold >= 0 and limit.accepted for limit in self.limits):
            raise self.wrong("limits", "a list that promises something of at least one class")

    def promise(self) -> ErrorPromise:
        """What follows for all classes together."""
        promised = [limit for limit in self.limits if limit.threshold >= 0]
        accepted, images = sum(one.accepted for one in self.limits), sum(one.images for one in self.limits)
        wrong = sum(round((one.error or 0) * one.accepted) for one in self.limits)
        return ErrorPromise(
            target_error=max(one.target_error for one in promised),
            error_bound=max(one.error_bound for one in promised),
            error=wrong / accepted,
            coverage=accepted / images,
            accepted=accepted,
            images=images,
            classes=tuple(ClassPromise.from_document(one.to_document()) for one in self.limits),
            **{name: value for name, value in vars(self).items() if name != "limits"},
        )


@dataclass(frozen=True, kw_only=True)
class _Gate(NoveltyGuarantee):
    cutoff: Annotated[float, strictly_between(0, 1)]


@dataclass(frozen=True)
class _Rule(Record):
    foreign: _Gate
    uncertain: _Threshold | None = None


@dataclass(frozen=True)
class _Keys(Record):
    reject: _Threshold | None = None
    rule: _Rule | None = None
    doubt: _Threshold | None = None
    per_class: _Classes | None = None

    def converted(self) -> RejectRule | None:
        gate = None if self.rule is None else self.rule.foreign
        cutoff = None if gate is None else gate.cutoff
        novelty = None if gate is None else NoveltyGuarantee.from_document(gate.to_document())
        if self.per_class is not None:
            limits = tuple(limit.threshold for limit in self.per_class.limits)
            return RejectRule(RuleScore.UNCERTAINTY, limits, cutoff, self.per_class.promise(), novelty)
        score = RuleScore.UNCERTAINTY if self.doubt is None else RuleScore.CONFIDENCE
        applied = self.doubt or (self.reject if self.rule is None else self.rule.uncertain)
        if applied is None:
            return None if gate is None else RejectRule(cutoff=cutoff, gate=novelty)
        return RejectRule(score, (applied.threshold,), cutoff, applied.promise(), novelty)


def convert(document: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the metadata of a contract 1 file.

    Raises:
        RecordError: A key about rejection is damaged.
    """
    found = _Keys.from_document(document).converted()
    kept = {name: value for name, value in document.items() if name not in _Keys.__dataclass_fields__}
    return kept if found is None else kept | {"rule": found.to_document()}
