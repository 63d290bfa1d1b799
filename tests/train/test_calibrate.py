"""A run that is calibrated: on which images, with which rates, and what it keeps."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Call, Digits
from torch import nn

from tests.helpers.errors import raises
from uce_edge.calibration.logits import StoredLogits
from uce_edge.calibration.maps import probabilities
from uce_edge.contract import Method
from uce_edge.datasets import overlap, splits
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError
from uce_edge.metrics import normalized_entropy
from uce_edge.rejection import guarantee
from uce_edge.rejection.guarantee import NoGuaranteeError
from uce_edge.rejection.promises import NoveltyPromise, Promise
from uce_edge_export import recalibration
from uce_edge_train import calibration, calibration_cache
from uce_edge_train.choices import Rates
from uce_edge_train.dropout.monte_carlo import mc_logits
from uce_edge_train.export import export_run
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
    with raises("split.changed", UsageError):
        calibration.calibrate(tmp_path)


def test_a_run_refuses_to_be_calibrated_on_its_training_images(digits: Digits) -> None:
    train, test = digits.dataset.splits["train"], digits.dataset.splits["test"]
    mixed = splits.Split(
        np.concatenate([test.images, train.images[:40]]), np.concatenate([test.labels, train.labels[:40]])
    )
    with pytest.raises(UsageError, match="40 of the 399"):
        calibration.calibrate(digits.run, mixed)


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
    plain = calibration.calibrate(noisy_run, method=method, samples=10)
    tuned = calibration.calibrate(noisy_run, method=method, samples=10, tune=tune)
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
    assert calibration.calibrate(noisy_run, method=method, samples=10).tuned_rates is None


def test_a_run_can_be_calibrated_on_other_images(digits: Digits, tmp_path: Path) -> None:
    shutil.copytree(digits.run, tmp_path / "run")
    test = digits.dataset.splits["test"]
    done = calibration.calibrate(tmp_path / "run", test, samples=5)
    assert done.calibration.outcome.images == len(test)


class Passes:
    """Counts the images that passes are computed for, and may stop there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images: list[int] = []
        self.fails_at: int | None = None
        monkeypatch.setattr(calibration, "mc_logits", self)

    def __call__(self, model: nn.Module, data: splits.Split, *arguments: Any, **named: Any) -> StoredLogits:
        self.images.append(len(data))
        if self.fails_at == len(self.images):
            raise KeyboardInterrupt
        return mc_logits(model, data, *arguments, **named)


