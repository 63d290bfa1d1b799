"""Calibration maps: start as the identity, find a known optimum, and never harm the fit."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Digits

from uce_edge.calibration.logits import StoredLogits
from uce_edge.calibration.maps import apply_map, averaged_nll, fit_map, initial
from uce_edge.contract import Method
from uce_edge.datasets import overlap, splits
from uce_edge.errors import UsageError
from uce_edge_train import calibrate
from uce_edge_train.choices import Rates
from uce_edge_train.export import export_run
from uce_edge_train.passes import mc_logits
from uce_edge_train.runs import Run, load_model


def synthetic(samples: int, temperature: float, images: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels drawn from softmax(z), and logits that are `temperature` times too large."""
    generator = torch.Generator().manual_seed(3)
    z = 2 * torch.randn(images, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(z, -1), 1, generator=generator)[:, 0]
    return (z * temperature).expand(samples, images, 5).contiguous(), labels


@pytest.mark.parametrize("method", Method)
def test_every_map_starts_as_the_identity(method: Method) -> None:
    z = torch.randn(3, 7, 5)
    assert torch.allclose(apply_map(method, initial(method, 5), z), z, atol=1e-6)


@pytest.mark.parametrize("truth", [0.5, 1.0, 2.5])
def test_temperature_finds_the_scale_of_the_logits(truth: float) -> None:
    fitted = fit_map(Method.TEMPERATURE, *synthetic(4, truth))
    assert fitted.parameters["temperature"][0] == pytest.approx(truth, rel=0.05)
    assert fitted.samples == 4


def test_temperature_is_the_minimum_of_the_averaged_nll() -> None:
    generator = torch.Generator().manual_seed(0)
    z, labels = synthetic(25, 2.0)
    z = z + 3 * torch.randn(z.shape, generator=generator, dtype=torch.float64)
    best = fit_map(Method.TEMPERATURE, z, labels).parameters["temperature"][0]
    values = [averaged_nll(z / (best * factor), labels).item() for factor in (0.97, 1.0, 1.03)]
    assert values[1] == min(values)
    # The mean of per-pass NLLs has another optimum; the shipped prediction is the average.
    passwise = [averaged_nll(z.reshape(1, -1, 5) / t, labels.repeat(25)).item() for t in (best, best * 1.3)]
    assert passwise[1] < passwise[0]


def test_vector_scales_classes_one_by_one() -> None:
    z, labels = synthetic(1, 1.0, 20000)
    factors = torch.tensor([0.5, 1.0, 2.0, 1.0, 1.5], dtype=torch.float64)
    fitted = fit_map(Method.VECTOR, z * factors, labels)
    assert np.allclose(fitted.parameters["vector"], 1 / factors, rtol=0.08)


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize("truth", [0.4, 3.0])
def test_no_map_raises_the_nll_of_its_calibration_set(method: Method, truth: float) -> None:
    report = fit_map(method, *synthetic(2, truth, 500)).outcome
    assert report.nll_after <= report.nll_before
    if method is not Method.NONE:
        assert report.nll_after < report.nll_before - 0.01


def test_aux_does_not_overfit_a_small_set_with_many_classes() -> None:
    generator = torch.Generator().manual_seed(1)
    z = 3 * torch.randn(1, 4000, 50, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(z[0], -1), 1, generator=generator)[:, 0]
    fitted = fit_map(Method.AUX, z[:, :300], labels[:300])
    parameters = {name: torch.tensor(value).double() for name, value in fitted.parameters.items()}
    unseen = apply_map(Method.AUX, parameters, z[:, 300:])
    assert averaged_nll(unseen, labels[300:]) < averaged_nll(z[:, 300:], labels[300:]) + 0.02


def test_an_easy_set_does_not_drive_the_temperature_to_zero() -> None:
    z = torch.zeros(5, 100, 3, dtype=torch.float64)
    z[..., 1] = 8.0
    fitted = fit_map(Method.TEMPERATURE, z, torch.ones(100, dtype=torch.long))
    assert 0.2 < fitted.parameters["temperature"][0] < 1


def test_label_flips_are_counted() -> None:
    z, labels = synthetic(1, 1.0)
    assert fit_map(Method.TEMPERATURE, z, labels).outcome.label_flips == 0  # one pass: T keeps the argmax
    shifted = z * torch.tensor([1.0, 1.0, 1.0, 1.0, 3.0])
    assert fit_map(Method.VECTOR, shifted, labels).outcome.label_flips > 0


