"""The far sets: made by rule, always the same, in the shape a model takes."""

import numpy as np
import numpy.typing as npt
import pytest

from uce_edge.datasets import synthetic_ood
from uce_edge.metadata import ImageSpec

SIZES = [ImageSpec(32, 32, 3), ImageSpec(8, 8, 1), ImageSpec(20, 50, 3), ImageSpec(7, 3, 4), ImageSpec(1, 1, 1)]


def own(spec: ImageSpec) -> npt.NDArray[np.uint8]:
    """A few images without two pixels alike, as far as there are so many values."""
    shape = (4, spec.height, spec.width, spec.channels)
    return (np.arange(np.prod(shape)) % 251).reshape(shape).astype(np.uint8)


def of_kind(name: str, each: int = 20, channels: int = 1) -> npt.NDArray[np.float64]:
    """Images of one kind, 32 by 32."""
    kinds = {**synthetic_ood.CHOICE, **synthetic_ood.JUDGE}
    return synthetic_ood.far(ImageSpec(32, 32, channels), {name: kinds[name]}, each=each).images.astype(float)


@pytest.mark.parametrize("half", synthetic_ood.HALVES.values(), ids=synthetic_ood.HALVES)
@pytest.mark.parametrize("spec", SIZES, ids=str)
def test_there_are_equally_many_of_every_kind_in_the_shape_of_the_model(
    spec: ImageSpec, half: synthetic_ood.Kinds
) -> None:
    made = synthetic_ood.far(spec, half, own(spec), each=3)
    assert made.images.shape == (18, spec.height, spec.width, spec.channels)
    assert made.images.dtype == np.uint8
    assert len(made.kinds) == 18
    assert set(made.kinds) == set(half) | ({synthetic_ood.SHUFFLED} if half is synthetic_ood.JUDGE else set())


def test_half_of_the_kinds_are_kept_out_of_every_choice() -> None:
    assert not set(synthetic_ood.CHOICE) & {*synthetic_ood.JUDGE, synthetic_ood.SHUFFLED}
    assert len(synthetic_ood.CHOICE) == len(synthetic_ood.JUDGE) + 1
    assert synthetic_ood.HALVES["far"] is synthetic_ood.JUDGE, "what evaluations and cards report"


@pytest.mark.parametrize("half", synthetic_ood.HALVES.values(), ids=synthetic_ood.HALVES)
def test_they_are_always_the_same_and_all_different(half: synthetic_ood.Kinds) -> None:
    spec = ImageSpec(16, 16, 3)
    images = synthetic_ood.far(spec, half, each=5).images
    assert np.array_equal(images, synthetic_ood.far(spec, half, each=5).images)
    assert len({image.tobytes() for image in images}) == len(images)
    assert not np.array_equal(images, synthetic_ood.far(spec, half, each=5, seed=1).images)


def test_a_kind_does_not_depend_on_the_others() -> None:
    spec = ImageSpec(16, 16, 3)
    name, make = list(synthetic_ood.CHOICE.items())[-1]
    whole = synthetic_ood.far(spec, synthetic_ood.CHOICE, each=4)
    np.testing.assert_array_equal(whole.images[-4:], synthetic_ood.far(spec, {name: make}, each=4).images)


def test_every_kind_looks_as_it_is_called() -> None:
    noise, colours, gratings, boards, text = (
        of_kind(name)[..., 0] for name in ("noise", "single colours", "gratings", "checkerboards", "text")
    )
    assert (colours.std(axis=(1, 2)) < 5).all()
    for kind in (noise, gratings, boards, text):
        assert (kind.std(axis=(1, 2)) > 5).all()
    # The neighbours of a pixel tell nothing of it in noise, and much in a wave.
    rough = [np.abs(np.diff(kind, axis=2)).mean(axis=(1, 2)) / kind.std(axis=(1, 2)) for kind in (noise, gratings)]
    assert rough[0].min() > 0.9
    assert np.median(rough[1]) < 0.9
    assert all(len(np.unique(board)) == 2 for board in boards)
    assert all(len(np.unique(page)) > 2 for page in text)


def test_pink_noise_has_the_spectrum_of_photos() -> None:
    waves = np.abs(np.fft.fft2(of_kind("pink noise", 100)[..., 0]))[:, 0, 1:16].mean(axis=0)
    slope = np.polyfit(np.log(np.arange(1, 12)), np.log(waves[:11]), 1)[0]
    assert -1.3 < slope < -0.6


def test_mosaics_and_shapes_have_few_colours_and_radiographs_are_gray() -> None:
    for name, most in (("mosaics", 40), ("shapes", 9)):
        for image in of_kind(name, channels=3):
            assert 1 <= len(np.unique(image.reshape(-1, 3), axis=0)) <= most
    rays = of_kind("X-rays", channels=3)
    assert (rays[..., :1] == rays).all()
    thermal = of_kind("thermal", channels=3)
    assert not (thermal[..., :1] == thermal).all(axis=(1, 2, 3)).any()


@pytest.mark.parametrize("spec", SIZES, ids=str)
def test_shuffled_images_keep_the_pixels_of_an_own_one(spec: ImageSpec) -> None:
    images = own(spec)
    made = synthetic_ood.far(spec, synthetic_ood.JUDGE, images, each=6)
    shuffled = made.images[np.array(made.kinds) == synthetic_ood.SHUFFLED]
    known = {np.sort(image, axis=None).tobytes() for image in images}
    assert {np.sort(image, axis=None).tobytes() for image in shuffled} <= known
    if min(spec.height, spec.width) > 1:
        assert not any((image == one).all() for image in images for one in shuffled)


def test_a_model_that_takes_floats_gets_floats() -> None:
    assert (
        synthetic_ood.far(ImageSpec(8, 8, 3, dtype="float32"), synthetic_ood.CHOICE, each=1).images.dtype == np.float32
    )
