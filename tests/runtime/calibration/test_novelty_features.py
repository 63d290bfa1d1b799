"""Which layers the novelty gate looks at."""

import pytest

from tests.helpers.errors import raises
from uce_edge.calibration.novelty_features import FeatureChoice
from uce_edge.errors import UsageError

NAMES = ("stem.weight", "blocks.0.weight", "blocks.1.weight", "blocks.2.weight", "head.weight")
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
    assert FeatureChoice(wanted, frozen).layers(NAMES, known) == layers


@pytest.mark.parametrize("wanted", ["trunk", "5", "Blocks.0.weight", "", "1,,2"])
def test_what_is_no_layer_is_refused(wanted: str) -> None:
    with raises("argument.novelty_features", UsageError):
        FeatureChoice(wanted).layers(NAMES)


def test_training_images_fit_what_no_trained_layer_changes() -> None:
    for wanted, untrained in {"auto": True, "0": True, "3": True, "1,4": False, "4": False, "last": False}.items():
        assert FeatureChoice(wanted, TRUNK).are_untrained(NAMES) is untrained, wanted
    assert FeatureChoice("auto", NAMES[:4]).are_untrained(NAMES) is True
    assert FeatureChoice("auto").are_untrained(NAMES) is False
