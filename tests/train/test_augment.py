"""Augmentation on pixels: mixing, noise and blur are repeatable, stay in range and hold out what is evaluated."""

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conftest import Digits
from torch import Tensor

from uce_edge import corruptions
from uce_edge.contract import Inference, NoiseKind
from uce_edge.datasets import far
from uce_edge.metadata import ImageSpec
from uce_edge_train import augment_pictures
from uce_edge_train.augment import Augmentation
from uce_edge_train.augment_damage import BLUR, NOISE
from uce_edge_train.choices import Mixing
from uce_edge_train.export import metadata_of
from uce_edge_train.recipe import Recipe
from uce_edge_train.runs import Run, load_model

SPEC = ImageSpec(12, 16, 3, mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3))
MEAN, STD = (torch.tensor(values)[:, None, None] for values in (SPEC.mean, SPEC.std))
KINDS = [
    pytest.param(Recipe(shift=0, augment=Mixing.AUGMIX), id="augmix"),
    pytest.param(Recipe(shift=0, augment=Mixing.PIXMIX), id="pixmix"),
    pytest.param(Recipe(shift=0, noise=0.5), id="noise"),
    pytest.param(Recipe(shift=0, blur=0.5), id="blur"),
]


def photos(count: int = 200) -> Tensor:
    """Smooth pixels from 0 to 1, with black, white and flat images among them."""
    coarse = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    pixels = torch.nn.functional.interpolate(coarse, (SPEC.height, SPEC.width), mode="bilinear")
    pixels[0], pixels[1], pixels[2] = 0, 1, 0.4
    return pixels


def after(augment: Augmentation, pixels: Tensor, seed: int = 0) -> Tensor:
    """What becomes of pixels, as pixels."""
    changed = augment((pixels - MEAN) / STD, torch.Generator().manual_seed(seed))
    return changed * STD + MEAN


@pytest.mark.parametrize("recipe", KINDS)
def test_the_generator_decides_what_happens_to_an_image(recipe: Recipe) -> None:
    pixels = photos()
    first, second = (after(recipe.augmentation(SPEC), pixels) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, after(recipe.augmentation(SPEC), pixels, seed=1))


@pytest.mark.parametrize("recipe", KINDS)
def test_pixels_stay_pixels(recipe: Recipe) -> None:
    changed = after(recipe.augmentation(SPEC), photos(400))
    assert bool(torch.isfinite(changed).all())
    assert float(changed.min()) >= -1e-5
    assert float(changed.max()) <= 1 + 1e-5


@pytest.mark.parametrize("recipe", KINDS)
def test_an_image_does_not_depend_on_its_neighbours_pixels(recipe: Recipe) -> None:
    pixels = photos()
    others = pixels.clone()
    others[100:] = 1 - others[100:]
    augment = recipe.augmentation(SPEC)
    torch.testing.assert_close(after(augment, others)[:100], after(augment, pixels)[:100])


@pytest.mark.parametrize("recipe", KINDS)
def test_one_image_in_a_batch_and_gray_images_are_augmented_too(recipe: Recipe) -> None:
    gray = ImageSpec(8, 8, 1, mean=(0.3,), std=(0.4,))
    augment, generator = recipe.augmentation(gray), torch.Generator().manual_seed(0)
    for _ in range(30):
        changed = augment(torch.rand(1, 1, 8, 8), generator)
        assert changed.shape == (1, 1, 8, 8)
        assert bool(torch.isfinite(changed).all())


def test_pixmix_leaves_a_tenth_of_the_images_alone() -> None:
    # No round (1 of 5) on an image that was not changed before (1 of 2).
    pixels = photos(2000)
    same = (after(Recipe(shift=0, augment=Mixing.PIXMIX).augmentation(SPEC), pixels) - pixels).abs().amax((1, 2, 3))
    assert 0.07 < float((same < 1e-6).float().mean()) < 0.13


@pytest.mark.parametrize("mixing", [Mixing.AUGMIX, Mixing.PIXMIX])
def test_a_mixed_image_still_shows_its_subject(mixing: Mixing) -> None:
    pixels = photos(400)[3:]
    mixed = after(Recipe(shift=0, augment=mixing).augmentation(SPEC), pixels)
    both = torch.stack([pixels, mixed]).flatten(2).double()
    both -= both.mean(2, keepdim=True)
    likeness = (both[0] * both[1]).sum(1) / (both[0].norm(dim=1) * both[1].norm(dim=1)).clamp(min=1e-9)
    assert float(likeness.median()) > 0.6
    changed = (mixed - pixels).abs().amax((1, 2, 3)) > 0.05
    assert float(changed.double().mean()) > 0.7


def test_noise_has_the_strengths_it_says() -> None:
    gray = torch.full((600, 3, SPEC.height, SPEC.width), 0.5)
    deviation = (after(Recipe(shift=0, noise=0.5).augmentation(SPEC), gray) - gray).flatten(1).std(1)
    noisy = deviation[deviation > 1e-6]
    assert 240 < len(noisy) < 360
    assert NOISE[0] * 0.8 < float(noisy.min()) < 0.04
    assert 0.15 < float(noisy.max()) < NOISE[1] * 1.1


