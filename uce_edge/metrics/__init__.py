"""Metrics of calibration, uncertainty, selection and out-of-distribution detection.

Probabilities have the shape (images, classes). They are read in blocks of rows, so a memory-mapped 1,000,000 x 1,000
array needs no float64 copy.
"""

from uce_edge.metrics.binned import (
    ReliabilityCurve,
    adaptive_ece,
    adaptive_uce,
    debiased_ece,
    ece,
    mce,
    reliability_curve,
    uce,
)
from uce_edge.metrics.class_metrics import (
    ClassRates,
    Classwise,
    Proportion,
    class_rates,
    classwise,
    classwise_ece,
    classwise_uce,
    confusion_matrix,
)
from uce_edge.metrics.intervals import difference, interval
from uce_edge.metrics.kernel import skce
from uce_edge.metrics.probabilities import Probabilities, normalized_entropy
from uce_edge.metrics.proper_scores import accuracy, brier, nll
from uce_edge.metrics.ranking import auroc, fpr_at_95, ood_auroc, ood_fpr_at_95
from uce_edge.metrics.resampling import Interval, Twin, bootstrap, bootstrap_difference, calibrated_twin
from uce_edge.metrics.selection import RiskCoverage, aurc, error_at, risk_coverage
from uce_edge.metrics.twin_referenced import (
    Calibration,
    CalibrationTest,
    calibration_test,
    classwise_tuce,
    debiased_tuce,
    tuce,
)

__all__ = [
    "Calibration",
    "CalibrationTest",
    "ClassRates",
    "Classwise",
    "Interval",
    "Probabilities",
    "Proportion",
    "ReliabilityCurve",
    "RiskCoverage",
    "Twin",
    "accuracy",
    "adaptive_ece",
    "adaptive_uce",
    "aurc",
    "auroc",
    "bootstrap",
    "bootstrap_difference",
    "brier",
    "calibrated_twin",
    "calibration_test",
    "class_rates",
    "classwise",
    "classwise_ece",
    "classwise_tuce",
    "classwise_uce",
    "confusion_matrix",
    "debiased_ece",
    "debiased_tuce",
    "difference",
    "ece",
    "error_at",
    "fpr_at_95",
    "interval",
    "mce",
    "nll",
    "normalized_entropy",
    "ood_auroc",
    "ood_fpr_at_95",
    "reliability_curve",
    "risk_coverage",
    "skce",
    "tuce",
    "uce",
]
