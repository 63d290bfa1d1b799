"""Promises for every label hold all at once."""

import numpy as np
import pytest
from helpers.errors import raises

from uce_edge.rejection import class_limits
from uce_edge.rejection.guarantee import NoGuaranteeError, find, images_needed

NAMES = ("glioma", "cyst", "none", "rare")


def drawn(rng: np.random.Generator, images: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels of unequal frequency, whose errors rise with the uncertainty, each in its own way."""
    labels = rng.choice(4, images, p=[0.3, 0.3, 0.38, 0.02])
    uncertainty = rng.uniform(0, 1, images).astype(np.float32)
    return uncertainty, rng.uniform(size=images) < true_rate(uncertainty, labels), labels


def true_rate(uncertainty: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.array([0.3, 0.2, 0.5, 0.2])[labels] * uncertainty


def test_all_promises_together_are_kept_as_often_as_asked(rng: np.random.Generator) -> None:
    """Where every label errs a little more often than it may, at every uncertainty, each promise is a broken one."""
    targets, confidence, draws, broken = (0.05, 0.1, 0.1, 0.1), 0.7, 300, 0
    for _ in range(draws):
        uncertainty, _, labels = drawn(rng, 600)
        wrong = rng.uniform(size=600) < 1.001 * np.array(targets)[labels]
        found = class_limits.search(uncertainty, wrong, labels, targets, confidence)
        broken += any(limit >= 0 for limit in found.limits)
    assert 0.1 < broken / draws <= 0.3  # each by itself at this confidence, one is broken in 37 % of the draws


def test_the_risk_is_split_over_the_labels_that_could_prove_anything(rng: np.random.Generator) -> None:
    uncertainty, wrong, labels = drawn(rng, 900)
    found = class_limits.find(uncertainty, wrong, labels, (0.1, 0.1, 0.1, 0.1), 0.95, NAMES)
    assert (labels == 3).sum() < images_needed(0.1, 0.95)
    assert found.tested == 3
    rare = found.promises[3]
    assert (found.limits[3], rare.accepted, rare.images, rare.error) == (-1, 0, (labels == 3).sum(), None)
    alone = find(uncertainty[labels == 1], wrong[labels == 1], 0.1, 1 - 0.05 / 3)
    assert (found.limits[1], found.promises[1].accepted) == (alone.threshold, alone.accepted)


def test_true_labels_do_not_decide_how_the_risk_is_split(rng: np.random.Generator) -> None:
    uncertainty, wrong, labels = drawn(rng, 900)
    wrong[labels == 2] = True
    found = class_limits.find(uncertainty, wrong, labels, (0.05, 0.1, 0.1, 0.1), 0.95, NAMES)
    assert (found.tested, found.limits[2]) == (3, -1)


def test_nothing_is_promised_where_no_label_can_be(rng: np.random.Generator) -> None:
    uncertainty, wrong, labels = drawn(rng, 900)
    with raises("promise.unprovable", NoGuaranteeError) as caught:
        class_limits.find(uncertainty, wrong | True, labels, (0.05,) * 4, 0.95, NAMES)
    assert caught.value.curve == ()
    with pytest.raises(NoGuaranteeError) as caught:
        class_limits.find(uncertainty, wrong, labels, (0.001,) * 4, 0.95, NAMES)
    assert caught.value.curve[0].images == 900
    with raises("argument.class_ids"):
        class_limits.find(uncertainty, wrong, labels, (0.05,) * 3, 0.95, NAMES[:3])
