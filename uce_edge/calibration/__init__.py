"""Fit calibration maps, error maps and reject rules, with numpy alone."""

from typing import TYPE_CHECKING

from uce_edge._util import lazy_exports

if TYPE_CHECKING:
    from uce_edge.calibration.error_map import ErrorMap
    from uce_edge.calibration.label_sets import LabelSets, SetPromise
    from uce_edge.calibration.logits import ArrayLogits, Logits, StoredLogits
    from uce_edge.calibration.maps import apply_map, fit_map
    from uce_edge.calibration.novelty import NoveltyError
    from uce_edge.rejection.guarantee import NoGuaranteeError, images_needed
    from uce_edge.rejection.promises import (
        Counts,
        Cutoff,
        ErrorPromise,
        Guarantee,
        HeldOut,
        NoveltyGuarantee,
        NoveltyPromise,
        Promise,
    )
    from uce_edge.rejection.rule import RejectRule

__all__ = [
    "ArrayLogits",
    "Counts",
    "Cutoff",
    "ErrorMap",
    "ErrorPromise",
    "Guarantee",
    "HeldOut",
    "LabelSets",
    "Logits",
    "NoGuaranteeError",
    "NoveltyError",
    "NoveltyGuarantee",
    "NoveltyPromise",
    "Promise",
    "RejectRule",
    "SetPromise",
    "StoredLogits",
    "apply_map",
    "fit_map",
    "images_needed",
]

__getattr__, __dir__ = lazy_exports.names(
    __name__,
    {
        "uce_edge.calibration.error_map": ("ErrorMap",),
        "uce_edge.rejection.guarantee": ("NoGuaranteeError", "images_needed"),
        "uce_edge.calibration.label_sets": ("LabelSets", "SetPromise"),
        "uce_edge.calibration.logits": ("ArrayLogits", "Logits", "StoredLogits"),
        "uce_edge.calibration.maps": ("apply_map", "fit_map"),
        "uce_edge.calibration.novelty": ("NoveltyError",),
        "uce_edge.rejection.promises": (
            "Counts",
            "Cutoff",
            "ErrorPromise",
            "Guarantee",
            "HeldOut",
            "NoveltyGuarantee",
            "NoveltyPromise",
            "Promise",
        ),
        "uce_edge.rejection.rule": ("RejectRule",),
    },
)
