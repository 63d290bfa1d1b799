"""The command line. Commands import heavy modules when they run, to start fast."""

import io
import os
import sys
import warnings
from typing import Annotated

import typer

from uce_edge import __version__
from uce_edge.cli import (
    backbones,
    bench,
    build,
    calibrate,
    compare,
    demo,
    doctor,
    dossier,
    evaluate,
    export,
    info,
    models,
    monitor,
    predict,
    rank,
    replay,
    reproduce,
    score,
    serve,
    sign,
    train,
    verify,
    web,
)
from uce_edge.cli.command import Command, Stopped
from uce_edge.cli.messages import Talk, echo, format_warning, set_talk
from uce_edge.errors import UceEdgeError, naming_options
from uce_edge.runtime import providers

__all__ = ["app", "main"]

app = typer.Typer(
    name="uce-edge",
    help="Calibrated uncertainty for the edge: train, calibrate, export and run Bayesian image classifiers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="predict", cls=Command)(predict.predict)
app.command(name="rank", cls=Command)(rank.rank)
app.command(name="build", cls=Command)(build.build)
app.command(name="train", cls=Command)(train.train)
app.command(name="backbones", cls=Command)(backbones.backbones)
app.command(name="calibrate", cls=Command)(calibrate.calibrate)
app.command(name="export", cls=Command)(export.export)
app.command(name="evaluate", cls=Command)(evaluate.evaluate)
app.command(name="compare", cls=Command)(compare.compare)
app.command(name="bench", cls=bench.BenchCommand)(bench.bench)
app.command(name="info", cls=Command)(info.info)
app.command(name="models", cls=Command)(models.models)
app.command(name="monitor", cls=Command)(monitor.monitor)
app.command(name="replay", cls=Command)(replay.replay)
app.command(name="verify", cls=Command)(verify.verify)
app.command(name="sign", cls=Command)(sign.sign)
app.command(name="dossier", cls=Command)(dossier.dossier)
app.command(name="reproduce", cls=Command)(reproduce.reproduce)
app.command(name="demo", cls=Command)(demo.demo)
app.command(name="doctor", cls=Command)(doctor.doctor)
app.command(name="score", cls=Command)(score.score)
app.command(name="serve", cls=Command)(serve.serve)
app.command(name="web", cls=Command)(web.web)


def _version(requested: bool) -> None:
    if requested:
        echo(f"uce-edge {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    import logging

    # Without a handler, Python prints the log of Pillow on stderr.
    logging.getLogger("PIL").addHandler(logging.NullHandler())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; known errors become a message and an exit code."""
    warnings.formatwarning = format_warning
    set_talk(Talk.NORMAL)
    providers.silence_log()
    # File names may not be valid text; replace such bytes, as stderr does.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    try:
        with naming_options():
            try:
                app(arguments)
            finally:
                sys.stdout.flush()  # while errors can still be reported
    except Stopped as error:
        if sys.stderr.isatty():
            echo(err=True)  # below the ^C
        echo(str(error), err=True)
        sys.exit(error.exit_code)
    except UceEdgeError as error:
        echo(f"error: {error}", err=True, fg=typer.colors.RED)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is not None:  # an error of a file, which is a bug: it should have a message
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # drop the rest of the output
        if not isinstance(error, BrokenPipeError):
            echo(
                f"error: Cannot write the output: {error.strerror}. Make room, or redirect it.",
                err=True,
                fg=typer.colors.RED,
            )
        sys.exit(1)
