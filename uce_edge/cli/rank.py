"""`uce-edge rank`."""

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
from uce_edge.runtime import image_ranking
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.image_ranking import Score

if TYPE_CHECKING:
    from uce_edge.runtime.answers import Answer

_COLUMNS = ("path", "label", "confidence", "uncertainty", "model_uncertainty", "standard_error")


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
    form = Form.of(as_json=as_json, jsonl=jsonl, as_csv=as_csv)
    image_ranking.check_options(top, max_uncertainty)
    model = check_request(model, samples, seed)
    from uce_edge._util.progress import progress
    from uce_edge.images.loader import collect
    from uce_edge.runtime.model import Model

    paths = collect(images)
    loaded = Model(model, device, threads=threads, max_memory=max_memory, spin=False, verify=not no_verify)
    with progress("ranking", len(paths)) as advance:

        def done(answer: "Answer") -> None:
            advance(1)
            if not answer.ok:
                fail(str(answer.error))

        ranking = image_ranking.rank(
            loaded, paths, by, top=top, least=least,
            max_uncertainty=max_uncertainty, samples=samples, seed=seed, done=done,
        )  # fmt: skip
    if form is Form.TEXT:
        answer_text.disagreements(ranking.answers)
    else:
        Printer(form, columns=_COLUMNS).finish(ranking.answers)
    order = "most certain" if least else "most uncertain"
    limit = "" if max_uncertainty is None else f" with an uncertainty of at most {max_uncertainty:g}"
    say(f"{len(ranking.answers)} of {ranking.usable} images{limit}, {order} first by {ranking.score}.")
    if ranking.failed:
        fail(f"{ranking.failed} of {len(paths)} images could not be used.")
        raise typer.Exit(1)
