"""What a calibration notices before its passes: a model that guesses, and images that were trained on."""

import logging

import numpy as np
import pytest

from tests.helpers.errors import raises
from uce_edge.calibration import early_look
from uce_edge.datasets import overlap
from uce_edge.datasets.splits import Split
from uce_edge.errors import UsageError


@pytest.fixture
def data(rng: np.random.Generator) -> Split:
    images = rng.integers(0, 256, (400, 8, 8, 1)).astype(np.uint8)
    names = np.array([f"{number}.png" for number in range(400)], object)
    return Split(images, rng.integers(0, 4, 400), names=names)


def test_a_long_calibration_of_a_model_that_guesses_is_refused(data: Split, rng: np.random.Generator) -> None:
    asked: list[tuple[int, int]] = []

    def guess(some: Split, passes: int) -> np.ndarray:
        asked.append((len(some), passes))
        return rng.normal(size=(passes, len(some), 4)).astype(np.float32)

    with raises("calibration.near-chance") as caught:
        early_look.refuse_chance(data, 1000, guess, "Check the scaling.")
    assert asked == [(early_look.IMAGES, 1), (early_look.IMAGES, 1000), (len(data), 1000)]
    assert str(caught.value).endswith("Nothing was calibrated. Check the scaling.")
    asked.clear()
    early_look.refuse_chance(data, 2, guess, "")
    assert not asked, "a short calibration warns at its end"


def test_a_weak_model_is_calibrated(data: Split, rng: np.random.Generator) -> None:
    """It is right about one image in two, of four classes."""

    def weak(some: Split, passes: int) -> np.ndarray:
        signal = 1.2 * np.eye(4, dtype=np.float32)[some.labels]
        return (signal + rng.normal(size=(len(some), 4))).astype(np.float32)[None].repeat(passes, 0)

    early_look.refuse_chance(data, 1000, weak, "")


def test_a_model_that_is_hardly_better_than_a_guess_gets_a_second_look(rng: np.random.Generator) -> None:
    """Two classes, right about six images in ten: 100 images mostly cannot tell that from a guess."""
    refused = 0
    for _ in range(20):
        images = rng.integers(0, 256, (500, 8, 8, 1)).astype(np.uint8)
        data = Split(images, rng.integers(0, 2, 500))
        right = {bytes(image): right for image, right in zip(images, rng.random(500) < 0.6, strict=True)}

        def weak(some: Split, passes: int, right: dict[bytes, bool] = right) -> np.ndarray:
            says = np.where([right[bytes(image)] for image in some.images], some.labels, 1 - some.labels)
            return (0.4 * np.eye(2, dtype=np.float32)[says])[None].repeat(passes, 0)

        try:
            early_look.refuse_chance(data, 4000, weak, "")
        except UsageError:
            refused += 1
    assert refused <= 1


def test_a_model_whose_average_is_good_is_calibrated(data: Split, rng: np.random.Generator) -> None:
    def noisy(some: Split, passes: int) -> np.ndarray:
        signal = np.eye(4, dtype=np.float32)[some.labels]
        return signal + 6 * rng.normal(size=(passes, len(some), 4)).astype(np.float32)

    early_look.refuse_chance(data, 1000, noisy, "")
    early_look.refuse_chance(data, 1000, lambda some, _: 5 * np.eye(4, dtype=np.float32)[some.labels][None], "")


def test_a_few_training_images_are_named_and_left_out(data: Split, caplog: pytest.LogCaptureFixture) -> None:
    trained_on = overlap.sketch(data.images[[7, 300]])
    with caplog.at_level(logging.WARNING):
        rest = overlap.without_seen(trained_on, data, "the calibration set")
    assert len(rest) == 398
    assert set(data.names) - set(rest.names) == {"7.png", "300.png"}
    assert "2 of the 400 images of the calibration set were used to train this network" in caplog.text
    assert "7.png, 300.png" in caplog.text


def test_many_training_images_are_refused_with_examples(data: Split) -> None:
    trained_on = overlap.sketch(data.images[:21])
    with raises("dataset.seen-in-training") as caught:
        overlap.without_seen(trained_on, data, "the calibration set")
    assert "such as 0.png, 1.png" in str(caught.value)
    assert caught.value.fields["images"] == 21
