"""Prediction sets of MAPIE and TorchCP on given probabilities; run by sets_study.py in an environment that has them.

    python sets_rivals.py mapie TASKS.npz

Prints one JSON line per task: the set sizes of the test images and whether each set has the true label. Needs numpy and
that package alone.
"""

import json
import sys
from typing import Any

import numpy as np


def mapie(fit: Any, labels: Any, test: Any, score: str, alpha: float) -> Any:
    """MAPIE, with its own defaults: a set includes the label that crosses the limit."""
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Known(ClassifierMixin, BaseEstimator):
        """Gives its input back as probabilities."""

        def __init__(self, classes: int = 2) -> None:
            self.classes = classes
            self.classes_ = np.arange(classes)

        def fit(self, x: Any, y: Any) -> "Known":
            return self

        def predict_proba(self, x: Any) -> Any:
            return x / x.sum(1, keepdims=True)

        def predict(self, x: Any) -> Any:
            return x.argmax(1)

        def __sklearn_is_fitted__(self) -> bool:
            return True

    fitted = SplitConformalClassifier(
        Known(fit.shape[1]), confidence_level=1 - alpha, conformity_score=score, prefit=True, random_state=0
    )
    fitted.conformalize(fit, labels)
    return np.asarray(fitted.predict_set(test)[1])[:, :, 0]


def torchcp(fit: Any, labels: Any, test: Any, score: str, alpha: float) -> Any:
    """TorchCP, with its defaults."""
    import torch
    from torchcp.classification.predictor import SplitPredictor
    from torchcp.classification.score import APS, LAC, RAPS

    kinds = {"lac": LAC, "aps": APS, "raps": RAPS}
    torch.manual_seed(0)
    predictor = SplitPredictor(score_function=kinds[score](), model=None, alpha=alpha)
    logits, others = (torch.log(torch.from_numpy(table).clamp(min=1e-30)) for table in (fit, test))
    predictor.calculate_threshold(logits, torch.from_numpy(labels), alpha)
    return predictor.predict_with_logits(others).numpy().astype(bool)


def main(name: str, path: str) -> None:
    """Answer all tasks."""
    tasks = np.load(path)
    for index, kind in enumerate(tasks["kinds"]):
        dataset, score, alpha, repeat = str(kind).split()
        table, labels = tasks[f"{dataset}.probabilities"].astype(np.float64), tasks[f"{dataset}.labels"]
        fit, test = (tasks[f"{dataset}.{part}.{repeat}"] for part in ("fit", "test"))
        inside = globals()[name](table[fit], labels[fit], table[test], score, float(alpha))
        right = inside[np.arange(len(test)), labels[test]]
        print(json.dumps({"task": index, "size": float(inside.sum(1).mean()), "covered": float(right.mean())}))
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
