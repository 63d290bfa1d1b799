"""`uce-edge replay`."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli.messages import echo, say
from uce_edge.cli.shared_options import JsonOption


def replay(
    log: Annotated[
        Path, typer.Argument(help="The log of `predict --audit`. Its numbered files are read, too.", show_default=False)
    ],
    images: Annotated[Path, typer.Option(help="The folder of the images. They may have been renamed.")],
    model: Annotated[
        list[Path] | None,
        typer.Option(help="The model file. Can be repeated. Default: the file that the log names."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="The largest difference from a logged number that still counts as the same.")
    ] = 1e-4,
    ends_with: Annotated[
        str | None,
        typer.Option(help="The hash of the log's last line, which you kept elsewhere. Detects lines cut off the end."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compute every logged decision again, and list those that differ, are missing or were edited.

    Exits with 0 if no line was changed and every decision is the same again, and with 1 otherwise.

    Example: uce-edge replay decisions.jsonl --images incoming/
    """
    from uce_edge import models
    from uce_edge.audit import hash_chain
    from uce_edge.audit.model_files import ModelFiles
    from uce_edge.audit.replay import Outcome
    from uce_edge.audit.replay import replay as recompute
    from uce_edge.errors import ModelFileError

    for path in model or []:
        if not path.is_file():
            raise ModelFileError(f"There is no model file {path}. Check its spelling.", "model.missing", path=path)
    known = ModelFiles(model or models.files())
    counts: Counter[Outcome] = Counter()
    findings = []
    for finding in recompute(log, images, known, tolerance):
        counts[finding.outcome] += 1
        if as_json:
            findings.append(finding.as_dict())
        elif finding.outcome is not Outcome.SAME:
            line = f"{finding.file}:{finding.line}  {finding.path or '?'}  {finding.outcome}: {finding.why}"
            echo(line, fg=typer.colors.YELLOW if finding.outcome is Outcome.UNCHECKED else typer.colors.RED)
    last = next(
        (
            hash_chain.digest(text)
            for file in reversed(hash_chain.segments(log))
            if (text := hash_chain.last_line(file))
        ),
        None,
    )
    is_complete = ends_with is None or last == ends_with
    if as_json:
        summary = {outcome.value: counts[outcome] for outcome in Outcome}
        ending = {"last": last, "whole": None if ends_with is None else is_complete}
        typer.echo(json.dumps(summary | ending | {"lines": findings}, indent=2, allow_nan=False))
    else:
        echo(", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome) + ".")
        if not is_complete:
            echo(
                f"The log ends with {last}, not with the hash of --ends-with: lines are missing at its end.",
                fg=typer.colors.RED,
            )
        say(f"Last line: {last}")
    if not is_complete or counts.total() > counts[Outcome.SAME]:
        raise typer.Exit(1)