@pytest.mark.parametrize(
    ("logits", "labels", "rule"),
    [
        (np.zeros((2, 3, 4)), [0, 4, 1], "between 0 and 3"),
        (np.zeros((2, 3, 4)), [0, -1, 1], "between 0 and 3"),
        (np.zeros((2, 3, 4)), [0, 1], "one per image"),
        (np.zeros((2, 0, 4)), [], "at least one image"),
        (np.zeros((3, 4)), [0, 1, 2], "samples, images, classes"),
        (np.full((1, 2, 3), np.nan), [0, 1], "NaN"),
    ],
)
def test_bad_logits_and_labels_are_refused(logits: np.ndarray, labels: list[int], rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        fit_map(Method.TEMPERATURE, logits, np.array(labels, np.int64))


def test_mc_logits_repeat_with_their_seed(digits: Digits) -> None:
    run = Run.load(digits.run)
    model = load_model(run, digits.run)
    test = digits.dataset.splits["test"]
    few = splits.Split(test.images[:5], test.labels[:5])
    first, again, other = (torch.cat(list(mc_logits(model, few, run.image, 3, seed)), 1) for seed in (1, 1, 2))
    assert first.shape == (3, 5, 10)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])
    alone = torch.cat(list(mc_logits(model, splits.Split(test.images[3:4], test.labels[3:4]), run.image, 3, 1)), 1)
    torch.testing.assert_close(alone, first[:, 3:4], msg="an image's logits depend on its batch")


@pytest.mark.parametrize("method", [Method.TEMPERATURE, Method.VECTOR])
def test_a_map_fitted_block_by_block_is_the_map_fitted_at_once(method: Method, rng: np.random.Generator) -> None:
    logits = rng.normal(0, 3, (4, 300, 5)).astype(np.float32)
    labels = rng.integers(0, 5, 300)
    logits[:, np.arange(300), labels] += 2
    stored = StoredLogits(torch.from_numpy(logits[:, start : start + 70]) for start in range(0, 300, 70))
    whole, blocks = fit_map(method, logits, labels), fit_map(method, stored, labels)
    assert len(stored) == 5
    assert blocks.report == whole.report
    for name, value in whole.parameters.items():
        np.testing.assert_allclose(blocks.parameters[name], value, rtol=1e-6)


def test_a_run_refuses_images_it_did_not_set_aside(digits: Digits, tmp_path: Path) -> None:
    run = Run.load(digits.run)
    replace(run, split_hashes=run.split_hashes | {"calibration": "other"}).save(tmp_path)
    with pytest.raises(UsageError, match="set aside"):
        calibrate.calibrate(tmp_path)


def test_a_run_refuses_to_be_calibrated_on_its_training_images(digits: Digits) -> None:
    train, test = digits.dataset.splits["train"], digits.dataset.splits["test"]
    mixed = splits.Split(
        np.concatenate([test.images, train.images[:3]]), np.concatenate([test.labels, train.labels[:3]])
    )
    with pytest.raises(UsageError, match=r"^3 of the 362 images of the calibration set were used to train"):
        calibrate.calibrate(digits.run, mixed)


def test_the_published_temperature_is_found() -> None:
    path = Path(os.environ.get("UCE_EDGE_DATA", "")) / "logits" / "densenet40_c10_logits_valtest.npz"
    if not os.environ.get("UCE_EDGE_DATA") or not path.is_file():
        pytest.skip("the published DenseNet-40 logits are not under UCE_EDGE_DATA")
    published = np.load(path, allow_pickle=False)
    fitted = fit_map(Method.TEMPERATURE, published["val_logits"][None], published["val_labels"].ravel())
    assert fitted.parameters["temperature"][0] == pytest.approx(2.8826, abs=0.002)
    assert fitted.outcome.nll_after == pytest.approx(0.186612, abs=1e-4)


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
    plain = calibrate.calibrate(noisy_run, method=method, samples=10)
    tuned = calibrate.calibrate(noisy_run, method=method, samples=10, tune=tune)
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
    assert calibrate.calibrate(noisy_run, method=method, samples=10).tuned_rates is None


def test_a_run_can_be_calibrated_on_other_images(digits: Digits, tmp_path: Path) -> None:
    shutil.copytree(digits.run, tmp_path / "run")
    test = digits.dataset.splits["test"]
    done = calibrate.calibrate(tmp_path / "run", test, samples=5)
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


def test_logits_need_no_more_memory_than_a_block(tmp_path: Path) -> None:
    """120 MB of logits, fitted by a process whose peak hardly rises."""
    script = """
import resource, sys
import numpy as np, torch
from uce_edge.contract import Method
from uce_edge.calibration.logits import StoredLogits
from uce_edge.calibration.maps import fit_map
small, rng = int(sys.argv[1]), np.random.default_rng(0)
blocks = (torch.from_numpy(rng.standard_normal((5, 100, 1000), np.float32)) for _ in range(4 if small else 60))
stored = StoredLogits(blocks)
fit_map(Method.TEMPERATURE, stored, rng.integers(0, 1000, stored.images))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    few, many = (
        int(subprocess.run([sys.executable, "-c", script, small], check=True, capture_output=True, text=True).stdout)
        for small in ("1", "0")
    )
    assert many - few < 60
