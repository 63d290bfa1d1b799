import subprocess
import sys

import numpy as np
import pytest
from helpers.errors import raises
from sklearn.datasets import load_digits

from uce_edge.errors import ImageError, UsageError
from uce_edge.images.corruptions import KINDS, SEVERITIES, Kind, corrupt

SIZES = [(8, 8), (28, 28), (32, 32), (96, 64)]


def pictures(height, width, channels, n=12, seed=0):
    """Like photographs: smooth shading, one sharp edge, a little texture, and colours that go together."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    result = np.empty((n, height, width, channels), np.uint8)
    for image in result:
        angle, place = rng.uniform(0, np.pi), rng.uniform(0.3, 0.7)
        shade = 90 + 50 * np.sin(6 * (x * np.cos(angle) + y * np.sin(angle)) + rng.uniform(0, 6))
        shade += 50 * (x + rng.uniform(-0.5, 0.5) * y > place) + 6 * rng.standard_normal(x.shape)
        image[...] = np.clip(shade[..., None] * rng.uniform(0.7, 1, channels), 0, 255).astype(np.uint8)
    return result


def change(before, after):
    return np.abs(after.astype(float) - before).mean()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_severity_changes_more_than_the_one_before(kind, channels, size):
    images = pictures(*size, channels)
    untouched = images.copy()
    changes = []
    for severity in SEVERITIES:
        worse = corrupt(images, kind, severity)
        assert worse.shape == images.shape
        assert worse.dtype == np.uint8
        assert (worse != images).any(axis=(1, 2, 3)).all(), "an image was left as it is"
        changes.append(change(images, worse))
    assert np.all(np.diff(changes) > 0), changes
    assert 0.2 < changes[0] < 30
    np.testing.assert_array_equal(images, untouched)


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_does_not_depend_on_its_batch(kind):
    images = pictures(20, 16, 3)
    together = corrupt(images, kind, 3, seed=5)
    np.testing.assert_array_equal(corrupt(images, str(kind), 3, seed=5), together)
    np.testing.assert_array_equal(corrupt(images[::-1], kind, 3, seed=5)[::-1], together)
    np.testing.assert_array_equal(corrupt(images[4:5], kind, 3, seed=5)[0], together[4])


def test_noise_follows_seed_and_content():
    images = pictures(32, 32, 1)
    first, second = (corrupt(images, Kind.NOISE, 2, seed=seed).astype(int) - images for seed in (0, 1))
    assert (first != second).mean() > 0.8
    assert abs(np.corrcoef(first[0].ravel(), first[1].ravel())[0, 1]) < 0.15, "two images share their noise"
    weak = corrupt(images, "noise", 1).astype(int) - images
    assert np.corrcoef(weak.ravel(), first.ravel())[0, 1] > 0.95, "severities share their noise"
    # The same bytes in another shape are another image.
    other = corrupt(images.reshape(12, 16, 64, 1), "noise", 2).reshape(images.shape)
    assert (other - images != first).mean() > 0.5


def test_strengths_are_those_of_the_table():
    gray = np.full((2, 64, 64, 3), 128, np.uint8)
    assert corrupt(gray, "noise", 2).std() == pytest.approx(0.08 * 255, rel=0.03)
    assert (corrupt(gray, "brightness", 3) == 204).all()  # 128 + 76.5, to even
    assert (corrupt(gray, "brightness", 5) == 255).all()
    np.testing.assert_array_equal(corrupt(gray, "contrast", 5), gray)
    half = gray.copy()
    half[:, :32] = 28
    assert sorted(set(corrupt(half, "contrast", 4).ravel())) == [63, 93]  # 78 -+ 0.3 * 50


def test_pixelate_leaves_as_many_pixels_as_it_says():
    noise = np.random.default_rng(0).integers(0, 256, (1, 32, 64, 1), dtype=np.uint8)
    blocks = corrupt(noise, "pixelate", 3)[0].reshape(16, 2, 32, 2)
    assert (blocks == blocks[:, :1, :, :1]).all()
    mean = noise[0].reshape(16, 2, 32, 2).mean(axis=(1, 3))
    np.testing.assert_allclose(blocks[:, 0, :, 0], mean, atol=1)


def test_digits_get_worse_with_every_severity():
    digits = (load_digits().images[:200] * 255 / 16).astype(np.uint8)[..., None]
    for kind in KINDS:
        changes = [change(digits, corrupt(digits, kind, severity)) for severity in SEVERITIES]
        assert np.all(np.diff(changes) > 1), (kind, changes)


def test_blur_scales_with_the_image_down_to_32_pixels():
    def spread(size):
        dot = np.zeros((1, size, size, 1), np.uint8)
        dot[0, size // 2 - 1 : size // 2 + 1] = 255  # a bar of two rows
        profile = corrupt(dot, "blur", 5)[0, :, size // 2, 0].astype(float)
        rows = np.arange(size) - (size - 1) / 2
        return np.sqrt((profile * rows**2).sum() / profile.sum() - 0.25)

    assert spread(64) == pytest.approx(3.2, rel=0.1)
    assert spread(128) == pytest.approx(6.4, rel=0.1)
    assert spread(32) == pytest.approx(1.6, rel=0.1)
    assert spread(20) == pytest.approx(1.6, rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 1, 1, 3), (2, 1, 9, 3), (1, 3, 2, 1)])
def test_tiny_images_and_every_value(kind, shape):
    for value in (0, 255):
        worse = corrupt(np.full(shape, value, np.uint8), kind, 5)
        assert worse.shape == shape
        assert worse.dtype == np.uint8


@pytest.mark.parametrize(
    ("images", "found"),
    [
        (np.zeros((2, 8, 8, 3)), "float64 [2, 8, 8, 3]"),
        (np.zeros((8, 8, 3), np.uint8), "uint8 [8, 8, 3]"),
        (np.zeros((2, 8, 8, 4), np.uint8), "uint8 [2, 8, 8, 4]"),
        (np.zeros((2, 3, 8, 8), np.uint8), "uint8 [2, 3, 8, 8]"),
        (np.zeros((0, 8, 8, 3), np.uint8), "uint8 [0, 8, 8, 3]"),
        ([[1, 2]], "list"),
    ],
)
def test_images_that_do_not_fit_are_refused(images, found):
    with raises("argument.images", ImageError) as caught:
        corrupt(images, "noise", 1)
    assert caught.value.fields["value"] == found


@pytest.mark.parametrize("kind", ["fog", "NOISE", "", None, 3])
def test_unknown_kind_is_refused(kind):
    with raises("argument.kind", UsageError):
        corrupt(pictures(8, 8, 1), kind, 1)


@pytest.mark.parametrize("severity", [0, 6, -1, 1.0, True, "1", None])
def test_unknown_severity_is_refused(severity):
    with raises("argument.severity", UsageError):
        corrupt(pictures(8, 8, 1), "noise", severity)


@pytest.mark.parametrize("seed", [-1, 0.5, None, True])
def test_a_seed_is_a_whole_number(seed):
    with raises("argument.seed", UsageError):
        corrupt(pictures(8, 8, 1), "noise", 1, seed=seed)


def test_needs_neither_torch_nor_onnxruntime_nor_scipy():
    code = (
        "import sys, uce_edge.images.corruptions, uce_edge.rejection.guarantee;"
        "print([name for name in ('torch', 'onnxruntime', 'scipy', 'sklearn') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
