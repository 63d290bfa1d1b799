"""How good a model file is on labelled images: `evaluate` gives an `Evaluation`, which `uce_edge.report` can draw."""

from uce_edge.evaluation.results import Evaluation, Example, Reliability
from uce_edge.evaluation.run import evaluate
from uce_edge.evaluation.scores import Score

__all__ = ["Evaluation", "Example", "Reliability", "Score", "evaluate"]
