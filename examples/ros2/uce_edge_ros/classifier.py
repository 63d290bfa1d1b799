"""From a sensor_msgs/Image to the fields of what the node publishes; nothing here needs ROS."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from uce_edge import Model
from uce_edge.errors import ImageError, UceEdgeError, UsageError, expected
from uce_edge.rejection.rule import check_threshold

ENCODINGS = {
    "rgb8": (0, 1, 2), "bgr8": (2, 1, 0), "rgba8": (0, 1, 2), "bgra8": (2, 1, 0), "mono8": (0,), "mono16": (0,),
    "16UC1": (0,),
}  # fmt: skip
"""Where red, green and blue, or gray, lie in a pixel. Alpha is left out: cameras leave anything in it."""
_BYTES = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1, "mono16": 2, "16UC1": 2}
_DEEP = ("mono16", "16UC1")

ERROR = "error"
"""What is decided of an image that cannot be used."""


class ImageMessage(Protocol):
    """The fields of sensor_msgs/Image that are read; `is_bigendian` is about values of two bytes."""

    encoding: str
    height: int
    width: int
    step: int
    is_bigendian: Any
    data: Any


@dataclass(frozen=True)
class Answer:
    """What is published about one image."""

    decision: str
    """accept, reject or error; a robot acts on accept alone."""
    reason: str = ""
    """uncertain, out-of-distribution or both for a rejected image; otherwise empty."""
    why: str = ""
    """What the decision rests on, in words that follow it; empty for an error."""
    uncertainty: float | None = None
    novelty: float | None = None
    """How like the calibration images it is, and its distance from them; None for a file that cannot tell."""
    novelty_score: float | None = None
    label_set: tuple[str, ...] | None = None
    """The labels of the prediction set, the likeliest first; None for a file without sets."""
    hypotheses: tuple[tuple[str, float], ...] = ()
    """Class name and probability, the most probable first."""
    error: str | None = None
    """Why the image cannot be used, in one sentence."""


def pixels(message: ImageMessage) -> npt.NDArray[Any]:
    """The image as uint8 [height, width, 3 or 1], RGB or gray, without the padding of its rows; 16 bits as uint16.

    The model brings 16 bits to 8 by its range: a 12-bit camera wants one that was trained with `--range 12bit`.

    Raises:
        ImageError: The message is not an image in one of `ENCODINGS`.
    """
    if message.encoding not in ENCODINGS:
        rule = f"one of {', '.join(ENCODINGS)}"
        raise ImageError(expected("`encoding`", rule, message.encoding, "Convert it with image_proc or cv_bridge."))
    height, width, step = int(message.height), int(message.width), int(message.step)
    if height < 1 or width < 1:
        raise ImageError(f"The image is {width} x {height} pixels: check the camera's driver.")
    row = width * _BYTES[message.encoding]
    if step < row:
        raise ImageError(f"The image's step is {step} bytes, and a row of {width} {message.encoding} takes {row}.")
    if len(message.data) < step * height:
        raise ImageError(f"The image has {len(message.data)} bytes of data, and {height} rows take {step * height}.")
    rows = np.frombuffer(message.data, np.uint8, step * height).reshape(height, step)
    if message.encoding in _DEEP:
        order = ">u2" if message.is_bigendian else "<u2"
        return np.ascontiguousarray(rows[:, :row]).view(order).astype(np.uint16)[..., None]
    return rows[:, :row].reshape(height, width, -1)[..., list(ENCODINGS[message.encoding])]


def parse_reject(value: object) -> float | str:
    """The parameter `reject`, a number or auto; ROS hands over what the command line looked like."""
    if value == "auto":
        return "auto"
    try:
        return check_threshold(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UsageError(expected("`reject`", "between 0 and 1, or auto", value, "For example: reject:=0.3")) from None


class Classifier:
    """A model with the request that every image is answered by."""

    def __init__(self, model: Model, samples: int, seed: int = 0, reject: object = "auto") -> None:
        """Check the request by answering a black image, which also makes the first real one fast.

        Raises:
            UceEdgeError: The request is wrong, or the file has no stored rule for `reject` auto.
        """
        self._model = model
        self._request: dict[str, Any] = {"samples": samples, "seed": seed, "reject": parse_reject(reject)}
        spec = model.metadata.image
        model.predict(np.zeros((1, spec.height, spec.width, spec.channels), spec.dtype), **self._request)

    def answer(self, message: ImageMessage) -> Answer:
        """What to publish about an image; a bad one is an answer too, and never an exception."""
        try:
            [prediction] = self._model.predict([pixels(message)], **self._request)
        except UceEdgeError as error:
            return Answer(ERROR, error=str(error))
        except Exception as error:  # whatever one image runs into, the next may be fine
            return Answer(ERROR, error=f"The image could not be classified: {type(error).__name__}: {error}")
        if not math.isfinite(prediction.uncertainty):  # no comparison with a threshold means anything then
            return Answer(ERROR, error="The uncertainty is not a number: the model file is damaged, export it again.")
        ranked = sorted(zip(self._model.classes, prediction.probabilities.tolist(), strict=True), key=lambda x: -x[1])
        return Answer(
            decision=str(prediction.decision),
            reason=str(prediction.reason or ""),
            why=prediction.why,
            uncertainty=prediction.uncertainty,
            novelty=prediction.novelty,
            novelty_score=prediction.novelty_score,
            label_set=prediction.label_set,
            hypotheses=tuple(ranked),
        )
