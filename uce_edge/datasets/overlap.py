"""Which images a network was trained on, small enough to travel with the model file.

Of many training images, one in m is kept: those whose fingerprint is a multiple of m. Up to `KEPT` training images m
is 1 and the answer exact. Otherwise an overlap of k images is missed with probability (1 - 1/m)^k: for 40,000 training
images and k = 100, less than 1 %.
"""

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge.errors import UsageError
from uce_edge.metadata import Sketch

KEPT = 2048


def fingerprints(images: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Eight bytes per image that change with any of its pixels."""
    digests = b"".join(hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in images)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def sketch(images: npt.NDArray[Any]) -> Sketch:
    """What is kept of a training set."""
    distinct = np.unique(fingerprints(images))
    one_in = -(-len(distinct) // KEPT)
    kept = distinct[distinct % np.uint64(one_in) == 0]
    return Sketch(one_in, base64.b64encode(kept.astype("<u8").tobytes()).decode())


def union(sketches: Sequence[Sketch | None]) -> Sketch | None:
    """What several networks together were trained on, as far as it is known."""
    known = [one for one in sketches if one is not None]
    if not known:
        return None
    kept = np.unique(np.concatenate([np.frombuffer(one.content, "<u8") for one in known]))
    return Sketch(max(one.one_in for one in known), base64.b64encode(kept.tobytes()).decode())


def seen(trained_on: Sketch | None, images: npt.NDArray[Any]) -> int:
    """How many of these images the network was trained on; an estimate where not every fingerprint is kept.

    Args:
        trained_on: A `sketch`, or None when nothing is known, which counts as none.
        images: The images somebody wants to calibrate or to evaluate on.
    """
    if trained_on is None:
        return 0
    kept = np.frombuffer(trained_on.content, "<u8").astype(np.uint64)
    hits = int(np.isin(fingerprints(images), kept).sum())
    return min(hits * trained_on.one_in, len(images))


def refuse_overlap(trained_on: Sketch | None, images: npt.NDArray[Any], what: str) -> None:
    """Refuse images that the network was trained on: it is too sure of them. `what` is their name."""
    if trained_on is not None and (hits := seen(trained_on, images)):
        about = "" if trained_on.one_in == 1 else "about "
        raise UsageError(
            f"{about}{hits} of the {len(images)} images of {what} were used "
            "to train this network, which is too sure of them. Calibrate on images it has not seen."
        )