def test_another_error_needs_no_new_passes(digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(digits.run, tmp_path / "run")
    (folder / calibration_cache.FILE).unlink(missing_ok=True)
    fitted_on, held_out = (digits.dataset.splits[name] for name in ("calibration", "guarantee"))
    passes = Passes(monkeypatch)
    # Interrupted while the promise is tried, it has its map, which is not fitted again.
    passes.fails_at = 2
    with pytest.raises(KeyboardInterrupt):
        calibration.calibrate(folder, samples=3, promise=Promise(0.0112))
    assert passes.images == [len(fitted_on), len(held_out)]
    fitted = Run.load(folder).calibration
    assert fitted.samples == 3
    with pytest.raises(NoGuaranteeError) as refused:
        calibration.calibrate(folder, samples=3, promise=Promise(0.0112))
    assert passes.images == [len(fitted_on), len(held_out), len(held_out)]
    assert (Run.load(folder).calibration, Run.load(folder).promise) == (fitted, None)
    # The rows are those of a direct computation.
    run = Run.load(folder)
    p = probabilities(fitted, mc_logits(load_model(run, folder), held_out, run.image, 3, 0))
    h, wrong = normalized_entropy(p), p.argmax(-1) != held_out.labels
    assert refused.value.curve
    assert refused.value.curve == guarantee.curve(h, wrong, 0.95, above=0.0112)
    # Another error, confidence or gate: no pass.
    possible = Promise(refused.value.curve[0].target_error or 0)
    done = calibration.calibrate(folder, samples=3, promise=possible, novelty=NoveltyPromise())
    assert (done.promise, done.novelty, done.calibration) == (possible, NoveltyPromise(), fitted)
    assert calibration.calibrate(folder, samples=3).promise is None
    calibration.calibrate(folder, samples=3, promise=replace(possible, confidence=0.9))
    # Nor do errors of classes.
    by_label = Promise.of_classes({"3": 0.001, "other": 0.4})
    assert calibration.calibrate(folder, samples=3, promise=by_label).promise == by_label
    assert Run.load(folder).promise == by_label
    with pytest.raises(UsageError, match="0, 1, 2"):
        calibration.calibrate(folder, samples=3, promise=Promise.of_classes({"x": 0.2, "other": 0.4}))
    assert len(passes.images) == 3
    assert (folder / calibration_cache.FILE).stat().st_size < 1000 + 14 * len(held_out)


def test_what_decides_a_map_decides_whether_passes_are_reused(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(digits.run, tmp_path / "run")
    promise = Promise(0.2)
    calibration.calibrate(folder, samples=2, promise=promise)
    passes = Passes(monkeypatch)
    calibration.calibrate(folder, samples=2, promise=promise)
    assert passes.images == []

    def recomputed(**request: Any) -> bool:
        before = len(passes.images)
        calibration.calibrate(folder, promise=promise, **({"samples": 2} | request))
        return len(passes.images) == before + 2

    assert recomputed(seed=1)
    assert recomputed(seed=0)  # the run has another map by now
    assert recomputed(method=Method.NONE)
    assert recomputed(samples=1)
    assert recomputed(data=digits.dataset.splits["test"])
    weights = (folder / "weights.safetensors").read_bytes()
    assert recomputed()
    (folder / "weights.safetensors").write_bytes(weights[:-4] + bytes(4))
    assert recomputed()
    (folder / calibration_cache.FILE).write_bytes(b"damaged")
    assert recomputed()
    run = Run.load(folder)
    replace(run, calibration=replace(run.calibration, samples=9)).save(folder)  # changed by another program
    assert recomputed()


def test_a_promise_that_so_few_images_cannot_prove_is_refused_before_anything_is_computed(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    folder = shutil.copytree(digits.run, tmp_path / "run")
    few = digits.dataset.splits | {"guarantee": digits.dataset.splits["guarantee"].at_most(8)}
    monkeypatch.setattr(Run, "dataset", lambda _: replace(digits.dataset, splits=few))
    passes, before = Passes(monkeypatch), (folder / "run.json").read_bytes()
    done = call("calibrate", folder, "--target-error", 0.05, "--samples", 2)
    assert done.code == 2
    assert re.search(r"\b59\b", done.err), "the number of images that the promise takes"
    assert (passes.images, (folder / "run.json").read_bytes()) == ([], before)
    monkeypatch.setattr(recalibration, "logits_of", None)  # no pass of a file, either
    sixteen = digits.dataset.splits["test"].at_most(16)
    with pytest.raises(UsageError, match="8 of the given 16"):
        recalibration.recalibrate(
            digits.model, tmp_path / "new.onnx", sixteen, Method.TEMPERATURE, promise=Promise(0.05)
        )
    assert not (tmp_path / "new.onnx").exists()


def test_many_training_images_are_remembered_by_a_sample(rng: np.random.Generator) -> None:
    seen = rng.integers(0, 256, (9000, 4, 4, 1), np.uint8)
    trained_on = overlap.sketch(seen)
    assert trained_on.one_in == 5
    assert len(trained_on.to_json()) < 30_000
    unseen = rng.integers(0, 256, (1000, 4, 4, 1), np.uint8)

    def split(images: np.ndarray) -> Split:
        return Split(images, np.zeros(len(images), np.int64))

    assert len(overlap.without_seen(trained_on, split(unseen), "them")) == 1000
    assert len(overlap.without_seen(None, split(seen), "a model that nothing is known of")) == 9000
    with pytest.raises(UsageError, match=r"(\d+) of the 1000") as refusal:
        overlap.without_seen(trained_on, split(np.concatenate([seen[:500], unseen[:500]])), "them")
    assert 300 < int(re.search(r"(\d+) of the 1000", str(refusal.value))[1]) < 700
