"""Prediction sets of MAPIE on given probabilities; run by sets_study.py in an environment that has it.

    python sets_mapie.py TASKS.npz

Prints one JSON line per task: the mean size of the sets and the share with the true label, by default and, for
cumulative scores, randomized. Needs numpy and MAPIE alone.
"""

import json
import sys
from typing import Any

import numpy as np


def mapie(fit: Any, labels: Any, test: Any, score: str, alpha: float, *, randomized: bool = False) -> Any:
    """MAPIE's sets. By default a cumulative set includes the label that crosses the limit; randomized, sometimes."""
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
    how = {"include_last_label": "randomized"} if randomized else None
    return np.asarray(fitted.predict_set(test, conformity_score_params=how)[1])[:, :, 0]


def main(path: str) -> None:
    """Answer all tasks."""
    tasks = np.load(path)
    for index, kind in enumerate(tasks["kinds"]):
        dataset, score, alpha, repeat = str(kind).split()
        table, labels = tasks[f"{dataset}.probabilities"].astype(np.float64), tasks[f"{dataset}.labels"]
        fit, test = (tasks[f"{dataset}.{part}.{repeat}"] for part in ("fit", "test"))
        try:
            each = [
                mapie(table[fit], labels[fit], table[test], score, float(alpha), randomized=randomized)
                for randomized in (False, *([True] if score != "lac" else []))
            ]
        except ValueError as error:  # MAPIE takes two classes by lac alone
            print(f"{kind}: {error}", file=sys.stderr)
            continue
        sizes = [float(inside.sum(1).mean()) for inside in each]
        covered = [float(inside[np.arange(len(test)), labels[test]].mean()) for inside in each]
        print(json.dumps({"task": index, "size": sizes, "covered": covered}))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
