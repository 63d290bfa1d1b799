"""`uce-edge demo`: the whole path on the embedded digits."""

import time
from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli.options import say


def demo(
    out: Annotated[Path, typer.Option(help="The folder for everything the demo makes.")] = Path("demo"),
) -> None:
    """Train, calibrate, export, predict and bench on the embedded digits, in about a minute.

    Example: uce-edge demo
    """
    from uce_edge.cli.bench import bench
    from uce_edge.cli.export import export
    from uce_edge.cli.predict import predict
    from uce_edge.cli.train import calibrate, need_torch, train

    need_torch("The demo")
    started = time.monotonic()
    run, model = out / "run", out / "digits.onnx"
    digit, other = out / "digit.png", out / "no-digit.png"
    commands = [
        f"uce-edge train --data digits --out {run}",
        f"uce-edge calibrate {run} --method temperature",
        f"uce-edge export {run} --out {model}",
        f"uce-edge predict --model {model} {digit} {other} --reject 0.3",
        f"uce-edge bench --model {model} --samples 1,5,10,25,50,100",
    ]
    steps = iter(enumerate(commands, 1))

    def announce() -> None:
        number, command = next(steps)
        typer.secho(f"\n[{number}/{len(commands)}] {command}", bold=True, err=True)

    announce()
    train(data="digits", out=run, overwrite=True)
    announce()
    calibrate(run)
    announce()
    export(run, model)
    label = _write_images(digit, other)
    announce()
    predict([str(digit), str(other)], model, reject="0.3")
    say(f"{digit} is a handwritten {label} that the network never saw; {other} is a photo of a flower.")
    announce()
    bench(model)
    say(f"\nDone in {time.monotonic() - started:.0f} s. The same by hand:")
    for command in commands:
        say(f"    {command}")


def _write_images(digit: Path, other: Path) -> str:
    """A test digit, and a picture that is none; returns the digit's true label."""
    from PIL import Image
    from sklearn.datasets import load_sample_image

    from uce_edge.datasets.splits import digits
    from uce_edge.files import replacing

    dataset = digits()
    test = dataset.splits["test"]
    for path, pixels in ((digit, test.images[0][..., 0]), (other, load_sample_image("flower.jpg"))):
        with replacing(path) as temporary:
            Image.fromarray(pixels).save(temporary)
    return dataset.class_names[int(test.labels[0])]