def test_blur_is_that_of_a_gaussian() -> None:
    point = torch.zeros(600, 3, SPEC.height, SPEC.width)
    point[:, :, 6, 8] = 1
    soft = after(Recipe(shift=0, blur=0.5).augmentation(SPEC), point)[:, 0]
    blurred = soft[(soft - point[:, 0]).abs().amax((1, 2)) > 1e-3].double()
    assert 240 < len(blurred) < 360
    across = blurred.sum(1)
    place = torch.arange(SPEC.width) - 8.0
    deviation = ((across * place**2).sum(1) / across.sum(1)).sqrt()
    # A sampled Gaussian below half a pixel is narrower than its name.
    assert float(deviation.max()) == pytest.approx(BLUR[1], rel=0.05)
    assert float(deviation.min()) < BLUR[0]
    expected = torch.exp(-(place**2) / (2 * deviation.max() ** 2))
    widest = across[deviation.argmax()]
    torch.testing.assert_close(widest / widest.max(), expected.double(), atol=0.02, rtol=0)


def test_a_flat_image_is_flat_after_blur() -> None:
    pixels = torch.full((50, 3, SPEC.height, SPEC.width), 0.7)
    torch.testing.assert_close(after(Recipe(shift=0, blur=1.0).augmentation(SPEC), pixels), pixels)


def test_mixing_pictures_follow_from_the_seed() -> None:
    first, again, other = (augment_pictures.mixing_pictures(16, 12, 3, seed, 8) for seed in (0, 0, 1))
    assert first.shape == (8, 3, 16, 12)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any(axis=(1, 2, 3)).all()


def test_what_far_images_evaluate_with_is_never_mixed_into_training() -> None:
    assert not set(augment_pictures.KINDS) & set(far.KINDS)
    evaluated = looks_like_far(far.far(ImageSpec(32, 32, 3)))
    assert evaluated.all(), "the marks below describe every far image"
    for seed in range(2):
        bank = augment_pictures.mixing_pictures(32, 32, 3, seed)
        assert not looks_like_far(bank.transpose(0, 2, 3, 1)).any()


def test_most_damage_and_far_images_are_held_out_from_every_recipe() -> None:
    everything = set().union(*(Recipe(noise=0.5, blur=0.5, augment=mixing).seen for mixing in Mixing))
    assert everything & set(map(str, corruptions.KINDS)) == {"noise", "blur"}
    assert everything & set(far.KINDS) == {"noise"}, "who trains with noise has seen noise"
    assert Recipe().seen == ()
    assert Recipe(noise=0.1).seen == ("noise",)
    assert set(Recipe(augment=Mixing.PIXMIX).seen) > set(augment_pictures.KINDS)
    assert not set(Recipe(augment=Mixing.AUGMIX).seen) & set(augment_pictures.KINDS)


def test_an_exported_file_says_what_its_training_saw(digits: Digits) -> None:
    plain = Run.load(digits.run)
    run = dataclasses.replace(plain, recipe=dataclasses.replace(plain.recipe, blur=0.2))
    arguments = (load_model(plain, digits.run), Inference.MC, NoiseKind.TABLE, run.calibration)
    assert metadata_of(run, *arguments).seen == ("blur",)
    assert "seen" not in metadata_of(plain, *arguments).to_document()


def looks_like_far(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Flat, without any likeness of neighbours, or between two colours: one holds for each kind of far image."""
    values = images / 255
    flat = values.std(axis=(1, 2)).max(-1) < 0.05
    gray = values.mean(-1)
    gray -= gray.mean(axis=(1, 2), keepdims=True)
    down, across = (gray[:, 1:] * gray[:, :-1], gray[:, :, 1:] * gray[:, :, :-1])
    likeness = (down.mean(axis=(1, 2)) + across.mean(axis=(1, 2))) / 2 / np.maximum(gray.var(axis=(1, 2)), 1e-9)
    colours = values.reshape(len(values), -1, 3)
    spread = np.linalg.svd(colours - colours.mean(1, keepdims=True), compute_uv=False)
    two_colours = spread[:, 1] < 0.02 * spread[:, 0]
    return np.asarray(flat | (likeness < 0.08) | two_colours)


def test_logit_norm_judges_the_direction_alone() -> None:
    recipe, labels = Recipe(logit_norm=0.5), torch.tensor([0, 2])
    logits = torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.1, 0.0]])
    loss, nll = recipe.loss(logits, labels)
    by_hand = torch.tensor([[1.2, 0.0, 1.6], [0.0, 2.0, 0.0]])
    assert nll.item() == pytest.approx(torch.nn.functional.cross_entropy(by_hand, labels).item(), rel=1e-5)
    assert loss.item() == nll.item()
    assert recipe.loss(1000 * logits, labels)[0].item() == pytest.approx(loss.item(), rel=1e-5)
    zero = torch.zeros(2, 3, requires_grad=True)
    recipe.loss(zero, labels)[0].backward()
    assert zero.grad is not None
    assert bool(torch.isfinite(zero.grad).all())
