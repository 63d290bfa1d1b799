"""Prediction sets of MAPIE on given probabilities; run by sets_study.py in an environment that has it.

    python sets_mapie.py TASKS.npz

Prints one JSON line per task: the set sizes of the test images and whether each set has the true label. Needs numpy
and MAPIE alone.
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


def main(path: str) -> None:
    """Answer all tasks."""
    tasks = np.load(path)
    for index, kind in enumerate(tasks["kinds"]):
        dataset, score, alpha, repeat = str(kind).split()
        table, labels = tasks[f"{dataset}.probabilities"].astype(np.float64), tasks[f"{dataset}.labels"]
        fit, test = (tasks[f"{dataset}.{part}.{repeat}"] for part in ("fit", "test"))
        try:
            inside = mapie(table[fit], labels[fit], table[test], score, float(alpha))
        except ValueError as error:  # MAPIE takes two classes by lac alone
            print(f"{kind}: {error}", file=sys.stderr)
            continue
        right = inside[np.arange(len(test)), labels[test]]
        print(json.dumps({"task": index, "size": float(inside.sum(1).mean()), "covered": float(right.mean())}))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
