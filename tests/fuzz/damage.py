"""Damage to files, numbered: the same number does the same damage, so that a failure can be repeated."""

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

_LONGEST = 64  # bytes of a slice that is taken away, repeated or moved
_IN_PLACE, _KINDS = (0, 1, 2, 3, 4), 9
_NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1]

_WRONG = (
    [],
    {},
    "x",
    "",
    -1,
    0,
    1.5,
    True,
    None,
    float("inf"),
    float("nan"),
    "\ud800",
    "a\0b",
    10**400,
    [[1]],
    {"a": 1},
)


def wrong_values(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A document of JSON with every value, at every depth, replaced by every wrong one."""
    for place in list(_places(document)):
        for wrong in _WRONG:
            changed = copy.deepcopy(document)
            inner: Any = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = copy.deepcopy(wrong)
            yield changed


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield (*at, key)
        yield from _places(inner, (*at, key))


def damaged(corpus: Sequence[bytes], number: int, spared: Sequence[Sequence[range]] = ()) -> bytes:
    """One of the files with one to four kinds of damage.

    Args:
        corpus: Sound files.
        number: Which damage.
        spared: For every file, places that are hit rarely: a million weights would hide the graph. Most damage then
            keeps the length, without which such a file is no file any more.
    """
    rng = random.Random(number)
    which = rng.randrange(len(corpus))
    data = bytearray(corpus[which])
    avoided = spared[which] if spared and rng.random() < 0.9 else ()
    kinds = _IN_PLACE if spared and rng.random() < 0.8 else range(_KINDS)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        _hit(rng, rng.choice(kinds), data, _place(rng, data, avoided), corpus)
    return bytes(data)


def _place(rng: random.Random, data: bytearray, avoided: Sequence[range]) -> int:
    for _ in range(100):
        # Half of the damage is near the beginning, where headers are.
        place = rng.randrange(max(1, min(len(data), 256) if rng.random() < 0.5 else len(data)))
        if not any(place in part for part in avoided):
            break
    return place


def _hit(rng: random.Random, kind: int, data: bytearray, place: int, corpus: Sequence[bytes]) -> None:
    length = rng.randint(1, _LONGEST)
    match kind:
        case 0 | 1 if data:
            data[place % len(data)] ^= 1 << rng.randrange(8)
        case 2 if data:
            data[place % len(data)] = rng.choice([0, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        case 3:
            size = rng.choice([1, 2, 4, 8])
            value = rng.choice(_NUMBERS) % (1 << 8 * size)
            data[place : place + size] = value.to_bytes(size, rng.choice(["little", "big"]))
        case 4:
            other = rng.choice(corpus)
            start = rng.randrange(max(1, len(other) - length))
            data[place : place + length] = other[start : start + length]
        case 5:
            del data[place:]
        case 6:
            del data[place : place + length]
        case 7:
            data[place:place] = data[place : place + length]
        case _:
            data[place:place] = rng.randbytes(length)
