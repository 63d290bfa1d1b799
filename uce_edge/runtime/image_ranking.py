"""Ranking of images by uncertainty, for active learning and pseudo-labels."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from uce_edge.errors import UsageError, expected
from uce_edge.rejection.rule import check_threshold

if TYPE_CHECKING:
    from uce_edge.runtime.answers import Answer
    from uce_edge.runtime.model import Model


class Score(StrEnum):
    """The score that images are ranked by."""

    MODEL_UNCERTAINTY = "model_uncertainty"
    """Mutual information, known as BALD: the disagreement of the passes, which more labels can reduce."""
    UNCERTAINTY = "uncertainty"
    """Normalised entropy, of the model and the image together."""
    CONFIDENCE = "confidence"
    """The probability of the label; the lowest is the most uncertain."""
    STANDARD_ERROR = "standard_error"
    """The standard error of the uncertainty, from the finite number of passes."""

    @property
    def needs_passes(self) -> bool:
        """Whether the score needs more than one pass."""
        return self in (Score.MODEL_UNCERTAINTY, Score.STANDARD_ERROR)

    def of(self, answer: "Answer") -> float:
        """The score of an answer, whose prediction has a number of that name."""
        return float(getattr(answer.prediction, self))


@dataclass(frozen=True)
class Ranking:
    """The first images of a ranking."""

    answers: "list[Answer]"
    usable: int
    """The number of images that were ranked."""
    failed: int
    """The number of images that could not be used."""
    score: Score


def check_options(top: int, max_uncertainty: float | None) -> None:
    """Raise a UsageError for options of `rank` that are out of range."""
    if top < 1:
        raise UsageError(expected("`top`", "at least 1", top, "For example: --top 100"))
    if max_uncertainty is not None:
        check_threshold(max_uncertainty, "max_uncertainty")


def rank(
    model: "Model",
    paths: Sequence[str | Path],
    by: Score | None = None,
    *,
    top: int = 100,
    least: bool = False,
    max_uncertainty: float | None = None,
    samples: int | None = None,
    seed: int = 0,
    done: "Callable[[Answer], None]" = lambda _: None,
) -> Ranking:
    """Rank images, the most uncertain first.

    Args:
        model: The model.
        paths: The image files.
        by: The score; None for the model uncertainty, or the uncertainty with `least`.
        top: The number of images to return.
        least: Put the most certain images first.
        max_uncertainty: Leave out images whose uncertainty is above this.
        samples: Passes; None for the number stored in the file.
        seed: Which passes.
        done: Called with every answer.

    Raises:
        UsageError: An option is out of range, or the score needs more than one pass.
    """
    check_options(top, max_uncertainty)
    score = by or (Score.UNCERTAINTY if least else Score.MODEL_UNCERTAINTY)
    if score.needs_passes and (model.metadata.samples if samples is None else samples) == 1:
        raise UsageError(
            f"--by {score} needs more than one pass. Use --samples 25, or --by uncertainty for a deterministic model.",
            "rank.one-pass",
            score=score,
        )
    failed = usable = 0

    def ranked() -> "Iterator[Answer]":
        nonlocal failed, usable
        for answer in model.answers(paths, samples, seed, max_uncertainty):
            done(answer)
            if not answer.ok:
                failed += 1
            elif answer.decision != "reject":  # by `max_uncertainty`
                usable += 1
                yield answer

    # A heap holds only the first `top` answers, however many images there are.
    choose = heapq.nlargest if least == (score is Score.CONFIDENCE) else heapq.nsmallest
    answers = choose(top, ranked(), key=score.of)
    return Ranking(answers, usable, failed, score)
