"""`uce-edge doctor`."""

from typing import TYPE_CHECKING

import typer

from uce_edge import __version__
from uce_edge.cli.messages import echo
from uce_edge.cli.shared_options import JsonOption

if TYPE_CHECKING:
    from uce_edge.runtime.diagnosis import Diagnosis


def doctor(as_json: JsonOption = False) -> None:
    """Show what is installed and where a model really runs, and how to repair what does not work.

    Also shows whether the bundled model is unchanged, and whether ONNX Runtime may send telemetry to its maker.
    uce-edge switches telemetry off, unless you set ORT_DISABLE_TELEMETRY=0.

    Exits with 1 when something is wrong.

    Example: uce-edge doctor
    """
    from uce_edge.runtime.diagnosis import diagnose

    diagnosis = diagnose()
    if as_json:
        typer.echo(diagnosis.to_json())
    else:
        _print(diagnosis)
    if diagnosis.problems:
        raise typer.Exit(1)


def _print(diagnosis: "Diagnosis") -> None:
    obtained = ", ".join(f"{device}: {provider or 'no'}" for device, provider in diagnosis.obtained.items())
    rows = {
        "uce-edge": __version__,
        "Python": diagnosis.python,
        "machine": diagnosis.machine,
        "packages": ", ".join(f"{name} {version}" for name, version in diagnosis.packages.items()),
        "listed": ", ".join(diagnosis.listed) or "none",
        "obtained": obtained or "none",
        "telemetry": diagnosis.telemetry,
        "model": diagnosis.model,
    }
    for name, value in rows.items():
        echo(f"{name:<10}{value}")
    for problem in diagnosis.problems:
        echo(f"problem   {problem}", fg=typer.colors.RED)
    if not diagnosis.problems:
        echo("All is well.", fg=typer.colors.GREEN)
