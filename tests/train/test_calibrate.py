"""A run that is calibrated: on which images, with which rates, and what it keeps."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Digits

from uce_edge.contract import Method
from uce_edge.datasets import overlap, splits
from uce_edge.errors import UsageError
from uce_edge_train import calibrating
from uce_edge_train.choices import Rates
from uce_edge_train.export import export_run
from uce_edge_train.passes import mc_logits
from uce_edge_train.runs import Run, load_model


def test_mc_logits_repeat_with_their_seed(digits: Digits) -> None:
    run = Run.load(digits.run)
    model = load_model(run, digits.run)
    test = digits.dataset.splits["test"]
    few = splits.Split(test.images[:5], test.labels[:5])
    first, again, other = (np.concatenate(list(mc_logits(model, few, run.image, 3, seed)), 1) for seed in (1, 1, 2))
    assert first.shape == (3, 5, 10)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[0], first[1])
    one = splits.Split(test.images[3:4], test.labels[3:4])
    alone = np.concatenate(list(mc_logits(model, one, run.image, 3, 1)), 1)
    np.testing.assert_allclose(
        alone, first[:, 3:4], rtol=1e-5, atol=1e-5, err_msg="an image's logits depend on its batch"
    )


def test_a_run_refuses_images_it_did_not_set_aside(digits: Digits, tmp_path: Path) -> None:
    run = Run.load(digits.run)
    replace(run, split_hashes=run.split_hashes | {"calibration": "other"}).save(tmp_path)
    with pytest.raises(UsageError, match="set aside"):
        calibrating.calibrate(tmp_path)


def test_a_run_refuses_to_be_calibrated_on_its_training_images(digits: Digits) -> None:
    train, test = digits.dataset.splits["train"], digits.dataset.splits["test"]
    mixed = splits.Split(
        np.concatenate([test.images, train.images[:3]]), np.concatenate([test.labels, train.labels[:3]])
    )
    with pytest.raises(UsageError, match=r"^3 of the 362 images of the calibration set were used to train"):
        calibrating.calibrate(digits.run, mixed)


@pytest.fixture
def noisy_run(digits: Digits, tmp_path: Path) -> Path:
    """The digits network with twice the noise it was trained with."""
    run = Run.load(digits.run)
    folder = tmp_path / "noisy"
    shutil.copytree(digits.run, folder)
    replace(run, rates=dict.fromkeys(run.rates, 0.45)).save(folder)
    return folder


def test_rates_are_tuned_to_the_calibration_images(noisy_run: Path) -> None:
    tune, method = Rates.LAYER, Method.TEMPERATURE
    plain = calibrating.calibrate(noisy_run, method=method, samples=10)
    tuned = calibrating.calibrate(noisy_run, method=method, samples=10, tune=tune)
    assert tuned.calibration.outcome.rates_tuned
    assert tuned.calibration.outcome.nll_after < plain.calibration.outcome.nll_after
    assert tuned.calibration.outcome.nll_before == plain.calibration.outcome.nll_before
    assert tuned.tuned_rates is not None
    assert set(tuned.tuned_rates) == set(tuned.rates)
    assert np.mean(list(tuned.tuned_rates.values())) < 0.4
    assert len(set(tuned.tuned_rates.values())) == len(tuned.rates)
    # What is exported has the new rates, and a calibration without tuning takes them back.
    done = export_run(noisy_run, noisy_run / "tuned.onnx", tuned.dataset())
    found = {layer.name.removesuffix(".weight"): layer.p for layer in done.metadata.layers}
    assert found == pytest.approx(tuned.tuned_rates)
    assert done.file_nll == pytest.approx(tuned.calibration.outcome.nll_after, abs=0.05)
    assert calibrating.calibrate(noisy_run, method=method, samples=10).tuned_rates is None


def test_a_run_can_be_calibrated_on_other_images(digits: Digits, tmp_path: Path) -> None:
    shutil.copytree(digits.run, tmp_path / "run")
    test = digits.dataset.splits["test"]
    done = calibrating.calibrate(tmp_path / "run", test, samples=5)
    assert done.calibration.outcome.images == len(test)


def test_many_training_images_are_remembered_by_a_sample(rng: np.random.Generator) -> None:
    seen = rng.integers(0, 256, (9000, 4, 4, 1), np.uint8)
    trained_on = overlap.sketch(seen)
    assert trained_on.one_in == 5
    assert len(trained_on.to_json()) < 30_000
    unseen = rng.integers(0, 256, (1000, 4, 4, 1), np.uint8)
    overlap.refuse_overlap(trained_on, unseen, "them")
    overlap.refuse_overlap(None, seen, "a model that nothing is known of")
    with pytest.raises(UsageError, match=r"about (\d+) of the 1000 images of them") as refusal:
        overlap.refuse_overlap(trained_on, np.concatenate([seen[:500], unseen[:500]]), "them")
    assert 300 < int(str(refusal.value).split()[1]) < 700
