"""Augmentation on pixels: mixing, noise and blur are repeatable, stay in range and hold out what is evaluated."""

import colorsys
import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conftest import Digits
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from uce_edge.contract import Inference, NoiseKind
from uce_edge.datasets import synthetic_ood
from uce_edge.images import corruptions
from uce_edge.metadata import ImageSpec
from uce_edge_train.choices import Mixing
from uce_edge_train.data import augment_colour, augment_pictures, augment_trivial, mixup
from uce_edge_train.data.augment_colour import FLAT
from uce_edge_train.data.augment_damage import BLUR, NOISE
from uce_edge_train.data.augment_operations import moved
from uce_edge_train.data.augmentation import Augmentation
from uce_edge_train.export import metadata_of
from uce_edge_train.recipe import Recipe
from uce_edge_train.runs import Run, load_model

STRANGE = {**synthetic_ood.CHOICE, **synthetic_ood.JUDGE}
MARKED = ("noise", "single colours", "gratings", "checkerboards", "text")
SPEC = ImageSpec(12, 16, 3, mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3))
MEAN, STD = (torch.tensor(values)[:, None, None] for values in (SPEC.mean, SPEC.std))
KINDS = [
    pytest.param(Recipe(shift=0, augment=Mixing.AUGMIX), id="augmix"),
    pytest.param(Recipe(shift=0, augment=Mixing.PIXMIX), id="pixmix"),
    pytest.param(Recipe(shift=0, augment=Mixing.TRIVIAL), id="trivial"),
    pytest.param(Recipe(shift=0, rotate=30), id="rotate"),
    pytest.param(Recipe(shift=0, colour=0.8), id="colour"),
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
    marked = {name: make for name, make in STRANGE.items() if name in MARKED}
    assert not set(augment_pictures.SEEN) & set(marked)
    evaluated = looks_like_far(synthetic_ood.far(ImageSpec(32, 32, 3), marked).images)
    assert evaluated.all(), "the marks below describe every one of these"
    for seed in range(2):
        bank = augment_pictures.mixing_pictures(32, 32, 3, seed)
        assert not looks_like_far(bank.transpose(0, 2, 3, 1)).any()


def test_most_damage_and_far_images_are_held_out_from_every_recipe_without_colours() -> None:
    mixings = (Mixing.NONE, Mixing.AUGMIX, Mixing.PIXMIX)
    recipes = (Recipe(noise=0.5, blur=0.5, rotate=90, mixup=1, augment=mixing) for mixing in mixings)
    everything = set().union(*(recipe.seen for recipe in recipes))
    assert everything & set(map(str, corruptions.KINDS)) == {"noise", "blur"}
    assert everything & set(STRANGE) == {"noise", "mosaics", "pink noise"}, "noise is noise; PixMix shows the others"
    assert Recipe().seen == ()
    assert Recipe(noise=0.1).seen == ("noise",)
    assert set(Recipe(augment=Mixing.PIXMIX).seen) > set(augment_pictures.KINDS)
    assert not set(Recipe(augment=Mixing.AUGMIX).seen) & set(augment_pictures.KINDS)


def test_who_changes_colours_has_seen_the_damage_that_they_are() -> None:
    damage, strange = set(map(str, corruptions.KINDS)), set(STRANGE)
    assert set(Recipe(colour=0.4).seen) & (damage | strange) == {"brightness", "contrast"}
    assert set(Recipe(augment=Mixing.TRIVIAL).seen) & damage == {"brightness", "contrast", "blur"}
    assert set(Recipe(augment=Mixing.TRIVIAL).seen) & strange == {"single colours"}
    # A strong change leaves some images nearly without contrast; a usual one leaves none.
    pixels = photos(2000)[3:]
    assert "single colours" in Recipe(colour=1.0).seen
    assert "single colours" not in Recipe(colour=FLAT).seen
    spread = [
        float(after(Recipe(shift=0, colour=strength).augmentation(SPEC), pixels).std((2, 3)).amax(1).min())
        for strength in (1.0, FLAT)
    ]
    assert spread[0] < 0.02
    assert spread[1] > 0.03


def test_an_exported_file_says_what_its_training_saw(digits: Digits) -> None:
    plain = Run.load(digits.run)
    run = dataclasses.replace(plain, recipe=dataclasses.replace(plain.recipe, blur=0.2))
    arguments = (load_model(plain, digits.run), Inference.MC, NoiseKind.TABLE, run.calibration)
    assert metadata_of(run, *arguments).seen == ("blur",)
    assert "seen" not in metadata_of(plain, *arguments).to_document()


def looks_like_far(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Flat, without any likeness of neighbours, or between two colours: one holds for each kind of `MARKED`."""
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


def as_pillow(pixels: Tensor) -> Image.Image:
    return Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).numpy())


@pytest.mark.parametrize("signed", [-1.0, -0.4, 0.6, 1.0])
@pytest.mark.parametrize(
    ("name", "enhance"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
        ("sharpness", ImageEnhance.Sharpness),
    ],
)
def test_colours_change_as_pillow_changes_them(
    name: str, enhance: Callable[[Image.Image], ImageEnhance._Enhance], signed: float
) -> None:
    pixels = (torch.rand(1, 3, 12, 16, generator=torch.Generator().manual_seed(2)) * 255).round() / 255
    changed = augment_trivial.operated(name, pixels, torch.tensor([0.0]), torch.tensor([signed]))
    expected = np.asarray(enhance(as_pillow(pixels[0])).enhance(1 + 0.99 * signed)) / 255
    # Pillow rounds the gray it blends with, too.
    np.testing.assert_allclose(changed[0].permute(1, 2, 0).numpy(), expected, atol=2.1 / 255)


def test_posterise_and_solarise_are_those_of_pillow() -> None:
    pixels = (torch.rand(1, 3, 12, 16, generator=torch.Generator().manual_seed(2)) * 255).round() / 255
    nothing = torch.zeros(1)
    two_bits = augment_trivial.operated("posterise", pixels, torch.ones(1), nothing)[0].permute(1, 2, 0)
    np.testing.assert_allclose(
        two_bits.numpy(), np.asarray(ImageOps.posterize(as_pillow(pixels[0]), 2)) / 255, atol=0.005
    )
    solar = augment_trivial.operated("solarise", pixels, torch.full((1,), 0.6), nothing)[0].permute(1, 2, 0)
    np.testing.assert_allclose(solar.numpy(), np.asarray(ImageOps.solarize(as_pillow(pixels[0]), 102)) / 255, atol=1e-5)


def test_the_hue_turns_as_colorsys_turns_it() -> None:
    pixels = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(4))
    pixels[0, :, 0, 0], pixels[0, :, 0, 1], pixels[0, :, 0, 2] = 0, 1, 0.3
    turns = torch.tensor([0.1, -0.45])
    turned = augment_colour.hue_turned(pixels, turns[:, None, None, None])
    for image in range(2):
        for y in range(4):
            for x in range(5):
                hue, saturation, value = colorsys.rgb_to_hsv(*pixels[image, :, y, x].tolist())
                expected = colorsys.hsv_to_rgb((hue + float(turns[image])) % 1, saturation, value)
                np.testing.assert_allclose(turned[image, :, y, x].numpy(), expected, atol=1e-5)


def test_a_quarter_turn_is_exact_and_rotate_stays_in_its_range() -> None:
    square, nothing = torch.rand(1, 3, 9, 9), torch.zeros(1)
    quarter = moved(square, torch.full((1,), torch.pi / 2), nothing, nothing, nothing, nothing)
    torch.testing.assert_close(quarter, torch.rot90(square, 1, (2, 3)), atol=1e-5, rtol=1e-5)
    ramp = torch.arange(21.0).expand(400, 1, 21, 21).clone()
    turned = Augmentation(rotate=40)(ramp, torch.Generator().manual_seed(0))[:, 0]
    across, down = turned[:, 10, 11] - turned[:, 10, 9], turned[:, 11, 10] - turned[:, 9, 10]
    degrees = torch.rad2deg(torch.atan2(down, across))
    assert 38 < float(degrees.max()) < 40.1
    assert -40.1 < float(degrees.min()) < -38
    torch.testing.assert_close(turned[:, 10, 10], torch.full((400,), 10.0))


def test_trivial_does_one_of_its_operations_or_nothing() -> None:
    pixels = photos(2803)[3:]
    changed = after(Recipe(shift=0, augment=Mixing.TRIVIAL).augmentation(SPEC), pixels)
    same = (changed - pixels).abs().amax((1, 2, 3)) < 1e-6
    # Nothing (1 of 14), and the weakest of 31 strengths of 10 operations.
    assert 0.07 < float(same.double().mean()) < 0.125
    assert len(augment_trivial.KINDS) == 13


def test_mixup_judges_both_labels_by_their_shares() -> None:
    logits = torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.1, 0.0], [1.0, 2.0, -1.0]], dtype=torch.float64)
    labels, blend = torch.tensor([0, 2, 1]), mixup.Blend(torch.tensor([2, 1, 0]), 0.7)
    soft = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.0, 1.0], [0.3, 0.7, 0.0]], dtype=torch.float64)

    def by_hand(recipe: Recipe) -> tuple[float, float]:
        log_p = torch.log_softmax(recipe.judged(logits).double(), -1)
        nll = -(soft * log_p).sum(-1).mean()
        entropy = -(log_p.exp() * log_p).sum(-1).mean()
        return float(nll - recipe.penalty * entropy), float(nll)

    for recipe in (Recipe(mixup=0.2), Recipe(mixup=0.2, penalty=0.1), Recipe(mixup=0.2, logit_norm=0.5, penalty=0.1)):
        loss, nll = recipe.loss(logits, labels, blend)
        assert (loss.item(), nll.item()) == pytest.approx(by_hand(recipe), rel=1e-5)
    images = torch.rand(3, 1, 2, 2)
    torch.testing.assert_close(blend.images(images)[0], 0.7 * images[0] + 0.3 * images[2])


def test_the_shares_of_mixup_follow_a_beta_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = [mixup.draw(0.2, 4, generator) for _ in range(600)]
    shares = np.array([blend.share for blend in drawn])
    assert shares.mean() == pytest.approx(0.5, abs=0.06)
    assert shares.var() == pytest.approx(1 / (4 * (2 * 0.2 + 1)), rel=0.1)
    assert all(sorted(blend.partner.tolist()) == list(range(4)) for blend in drawn)
    assert len({tuple(blend.partner.tolist()) for blend in drawn}) == 24
