"""How good a model file is on labelled images.

`evaluate` gives an `Evaluation`, which `uce_edge.output.report` can draw.
"""

from uce_edge.evaluation.evaluator import evaluate
from uce_edge.evaluation.results import Evaluation, Example, Reliability
from uce_edge.evaluation.score_intervals import Score

__all__ = ["Evaluation", "Example", "Reliability", "Score", "evaluate"]
