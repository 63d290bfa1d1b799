"""`uce-edge rank`."""

import heapq
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from uce_edge.cli import answer_text
from uce_edge.cli.answer_writer import Form, Printer
from uce_edge.cli.messages import fail, say
from uce_edge.cli.shared_options import (
    DeviceOption,
    JsonOption,
    MemoryOption,
    ModelOption,
    NoVerifyOption,
    SamplesOption,
    SeedOption,
    ThreadsOption,
    check_request,
)
from uce_edge.errors import UsageError, expected
from uce_edge.runtime.providers import Device

if TYPE_CHECKING:
    from uce_edge.runtime.answers import Answer

_COLUMNS = ("path", "label", "confidence", "uncertainty", "model_uncertainty", "standard_error")


class Score(StrEnum):
    """What images are ranked by."""

    MODEL_UNCERTAINTY = "model_uncertainty"
    """How far the passes disagree: what more labels can teach. Mutual information, known as BALD."""
    UNCERTAINTY = "uncertainty"
    """Normalised entropy, whether the model or the image itself is to blame."""
    CONFIDENCE = "confidence"
    """The probability of the label; the lowest is the most uncertain."""
    STANDARD_ERROR = "standard_error"
    """How far the uncertainty itself may be off, for want of passes."""

    @property
    def needs_passes(self) -> bool:
        """Whether a single pass says nothing about it."""
        return self in (Score.MODEL_UNCERTAINTY, Score.STANDARD_ERROR)

    def of(self, answer: "Answer") -> float:
        """The score of an image; its name is that of the prediction's number."""
        return float(getattr(answer.prediction, self))


def rank(
    images: Annotated[
        list[str],
        typer.Argument(metavar="FOLDER", help="Folders of images, or image files.", show_default=False),
    ],
    model: ModelOption = None,
    by: Annotated[
        Score | None,
        typer.Option(
            help="The score to sort by. Default: model_uncertainty, or uncertainty with --least.", show_default=False
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="The number of images to list.")] = 100,
    least: Annotated[
        bool, typer.Option("--least", help="List the most certain images first, for pseudo-labels.")
    ] = False,
    max_uncertainty: Annotated[
        float | None, typer.Option(help="Leave out images whose uncertainty is above this (0 to 1).")
    ] = None,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = Device.AUTO,
    threads: ThreadsOption = None,
    max_memory: MemoryOption = None,
    no_verify: NoVerifyOption = False,
    as_json: JsonOption = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print one JSON object per line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
) -> None:
    """List the images to label next: first those from which the model would learn most.

    With --least, the images that the model is most certain of come first. With --least and --max-uncertainty, the
    predicted labels can serve as pseudo-labels.

    Example: uce-edge rank unlabelled/ --model digits.onnx --top 50

    Example: uce-edge rank unlabelled/ --model digits.onnx --least --max-uncertainty 0.1 --csv > pseudo-labels.csv
    """
    # Wrong usage is told before anything slow happens.
    form = Form.of(as_json=as_json, jsonl=jsonl, as_csv=as_csv)
    if top < 1:
        raise UsageError(expected("`top`", "at least 1", top, "For example: --top 100"))
    if max_uncertainty is not None:
        from uce_edge.rejection.rule import check_threshold

        check_threshold(max_uncertainty, "max_uncertainty")
    model = check_request(model, samples, seed)
    score = by or (Score.UNCERTAINTY if least else Score.MODEL_UNCERTAINTY)
    from uce_edge._util.progress import progress
    from uce_edge.images.loader import collect
    from uce_edge.runtime.model import Model

    paths = collect(images)
    loaded = Model(model, device, threads=threads, max_memory=max_memory, spin=False, verify=not no_verify)
    if score.needs_passes and (loaded.metadata.samples if samples is None else samples) == 1:
        raise UsageError(
            f"--by {score} needs more than one pass. Use --samples 25, or --by uncertainty for a deterministic model."
        )
    failed = left = 0

    def usable() -> Iterator["Answer"]:
        nonlocal failed, left
        # The rule of --reject: what it would reject is left out.
        for answer in loaded.answers(paths, samples, seed, max_uncertainty):
            advance(1)
            if not answer.ok:
                failed += 1
                fail(str(answer.error))
            elif answer.decision != "reject":
                left += 1
                yield answer

    # Only the best so far are kept, however many images there are.
    choose = heapq.nlargest if least == (score is Score.CONFIDENCE) else heapq.nsmallest
    with progress("ranking", len(paths)) as advance:
        ranked = choose(top, usable(), key=score.of)
    if form is Form.TEXT:
        answer_text.disagreements(ranked)
    else:
        Printer(form, columns=_COLUMNS).finish(ranked)
    order = "most certain" if least else "most uncertain"
    limit = "" if max_uncertainty is None else f" with an uncertainty of at most {max_uncertainty:g}"
    say(f"{len(ranked)} of {left} images{limit}, {order} first by {score}.")
    if failed:
        fail(f"{failed} of {len(paths)} images could not be used.")
        raise typer.Exit(1)
