"""`uce-edge info`."""

from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli.messages import echo, quote, say
from uce_edge.cli.shared_options import InferenceOption, JsonOption, ModelArgument, NoVerifyOption, choose_model
from uce_edge.errors import UsageError


def info(
    model: ModelArgument = None,
    inference: InferenceOption = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also show thresholds, costs, all metrics, the model card, hashes and noisy layers."
        ),
    ] = False,
    reject: Annotated[
        list[float] | None,
        typer.Option(
            help="Show how many errors this threshold on the uncertainty accepts (0 to 1, two decimals). Can be "
            "repeated. With --all: 0.1, 0.3 and 0.5."
        ),
    ] = None,
    monitor: Annotated[
        Path | None, typer.Option(help="The state file of a monitor. Shows when the promised error was last checked.")
    ] = None,
    no_verify: NoVerifyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what is stored in a model file: a summary, or everything with --all.

    Example: uce-edge info digits.onnx

    Example: uce-edge info digits.onnx --all

    Example: uce-edge info digits.onnx --reject 0.3
    """
    path = choose_model(model, inference)
    from uce_edge.output.model_summary import layer_lines, summarize
    from uce_edge.runtime.model import Model

    if as_json and reject:
        raise UsageError(
            "--reject does not work with --json, which has the counts of all thresholds under held_out. Leave --reject "
            "out.",
            "usage.json-reject",
        )
    loaded = Model(path, "cpu", verify=not no_verify)
    if as_json:
        typer.echo(loaded.metadata.to_json(indent=2))
        return
    rows = summarize(loaded, everything=everything, thresholds=reject or (), monitor=monitor)
    width = max(map(len, rows)) + 2
    for name, lines in rows.items():
        for number, line in enumerate(lines):
            echo(f"{'' if number else name:<{width}}{line}")
    for line in layer_lines(loaded.metadata) if everything else ():
        echo(line)
    if not everything:
        named = "" if model is None and inference is None else f" {quote(model or path)}"
        say(f"More: uce-edge info{named} --all")
