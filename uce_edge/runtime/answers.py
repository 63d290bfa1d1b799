"""One answer per image: a prediction, or an error."""

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
from uce_edge.rejection.rule import COLUMNS, Decision, RejectRule
from uce_edge.runtime.prediction import ClassProbability, ImagePrediction
from uce_edge.runtime.request import Plan, Request

if TYPE_CHECKING:
    from uce_edge.runtime.model import Model

__all__ = ["AHEAD", "CHUNK", "FIELDS", "Answer", "Opened", "Request", "answer_of", "answered", "each_answer", "refused"]

CHUNK = 32
"""The largest batch."""
AHEAD = 2 * CHUNK
"""Images that are read while the model runs, which bounds the memory."""

FIELDS = (
    *("label", "class_id", "confidence", "top"), *contract.NUMBERS, *COLUMNS, *("decision", "reason", "set"),
    *("samples", "seed"),
)  # fmt: skip
"""The keys of an answer's JSON between its status and its error."""


@dataclass(frozen=True, eq=False)
class Answer:
    """A prediction for one image, or an error."""

    path: str
    """The file; `-` is standard input."""
    prediction: ImagePrediction | None
    error: str | None
    """The problem and its remedy, in one sentence."""
    rule: RejectRule = field(default=RejectRule(), repr=False)
    """The rule of the request."""
    top: tuple[ClassProbability, ...] = ()
    """The likeliest classes."""
    content: bytes | None = field(default=None, repr=False)
    """The bytes of the image, if the request keeps them."""
    shown: Range | None = None
    """The gray values that the model shows as black and white, if it stores them."""
    part: str | None = None
    """The requested frame or slice of the file, such as `3` or `z=40`; None for the file itself."""

    @property
    def ok(self) -> bool:
        """Whether there is a prediction."""
        return self.prediction is not None

    @property
    def decision(self) -> Decision | None:
        """The decision; None without a rule or a prediction."""
        return None if self.prediction is None else self.prediction.decision

    @property
    def why(self) -> str:
        """The reason for the decision, in words; empty without one."""
        return "" if self.prediction is None else self.prediction.why

    @property
    def threshold(self) -> float | None:
        """The limit on the uncertainty."""
        return self._compared()["threshold"]

    def _compared(self) -> dict[str, float | None]:
        applied = self.rule
        return applied.columns(None if self.prediction is None else self.prediction.class_id)

    def _repr_html_(self) -> str:
        """A card, for notebooks."""
        from uce_edge.output.notebook import answer_card

        return answer_card(self)

    def as_row(self, top: int = 3) -> dict[str, Any]:
        """One flat row, for tables.

        The second likeliest class is `label_2`, `probability_2`, and so on. The labels of a set are joined with `|`.

        Args:
            top: The number of likeliest classes with columns.
        """
        row = self.as_dict()
        del row["top"]
        row["set"] = None if row["set"] is None else "|".join(row["set"])
        error = row.pop("error")
        for number in range(2, top + 1):
            likely = self.top[number - 1] if number <= len(self.top) else None
            row[f"label_{number}"] = None if likely is None else likely.label
            row[f"probability_{number}"] = None if likely is None else likely.probability
        return row | {"error": error}

    def as_dict(self) -> dict[str, Any]:
        """The JSON document; every answer has the same keys."""
        values: dict[str, Any] = dict.fromkeys(FIELDS)
        if self.prediction is not None:
            values |= self.prediction.as_dict() | {"top": [likely._asdict() for likely in self.top]}
        values |= self._compared()
        return {"path": self.path, "status": "ok" if self.ok else "error"} | values | {"error": self.error}


def each_answer(model: "Model", paths: Iterable[str | Path], plan: Plan) -> Iterator[Answer]:
    """One answer per path, in order.

    Threads read and decode the next files while the model runs. The size of a batch depends on how many are decoded by
    then; no answer depends on it.
    """

    def opened(path: str | Path) -> Opened:
        return _open(str(path), model.metadata.image, plan.request.keep)

    threads = model.threads or cores()
    notes = Notes()
    with closing(done_ahead(opened, paths, ahead=AHEAD, threads=threads, at_most=CHUNK)) as chunks, notes:
        for chunk in chunks:
            for image in chunk:
                notes.add(*image.notes)
            yield from answered(model, chunk, plan)


def answered(model: "Model", chunk: Sequence["Opened"], plan: Plan) -> Iterator[Answer]:
    """One answer per image of a batch."""
    usable = [image for image in chunk if image.pixels is not None]
    predictions: Iterator[ImagePrediction] = iter(())
    if usable:
        pixels = np.stack([image.pixels for image in usable if image.pixels is not None])
        prediction = model.predict_planned(pixels, plan)
        # Paths instead of pixels, which would fill the memory.
        sources = [None if image.path == STDIN else image.path for image in usable]
        predictions = iter(replace(prediction, sources=sources, spec=model.metadata.image))
    for image in chunk:
        if image.pixels is None:
            answer = refused(image.path, image.error, plan.rule, image.content)
        else:
            answer = answer_of(model, image.path, next(predictions), plan.request.top, image.content)
        yield answer if image.part is None else replace(answer, part=image.part)


def answer_of(
    model: "Model",
    path: str,
    prediction: ImagePrediction,
    top: int = 3,
    content: bytes | None = None,
) -> Answer:
    """The answer for a prediction.

    Numbers that are not finite are an error.

    Args:
        model: The model.
        path: The name of the image.
        prediction: Its prediction.
        top: The number of likeliest classes to list.
        content: The bytes of the image, if the answer holds them.
    """
    if not _is_finite(prediction):
        return refused(path, _overflow(path, model.path), prediction.rule, content)
    likeliest = prediction.top(model.classes, top)
    return Answer(path, prediction, None, prediction.rule, likeliest, content, model.metadata.image.range)


def refused(path: str, error: str, rule: RejectRule, content: bytes | None = None) -> Answer:
    """The answer for an image that cannot be used.

    Args:
        path: The name of the image.
        error: The problem.
        rule: The rule of the request.
        content: The bytes of the image, if the answer holds them.
    """
    return Answer(path, None, error, rule, (), content)


class Opened(NamedTuple):
    """A decoded image, or an error."""

    path: str
    pixels: Pixels | None
    error: str
    content: bytes | None
    """The bytes of the image, if the answer holds them."""
    notes: list[str]
    """Warnings about it."""
    part: str | None = None
    """As in `Answer`."""


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
    """Whether every number is finite: JSON has no NaN."""
    numbers = [value for value in prediction.as_dict().values() if isinstance(value, float)]
    return all(map(math.isfinite, numbers)) and bool(np.isfinite(prediction.probabilities).all())


def _overflow(path: str, model: str) -> str:
    return (
        f"{_name(path)} has no answer: {model} gives numbers that are not finite, so the model file is damaged or its "
        "arithmetic overflows. Copy the file again, or export it again with --precision fp32."
    )
