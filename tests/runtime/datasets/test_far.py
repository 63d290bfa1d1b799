"""The far set: made by rule, always the same, in the shape a model takes."""

import numpy as np
import pytest

from uce_edge.datasets import far
from uce_edge.metadata import ImageSpec


@pytest.mark.parametrize("spec", [ImageSpec(32, 32, 3), ImageSpec(8, 8, 1), ImageSpec(20, 50, 3), ImageSpec(1, 1, 1)])
def test_there_are_equally_many_of_every_kind_in_the_shape_of_the_model(spec: ImageSpec) -> None:
    images = far.far(spec, each=3)
    assert images.shape == (15, spec.height, spec.width, spec.channels)
    assert images.dtype == np.uint8
    assert len(far.KINDS) == 5


def test_they_are_always_the_same_and_all_different() -> None:
    spec = ImageSpec(16, 16, 3)
    images = far.far(spec, each=5)
    assert np.array_equal(images, far.far(spec, each=5))
    assert len({image.tobytes() for image in images}) == len(images)
    assert not np.array_equal(images, far.far(spec, each=5, seed=1))


def test_every_kind_looks_as_it_is_called() -> None:
    noise, colours, gratings, boards, text = np.split(far.far(ImageSpec(32, 32, 1), each=20)[..., 0].astype(float), 5)
    assert (colours.std(axis=(1, 2)) < 5).all()
    for kind in (noise, gratings, boards, text):
        assert (kind.std(axis=(1, 2)) > 5).all()
    # The neighbours of a pixel tell nothing of it in noise, and much in a wave.
    rough = [np.abs(np.diff(kind, axis=2)).mean(axis=(1, 2)) / kind.std(axis=(1, 2)) for kind in (noise, gratings)]
    assert rough[0].min() > 0.9
    assert np.median(rough[1]) < 0.9
    assert all(len(np.unique(board)) == 2 for board in boards)
    assert all(len(np.unique(page)) > 2 for page in text)


def test_a_model_that_takes_floats_gets_floats() -> None:
    assert far.far(ImageSpec(8, 8, 3, dtype="float32"), each=1).dtype == np.float32
