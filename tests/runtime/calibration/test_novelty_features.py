"""Which layers the novelty gate looks at."""

from itertools import pairwise

import pytest

from tests.helpers.errors import raises
from uce_edge.calibration.novelty_features import FeatureChoice, Layer
from uce_edge.errors import UsageError

NARROW = ("stem.weight", "a.expand", "a.project", "b.expand", "b.shortcut", "b.project", "c.expand", "head.weight")
SIZES = (3, 16, 96, 24, 0, 144, 24, 1280)
BLOCKS = [Layer(*one) for one in zip(NARROW, SIZES, strict=True)]
NAMES = ("stem.weight", "blocks.0.weight", "blocks.1.weight", "blocks.2.weight", "head.weight")
NETWORK = [Layer(name, 0) for name in NAMES]
TRUNK = frozenset(NAMES[:3])


@pytest.mark.parametrize(
    ("wanted", "frozen", "known", "layers"),
    [
        ("auto", (), (), ()),
        ("auto", (), (1,), (1,)),
        ("last", TRUNK, (1,), ()),
        ("auto", TRUNK, (), (3,)),
        ("trunk", TRUNK, (1,), (3,)),
        ("trunk", (), (1,), (1,)),
        ("trunk", NAMES[:4], (), ()),
        ("auto", ("stem.weight", "blocks.1.weight"), (), (1,)),
        ("blocks.1.*", TRUNK, (), (2,)),
        ("blocks.*", (), (), (1,)),
        ("2, 0", (), (), (0, 2)),
        ("4", TRUNK, (), ()),
        ("head*,1", (), (), (1, 4)),
    ],
)
def test_layers_by_word_number_and_pattern(
    wanted: str, frozen: tuple[str, ...], known: tuple[int, ...], layers: tuple[int, ...]
) -> None:
    assert FeatureChoice(wanted, frozen).layers(NETWORK, known) == layers


@pytest.mark.parametrize("wanted", ["trunk", "5", "Blocks.0.weight", "", "1,,2"])
def test_what_is_no_layer_is_refused(wanted: str) -> None:
    with raises("argument.novelty_features", UsageError):
        FeatureChoice(wanted).layers(NETWORK)


def test_training_images_fit_what_no_trained_layer_changes() -> None:
    for wanted, untrained in {"auto": True, "0": True, "3": True, "1,4": False, "4": False, "last": False}.items():
        assert FeatureChoice(wanted, TRUNK).are_untrained(NETWORK) is untrained, wanted
    assert FeatureChoice("auto", NAMES[:4]).are_untrained(NETWORK) is True
    assert FeatureChoice("auto").are_untrained(NETWORK) is False


def test_of_many_layers_the_narrow_ones_are_looked_at() -> None:
    assert FeatureChoice("spread").layers(BLOCKS) == (1, 3, 6, 7)
    assert FeatureChoice("trunk", NARROW[:5]).layers(BLOCKS) == (1, 3, 5)
    assert FeatureChoice("auto", NARROW[:6]).layers(BLOCKS) == (1, 3, 6)
    assert FeatureChoice("auto", NARROW[:7]).layers(BLOCKS) == (1, 3, 6, 7)
    assert FeatureChoice("auto", NARROW[:7]).are_untrained(BLOCKS)
    assert not FeatureChoice("spread", NARROW[:6]).are_untrained(BLOCKS)


def test_of_very_many_layers_eight_are_evenly_spread() -> None:
    deep = [Layer("stem", 3), *(Layer(f"{number}", 64) for number in range(1, 51))]
    layers = FeatureChoice("trunk", [layer.name for layer in deep[:43]]).layers(deep)
    assert len(layers) == 8
    assert layers[-1] == 43
    assert {after - before for before, after in pairwise(layers)} == {6}
    assert layers[0] == 1
    wide = [Layer("stem", 3), *(Layer(f"{number}", 2048) for number in range(1, 51))]
    assert FeatureChoice("spread").layers(wide) == (49, 50)
