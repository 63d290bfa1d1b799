"""`uce-edge dossier`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli.messages import quote, say, show_log
from uce_edge.cli.shared_options import DataOption, ModelArgument, OodOption, RootOption, TestGroupOption, choose_model


def dossier(
    data: DataOption,
    model: ModelArgument = None,
    out: Annotated[Path, typer.Option(help="The folder to write. An earlier dossier there is replaced.")] = Path(
        "dossier"
    ),
    by: Annotated[
        list[str] | None,
        typer.Option(help="A column of the manifest, for results by subgroup. Can be repeated.", metavar="COLUMN"),
    ] = None,
    ood: OodOption = None,
    corrupt: Annotated[bool, typer.Option(help="Also measure on damaged images.")] = True,
    group: TestGroupOption = None,
    intended_use: Annotated[
        str | None, typer.Option(help="What the model is for, in a sentence. Only the maker knows it.")
    ] = None,
    root: RootOption = None,
) -> None:
    """Write the evidence about a model file into one folder, for a device file or a review.

    The folder has a page with model card, data card, metrics per class and subgroup, promises and their tests, known
    limits, a change-control plan and instructions for the log; the same for programs; the report of evaluate; and the
    software bill of materials. The page shows where it answers questions of regulators. It is no legal advice.

    Example: uce-edge dossier xray.onnx --data test.csv --by hospital --ood far --out dossier/
    """
    show_log()
    model = choose_model(model, None)
    from uce_edge.dossier import pages
    from uce_edge.dossier.contents import collect
    from uce_edge.evaluation.evaluation_data import arguments

    pages.check_place(out)
    found = collect(
        model, data, by=by or (), ood=ood or (), corrupt=corrupt, group=group, intended_use=intended_use, root=root
    )
    words = ["uce-edge", "dossier", model.name, *arguments(data, ood=ood or (), root=root, group=group)]
    words += [word for column in by or () for word in ("--by", column)]
    words += [] if corrupt else ["--no-corrupt"]
    words += [] if intended_use is None else ["--intended-use", intended_use]
    pages.write(found, out, shlex.join([*words, "--out", out.name or "dossier"]))
    say(f"Wrote {', '.join(pages.FILES)} to {quote(out)}. Open {quote(out / pages.INDEX)}.")
