"""Files of contract 1: their keys about rejection, as contract 2 has them.

Contract 1 had four keys, of which one was applied: `per_class`, else `doubt`, else the threshold of `rule`, else
`reject`. The cutoff of `rule` applied to all of them.
"""

from collections.abc import Mapping
from typing import Any

from uce_edge.contract import RuleScore

_REPLACED = ("reject", "rule", "doubt", "per_class")


def convert(document: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a contract 1 file with the keys of contract 2; values are checked by whoever reads them."""
    found = _rule(document)
    kept = {name: value for name, value in document.items() if name not in _REPLACED}
    return kept if found is None else kept | {"rule": found}


def _rule(document: Mapping[str, Any]) -> Any:
    old = document.get("rule")
    if old is not None and not isinstance(old, Mapping):
        return old  # damaged: the reader says so
    classes, doubt = document.get("per_class"), document.get("doubt")
    single = doubt if doubt is not None else document.get("reject") if old is None else old.get("uncertain")
    rule: dict[str, Any] = {}
    if isinstance(classes, Mapping):
        rule = _by_class(classes)
    elif isinstance(single, Mapping):
        score = RuleScore.UNCERTAINTY if doubt is None else RuleScore.CONFIDENCE
        rule = {"score": score.value, "limits": [single.get("threshold")], "promise": dict(single)}
    elif (classes if classes is not None else single) is not None:
        return single
    gate = None if old is None else old.get("foreign")
    if isinstance(gate, Mapping):
        rule |= {"cutoff": gate.get("cutoff"), "gate": dict(gate)}
    return rule or None


def _by_class(stored: Mapping[str, Any]) -> dict[str, Any]:
    """One limit per class; the promise about all of them follows from those about each."""
    limits = [limit if isinstance(limit, Mapping) else {} for limit in stored.get("limits") or ()]
    promised = [limit for limit in limits if (limit.get("threshold") or 0) >= 0]
    accepted, images = (sum(int(limit.get(name) or 0) for limit in limits) for name in ("accepted", "images"))
    wrong = sum(round((limit.get("error") or 0) * (limit.get("accepted") or 0)) for limit in limits)
    promise = dict(stored) | {
        "target_error": max((limit.get("target_error") or 0 for limit in promised), default=None),
        "error_bound": max((limit.get("error_bound") or 0 for limit in promised), default=1.0),
        "error": wrong / accepted if accepted else None,
        "coverage": accepted / images if images else 0.0,
        "accepted": accepted,
        "images": images,
        "classes": limits,
    }
    return {
        "score": RuleScore.UNCERTAINTY.value,
        "limits": [limit.get("threshold") for limit in limits],
        "promise": promise,
    }
