"""Which features the novelty gate looks at.

They are inputs of weight layers. The input of the last layer has what tells the classes apart, and training forgets the
rest. The frozen trunk of a pretrained network still has it. Of many layers, the narrow ones are looked at: what a wide
layer computes must pass through the next narrow one.
"""

import fnmatch
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from uce_edge.calibration.novelty import RANK
from uce_edge.errors import UsageError, expected
from uce_edge.rejection.promises import AUTO_FEATURES, LAST_FEATURES, SPREAD_FEATURES, TRUNK_FEATURES

_MOST = 8  # layers of a trunk, or before the last layer; measured in docs/novelty.md


class Layer(NamedTuple):
    """A weight layer of a network."""

    name: str
    """That of its weights."""
    features: int
    """Of its input; 0 where that is unknown, or the input of an earlier layer."""


@dataclass(frozen=True)
class FeatureChoice:
    """A choice of features, as a user makes it."""

    wanted: str = AUTO_FEATURES
    """auto, last, trunk, spread, or numbers and patterns of layers, separated by commas."""
    frozen: Collection[str] = frozenset()
    """Names of pretrained weights that training left as they were."""

    def layers(self, network: Sequence[Layer], known: Sequence[int] = ()) -> tuple[int, ...]:
        """Find the layers of a network.

        Args:
            network: Its layers, in order.
            known: The layers that its file looks at already.

        Returns:
            Their numbers; none for the last layer.
        """
        trunk, last = self._trunk(network), len(network) - 1
        if self.wanted not in (AUTO_FEATURES, LAST_FEATURES, TRUNK_FEATURES, SPREAD_FEATURES):
            found = {_number([layer.name for layer in network], part.strip()) for part in self.wanted.split(",")}
        elif self.wanted == LAST_FEATURES:
            found = {last}
        elif self.wanted == SPREAD_FEATURES:
            found = {*_narrow(network, last - 1), last}
        elif trunk > 0:
            found = set(_narrow(network, min(trunk, last)))
        elif self.wanted == TRUNK_FEATURES and not known:
            rule = "trunk for a pretrained network with frozen layers, auto, last, spread, or a layer"
            remedy = "Use --novelty-features last, or train with --init and --freeze"
            raise UsageError(expected("`novelty_features`", rule, self.wanted, remedy))
        else:
            found = set(known)
        return () if found == {last} else tuple(sorted(found))

    def are_untrained(self, network: Sequence[Layer]) -> bool:
        """Whether no trained layer lies before the features."""
        return max(self.layers(network), default=len(network) - 1) <= self._trunk(network)

    def _trunk(self, network: Sequence[Layer]) -> int:
        """The number of layers before the first trained one."""
        return next((i for i, layer in enumerate(network) if layer.name not in self.frozen), len(network))


def _narrow(network: Sequence[Layer], until: int) -> list[int]:
    """Some layers up to one, and that one, whose inputs have fewest features.

    The first layer takes pixels, so it is none of them.
    """
    known = [number for number in range(until + 1) if network[number].features]
    sizes = [network[number].features if number else RANK for number in known]
    narrow = [
        number
        for number, before, size, after in zip(known[1:], sizes, sizes[1:], [*sizes[2:], RANK], strict=False)
        if size <= min(before, after, RANK) and number < until
    ]
    candidates = [*narrow, until]
    step = max(1.0, (len(candidates) - 1) / (_MOST - 1))
    return sorted({candidates[-1 - round(index * step)] for index in range(min(_MOST, len(candidates)))})


def _number(names: Sequence[str], layer: str) -> int:
    """Find a layer by number or pattern."""
    found = next((number for number, name in enumerate(names) if fnmatch.fnmatchcase(name, layer)), len(names))
    number = int(layer) if layer.isdecimal() else found
    if number >= len(names):
        shown = ", ".join(dict.fromkeys([*names[:2], names[len(names) // 2], names[-1]]))
        rule = f"auto, last, trunk, spread, a number below {len(names)}, or a pattern for a layer ({shown}, ...)"
        raise UsageError(expected("`novelty_features`", rule, layer, "For the last layer: --novelty-features last"))
    return number
