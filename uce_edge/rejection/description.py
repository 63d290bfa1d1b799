"""The reject rule in words: for answers, commands, reports and pictures."""

from collections.abc import Sequence

from uce_edge._util.printable import shown
from uce_edge.contract import RuleScore
from uce_edge.rejection.promises import ErrorPromise, Guarantee
from uce_edge.rejection.rule import Decision, Reason, RejectRule

UNPROMISED = (
    "No error is promised: --reject auto rejects out-of-distribution images only, whatever the uncertainty of the "
    "others. To promise an error: uce-edge calibrate --target-error 0.05. For your own threshold: --reject 0.3"
)
"""The description of a rule that only rejects out-of-distribution images."""
_OOD, _FAMILIAR = "unlike anything it was calibrated on", "like what it was calibrated on"


def why(rule: RejectRule, class_id: int, label: str, reason: Reason | None, *, brief: bool = False) -> str:
    """The grounds of one decision, to follow "reject:" or "accept:".

    Brief ones are for a row of a table that shows the uncertainty.
    """
    limit = rule.limit(class_id)
    its, verb = ("", "") if brief else ("its ", "is ")
    above, at_most = (f"{its}{_compared(rule, limit, rejected=rejected, verb=verb)}" for rejected in (True, False))
    if brief and reason is Reason.UNCERTAIN and rule.score is RuleScore.UNCERTAINTY:
        above = f"above {1 if limit is None else limit:.4g}"
    if rule.by_class:
        above, at_most = (f"{text}, the limit for {label}" for text in (above, at_most))
        if limit is not None and limit < 0:
            above = f"nothing that is labelled {label} is accepted"
    match reason:
        case Reason.UNCERTAIN:
            return above
        case Reason.OUT_OF_DISTRIBUTION:
            return _OOD
        case Reason.BOTH:
            return f"{_OOD}, and {above}"
    if rule.cutoff is None:
        return at_most
    return _FAMILIAR if limit is None else f"{_FAMILIAR}, and {at_most}"


def accepted_by(rule: RejectRule) -> str:
    """The limits of a rule, for a table: "uncertainty at most 0.3"."""
    if rule.by_class:
        return f"{rule.score} at most the limit of the label"
    return _compared(rule, rule.limit(0), rejected=False, verb="")


def title(rule: RejectRule, decision: Decision | None, count: int, *, ood: bool = False) -> str:
    """The heading of a group of images: "3 uncertain: confidence below 75 %".

    Args:
        rule: The rule that decided.
        decision: Of all images of the group.
        count: The number of images.
        ood: Whether they are rejected as out of distribution.
    """
    if ood:
        return f"{count} out of distribution: {_OOD}"
    if decision is None:
        return f"{count} {'image' if count == 1 else 'images'}"
    rejected = decision is Decision.REJECT
    if rule.by_class:
        ground = f"{rule.score} {'above' if rejected else 'at most'} the limit of the label"
    else:
        ground = _FAMILIAR if rule.limits is None else _compared(rule, rule.limit(0), rejected=rejected, verb="")
    return f"{count} {'uncertain' if rejected else 'accepted'}: {ground}"


def unpromised(rule: RejectRule) -> str | None:
    """The warning about a rule that only rejects out-of-distribution images."""
    return UNPROMISED if rule.decides and rule.limits is None else None


def describe(rule: RejectRule, classes: Sequence[str]) -> str:
    """`--reject auto` and its promises, in sentences."""
    from uce_edge.output.wording import at_most, percent

    sentences = []
    if rule.gate is not None:
        sentences.append(
            f"Out-of-distribution images are rejected. At most {at_most(rule.gate.level)} of the images that are like "
            f"those of the calibration are rejected with them, with {percent(rule.gate.confidence, 0)} confidence "
            f"({rule.gate.images:,} reference images{_of_groups(rule.gate.grouped)})."
        )
    if rule.promise is None:
        sentences.append(UNPROMISED if rule.limits is None else f"Accepted: {accepted_by(rule)}.")
    elif rule.by_class:
        sentences.append(_describe_classes(rule, rule.promise, classes))
    else:
        sentences.append(_describe_promise(_rejected(rule), rule.promise, gated=rule.cutoff is not None))
    return "\n".join(sentences)


def describe_threshold(found: Guarantee, *, grouped: bool = False) -> str:
    """A threshold on the uncertainty and its promise, in two sentences."""
    rejected = f"an uncertainty above {found.threshold:.4g}"
    return _describe_promise(rejected, found, gated=False, grouped=grouped)


def _describe_promise(
    rejected: str, known: ErrorPromise | Guarantee, *, gated: bool, grouped: bool | None = None
) -> str:
    from uce_edge.output.wording import at_most, percent

    grouped = isinstance(known, ErrorPromise) and known.grouped if grouped is None else grouped
    start = f"Images with {rejected} are rejected{', too' if gated else ''}."
    held_out = f"{known.images:,} held-out images{_of_groups(grouped)}"
    if known.error is None:
        return f"{start} None of {held_out} is accepted."
    bound = known.error_bound if known.target_error is None else known.target_error
    accepted = f"{'Both rules accept' if gated else 'This accepts'} {percent(known.coverage)} of the images"
    return (
        f"{start} {accepted}, of which at most {at_most(bound)} are wrong, with {percent(known.confidence, 0)} "
        f"confidence ({known.accepted:,} of {held_out} accepted, {percent(known.error, 2)} of them wrong)."
    )


def _describe_classes(rule: RejectRule, promise: ErrorPromise, classes: Sequence[str]) -> str:
    from uce_edge.output.wording import at_most, percent

    lines = [
        f"Every label has its own limit, and all promises hold together with {percent(promise.confidence, 0)} "
        f"confidence. {percent(promise.coverage)} of {promise.images:,} held-out images{_of_groups(promise.grouped)} "
        "are accepted:"
    ]
    for name, limit, one in zip(map(shown, classes), rule.limits or (), promise.classes, strict=True):
        if limit >= 0:
            lines.append(
                f"  {name}: accepted up to an uncertainty of {limit:.4g}, at most {at_most(one.target_error)} wrong "
                f"({one.accepted:,} of {one.images:,} accepted, {percent(one.error, 2)} of them wrong)"
            )
        else:
            lines.append(
                f"  {name}: always rejected, because its {one.images:,} images cannot prove an error of at most "
                f"{at_most(one.target_error)}"
            )
    return "\n".join(lines)


def _compared(rule: RejectRule, limit: float | None, *, rejected: bool, verb: str = "is ") -> str:
    """One comparison: "uncertainty is above 0.3", "confidence is at least 70 %"."""
    if rule.score is RuleScore.CONFIDENCE:
        return f"confidence {verb}{'below' if rejected else 'at least'} {_percent(limit)}"
    return f"uncertainty {verb}{'above' if rejected else 'at most'} {1 if limit is None else limit:.4g}"


def _rejected(rule: RejectRule) -> str:
    limit = rule.limit(0)
    if rule.score is RuleScore.CONFIDENCE:
        return f"a confidence below {_percent(limit)}"
    return f"an uncertainty above {1 if limit is None else limit:.4g}"


def _percent(limit: float | None) -> str:
    return f"{100 * (1 - (1 if limit is None else limit)):.4g} %"


def _of_groups(grouped: bool) -> str:
    return ", one of each group" if grouped else ""
