"""One answer per image, the same for tables, JSON, pictures and logs: an image that cannot be used is an answer too."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from uce_edge import contract
from uce_edge._util.prefetch import cores, done_ahead
from uce_edge.errors import ImageError
from uce_edge.images.converter import Pixels
from uce_edge.images.gray_range import Range
from uce_edge.images.gray_survey import Notes
from uce_edge.images.loader import STDIN, load, read, read_stream
from uce_edge.images.medical import fragment
from uce_edge.metadata import ImageSpec
from uce_edge.rejection.rule import COLUMNS, Decision, Rejecting, RejectRule
from uce_edge.runtime.prediction import ClassProbability, ImagePrediction

if TYPE_CHECKING:
    from uce_edge.runtime.model import Model

CHUNK = 32
"""Images that the model is asked about at once, at most."""
AHEAD = 2 * CHUNK
"""Images that are read while the model runs: a bound on what waits in memory."""

FIELDS = (
    *("label", "class_id", "confidence", "top"), *contract.NUMBERS, *COLUMNS, *("decision", "reason", "samples", "seed")
)  # fmt: skip
"""The keys of an answer's JSON between its status and its error."""


@dataclass(frozen=True)
class Request:
    """How images are asked about; the first four are those of `Model.predict`."""

    samples: int | None = None
    seed: int = 0
    reject: Rejecting = None
    adaptive: float | None = None
    top: int = 3
    """The likeliest classes that an answer lists."""
    keep: bool = False
    """Whether an answer keeps the bytes that it is about; those of standard input are kept always."""


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer for one image: its prediction, or why there is none. One of `prediction` and `error` is None."""

    path: str
    """The file; `-` is standard input."""
    prediction: ImagePrediction | None
    error: str | None
    """What is wrong, in one sentence with the remedy."""
    rule: RejectRule = field(default=RejectRule(), repr=False)
    """What the decision applied, or would have."""
    top: tuple[ClassProbability, ...] = ()
    """The likeliest classes."""
    content: bytes | None = field(default=None, repr=False)
    """The bytes of the image, where they were read and kept."""
    shown: Range | None = None
    """The gray values that the model took for black and white, if it says so."""
    part: str | None = None
    """The frame or slice of the file that was asked for, as `3` or `z=40`; None for the file itself."""

    @property
    def ok(self) -> bool:
        """Whether there is a prediction."""
        return self.prediction is not None

    @property
    def decision(self) -> Decision | None:
        """Whether the prediction may be used; None without a threshold, and without a prediction."""
        return None if self.prediction is None else self.prediction.decision

    @property
    def why(self) -> str:
        """The grounds of the decision, to follow "reject:" or "accept:"; empty without a decision."""
        return "" if self.prediction is None else self.prediction.why

    @property
    def threshold(self) -> float | None:
        """What the uncertainty was compared with."""
        return self._compared()["threshold"]

    def _compared(self) -> dict[str, float | None]:
        return self.rule.columns(None if self.prediction is None else self.prediction.class_id)

    def _repr_html_(self) -> str:
        """A card, for notebooks."""
        from uce_edge.output.notebook import answer_card

        return answer_card(self)

    def as_row(self, top: int = 3) -> dict[str, Any]:
        """The values as one flat row, for tables. The second likeliest class is label_2, probability_2, and so on.

        Args:
            top: The number of likeliest classes that the row has columns for.
        """
        row = self.as_dict()
        del row["top"]
        error = row.pop("error")
        for number in range(2, top + 1):
            likely = self.top[number - 1] if number <= len(self.top) else None
            row[f"label_{number}"] = None if likely is None else likely.label
            row[f"probability_{number}"] = None if likely is None else likely.probability
        return row | {"error": error}

    def as_dict(self) -> dict[str, Any]:
        """The JSON document: the same keys for every answer, null where there is no value."""
        values: dict[str, Any] = dict.fromkeys(FIELDS)
        if self.prediction is not None:
            values |= self.prediction.as_dict() | {"top": [likely._asdict() for likely in self.top]}
        values |= self._compared()
        return {"path": self.path, "status": "ok" if self.ok else "error"} | values | {"error": self.error}


def each_answer(model: "Model", paths: Iterable[str | Path], request: Request) -> Iterator[Answer]:
    """One answer per path, in order; threads read and decode the next files while the model runs.

    How many images the model is asked about at once depends on what is decoded by then; no answer depends on it.
    """

    def opened(path: str | Path) -> Opened:
        return _open(str(path), model.metadata.image, request.keep)

    threads = model.threads or cores()
    notes = Notes()
    with closing(done_ahead(opened, paths, ahead=AHEAD, threads=threads, at_most=CHUNK)) as chunks, notes:
        for chunk in chunks:
            for image in chunk:
                notes.add(*image.notes)
            yield from answered(model, chunk, request)


def answered(model: "Model", chunk: Sequence["Opened"], request: Request) -> Iterator[Answer]:
    """One answer per image, of images that the model is asked about at once."""
    applied = model.reject_rule(request.reject)
    usable = [image for image in chunk if image.pixels is not None]
    predictions: Iterator[ImagePrediction] = iter(())
    if usable:
        pixels = np.stack([image.pixels for image in usable if image.pixels is not None])
        said = model.predict(pixels, request.samples, request.seed, request.reject, request.adaptive)
        # The paths take the place of the pixels, which would fill the memory.
        predictions = iter(replace(said, sources=[None if image.path == STDIN else image.path for image in usable]))
    for image in chunk:
        if image.pixels is None:
            answer = refused(image.path, image.error, applied, image.content)
        else:
            answer = answer_of(model, image.path, next(predictions), request.top, image.content)
        yield answer if image.part is None else replace(answer, part=image.part)


def answer_of(
    model: "Model",
    path: str,
    prediction: ImagePrediction,
    top: int = 3,
    content: bytes | None = None,
) -> Answer:
    """What a model said of one image, as an answer; numbers that are not finite are an error.

    Args:
        model: Who said it.
        path: What the image is called.
        prediction: What it said.
        top: The likeliest classes to list.
        content: The bytes of the image, to keep.
    """
    if not _is_finite(prediction):
        return refused(path, _overflow(path, model.path), prediction.rule, content)
    likeliest = prediction.top(model.classes, top)
    return Answer(path, prediction, None, prediction.rule, likeliest, content, model.metadata.image.range)


def refused(path: str, error: str, applied: RejectRule, content: bytes | None = None) -> Answer:
    """The answer about an image that nothing can be said of.

    Args:
        path: What the image is called.
        error: What is wrong with it.
        applied: The rule that would have decided.
        content: The bytes of the image, to keep.
    """
    return Answer(path, None, error, applied, (), content)


class Opened(NamedTuple):
    """An image as the model takes it, or what is wrong with it, which is empty for a good one."""

    path: str
    pixels: Pixels | None
    error: str
    content: bytes | None
    """The bytes of the image, to keep."""
    notes: list[str]
    """What is odd about it."""
    part: str | None = None
    """As that of `Answer`."""


def _open(path: str, spec: ImageSpec, keep: bool) -> Opened:
    content, notes = None, list[str]()
    try:
        if keep or path == STDIN:
            content = read_stream(sys.stdin.buffer, _name(path)) if path == STDIN else read(path)
        pixels = load(path if content is None else content, spec, _name(path), notes.append)
        return Opened(path, pixels, "", content, notes, fragment(path))
    except ImageError as error:
        return Opened(path, None, str(error), content, notes, fragment(path))


def _name(path: str) -> str:
    return "The image data" if path == STDIN else path


def _is_finite(prediction: ImagePrediction) -> bool:
    """Whether every number is one: NaN has no place in JSON, and nobody can act on it."""
    numbers = [value for value in prediction.as_dict().values() if isinstance(value, float)]
    return all(map(math.isfinite, numbers)) and bool(np.isfinite(prediction.probabilities).all())


def _overflow(path: str, model: str) -> str:
    return (
        f"{_name(path)} has no answer: {model} gives numbers that are not finite, so the model file is damaged or its "
        "arithmetic overflows. Copy the file again, or export it again with --precision fp32."
    )
