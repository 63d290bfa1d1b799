"""Evaluate a model file on labelled images.

`evaluate` returns an `Evaluation`, which `uce_edge.output.report` renders.
"""

from uce_edge.evaluation.evaluator import evaluate
from uce_edge.evaluation.results import Evaluation, Example, Reliability
from uce_edge.evaluation.score_intervals import Score

__all__ = ["Evaluation", "Example", "Reliability", "Score", "evaluate"]
