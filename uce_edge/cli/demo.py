"""`uce-edge demo`: all steps on the embedded digits."""

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli.extras import need_torch
from uce_edge.cli.messages import echo, quote, say


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The folder for everything the demo makes.")] = Path("demo"),
) -> None:
    """Train, calibrate, export, predict and bench on the embedded digits, in about a minute.

    Example: uce-edge demo
    """
    need_torch("The demo")
    started = time.monotonic()
    run, model = quote(out / "run"), quote(out / "digits.onnx")
    digit, other = out / "digit.png", out / "no-digit.png"
    label = _write_images(digit, other)
    commands = [
        f"uce-edge train --data digits --out {run} --overwrite",
        f"uce-edge calibrate {run} --method temperature",
        f"uce-edge export {run} --out {model}",
        f"uce-edge predict --model {model} {quote(digit)} {quote(other)} --reject 0.3",
        f"uce-edge bench --model {model} --samples 1,5,10,25,50,100",
    ]
    for number, command in enumerate(commands, 1):
        echo(err=True)
        echo(f"[{number}/{len(commands)}] {command}", bold=True, err=True)
        _run(context, command)
        if command.startswith("uce-edge predict"):
            say(f"{digit} is a handwritten {label} from the test images; {other} is a photo of a flower.")
    say("", f"Done in {time.monotonic() - started:.0f} s. The commands were:")
    for command in commands:
        say(f"    {command}")


def _run(context: typer.Context, command: str) -> None:
    """Run a command exactly as it is printed."""
    program = context.find_root()
    code = program.command.main(shlex.split(command)[1:], program.info_name, standalone_mode=False)
    if code:
        raise typer.Exit(code)


def _write_images(digit: Path, other: Path) -> str:
    """Write a test digit and a photo; returns the true label of the digit."""
    from PIL import Image
    from sklearn.datasets import load_sample_image

    from uce_edge._util.atomic_files import replacing
    from uce_edge.datasets import load

    dataset = load("digits")
    test = dataset.splits["test"]
    for path, pixels in ((digit, test.images[0][..., 0]), (other, load_sample_image("flower.jpg"))):
        with replacing(path) as temporary:
            Image.fromarray(pixels).save(temporary)
    return dataset.class_names[int(test.labels[0])]
