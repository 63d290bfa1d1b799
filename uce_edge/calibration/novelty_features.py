"""Which features the novelty gate looks at.

They are inputs of weight layers. The input of the last layer has what tells the classes apart, and training forgets the
rest. The frozen trunk of a pretrained network still has it.
"""

import fnmatch
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from uce_edge.errors import UsageError, expected
from uce_edge.rejection.promises import AUTO_FEATURES, LAST_FEATURES, TRUNK_FEATURES


@dataclass(frozen=True)
class FeatureChoice:
    """A choice of features, as a user makes it."""

    wanted: str = AUTO_FEATURES
    """auto, last, trunk, or numbers and patterns of layers, separated by commas."""
    frozen: Collection[str] = frozenset()
    """Names of pretrained weights that training left as they were."""

    def layers(self, names: Sequence[str], known: Sequence[int] = ()) -> tuple[int, ...]:
        """Find the layers of a network.

        Args:
            names: The weight names of its layers, in order.
            known: The layers that its file looks at already.

        Returns:
            Their numbers; none for the last layer.
        """
        trunk, last = self._trunk(names), len(names) - 1
        if self.wanted not in (AUTO_FEATURES, LAST_FEATURES, TRUNK_FEATURES):
            found = {_number(names, part.strip()) for part in self.wanted.split(",")}
        elif self.wanted == LAST_FEATURES or trunk >= last:
            found = {last}
        elif trunk > 0:
            found = {trunk}
        elif self.wanted == TRUNK_FEATURES and not known:
            rule = "trunk for a pretrained network with frozen layers, auto, last, or a layer"
            remedy = "Use --novelty-features last, or train with --init and --freeze"
            raise UsageError(expected("`novelty_features`", rule, self.wanted, remedy))
        else:
            found = set(known)
        return () if found == {last} else tuple(sorted(found))

    def are_untrained(self, names: Sequence[str]) -> bool:
        """Whether no trained layer lies before the features."""
        return max(self.layers(names), default=len(names) - 1) <= self._trunk(names)

    def _trunk(self, names: Sequence[str]) -> int:
        """The number of layers before the first trained one."""
        return next((number for number, name in enumerate(names) if name not in self.frozen), len(names))


def _number(names: Sequence[str], layer: str) -> int:
    """Find a layer by number or pattern."""
    found = next((number for number, name in enumerate(names) if fnmatch.fnmatchcase(name, layer)), len(names))
    number = int(layer) if layer.isdecimal() else found
    if number >= len(names):
        shown = ", ".join(dict.fromkeys([*names[:2], names[len(names) // 2], names[-1]]))
        rule = f"auto, last, trunk, a number below {len(names)}, or a pattern for a layer ({shown}, ...)"
        raise UsageError(expected("`novelty_features`", rule, layer, "For the last layer: --novelty-features last"))
    return number
