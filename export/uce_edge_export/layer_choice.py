"""Choose the noisy layers of a network, traced or not.

A choice is a sequence of texts, of which each adds layers: `all`, `tail`, `last:6`, or a pattern for their names.
`no-depthwise` takes depthwise layers away from what the others choose, or from all.
"""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from uce_edge.errors import UsageError, expected

ALL, TAIL, LAST, NO_DEPTHWISE = "all", "tail", "last:", "no-depthwise"
FORMS = f"{ALL}, {TAIL}, {LAST}6, {NO_DEPTHWISE} or a pattern for layer names"


@dataclass(frozen=True)
class Layer:
    """A weight layer, as the choice sees it."""

    name: str
    convolution: bool
    depthwise: bool


def check(noisy: Sequence[str], argument: str = "noisy") -> None:
    """Refuse texts that are no choice for any network."""
    for text in noisy:
        count = text.removeprefix(LAST)
        if not text or (text.startswith(LAST) and not (count.isdecimal() and int(count) > 0)):
            raise UsageError(expected(f"`{argument}`", FORMS, text, f"The last two layers: {LAST}2"))


def chosen(
    layers: Sequence[Layer], noisy: Sequence[str], argument: str = "noisy", tail: Sequence[str] = ()
) -> set[str]:
    """The names of the layers that a choice means.

    Args:
        layers: The weight layers that may have noise, in order.
        noisy: The choice; nothing for all.
        argument: Its name in messages.
        tail: Patterns of the network's own tail; none for `tail_of`.
    """
    check(noisy, argument)
    names = [layer.name for layer in layers]
    found: set[str] = set()
    for text in noisy:
        if text == NO_DEPTHWISE:
            continue
        if text == TAIL and not tail:
            some = tail_of(layers)
        elif text.startswith(LAST):
            some = names[-int(text.removeprefix(LAST)) :]
        else:
            patterns = ["*"] if text == ALL else tail if text == TAIL else [text]
            some = [name for name in names if any(matches(name, pattern) for pattern in patterns)]
        if not some:
            known = ", ".join(names if len(names) < 5 else [*names[:3], "...", names[-1]])
            rule = f"{ALL}, {TAIL}, {LAST}N, {NO_DEPTHWISE} or a pattern for one of {known}"
            raise UsageError(expected(f"`{argument}`", rule, text, "The first layer of a network takes no noise"))
        found.update(some)
    if not set(noisy) - {NO_DEPTHWISE}:
        found = set(names)
    if NO_DEPTHWISE in noisy:
        found -= {layer.name for layer in layers if layer.depthwise}
    return found


def tail_of(layers: Sequence[Layer]) -> list[str]:
    """The last convolution and what is behind it.

    Its mean and variance are computed once per image, so a pass runs the layers behind it only. A network without
    convolutions, such as a transformer behind its first layer, has a tail of two layers.
    """
    last = max((number for number, layer in enumerate(layers) if layer.convolution), default=max(len(layers) - 2, 0))
    return [layer.name for layer in layers[last:]]


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern means a layer, by its name or that of its weight."""
    return any(fnmatch.fnmatchcase(form, pattern) for form in (name, name.removesuffix(".weight")))
