"""`uce-edge reproduce`."""

from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli.extras import need_torch
from uce_edge.cli.messages import quote, say, show_log
from uce_edge.cli.shared_options import DataOption, DownloadOption, RootOption
from uce_edge_train.choices import Architecture, Experiment, Scale, TrainDevice


def reproduce(
    experiment: Annotated[Experiment, typer.Argument(help="The experiment to repeat.", show_default=False)],
    data: DataOption = "cifar10",
    scale: Annotated[
        Scale,
        typer.Option(
            help="laptop: a small network, about an hour on 2 cores. paper: the paper's network, about a day on a GPU."
        ),
    ] = (Scale.LAPTOP),
    out: Annotated[Path | None, typer.Option(help="The folder of the results. Default: results/DATA-SCALE.")] = None,
    ood: Annotated[
        str | None, typer.Option(help="Out-of-distribution images: a dataset's name, a folder or an .npz file.")
    ] = None,
    root: RootOption = None,
    download: DownloadOption = False,
    arch: Annotated[
        str | None,
        typer.Option(help=f"Use this network instead of the one of --scale: {', '.join(Architecture)}, or your own."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Train for this many epochs instead of those of --scale.", min=1)
    ] = None,
    samples: Annotated[int, typer.Option(help="Monte Carlo passes.", min=2)] = 25,
    seed: Annotated[int, typer.Option(help="Seed of the training.", min=0, max=2**32 - 1)] = 0,
    device: Annotated[TrainDevice, typer.Option(help="Where to train.")] = TrainDevice.AUTO,
) -> None:
    """Repeat an experiment of the paper. Writes a CSV file, a figure and a Markdown section.

    Two networks are trained, one of them with the confidence penalty. Finished work is kept: a second experiment uses
    the networks of the first, and an interrupted command continues where it stopped.

    Example: uce-edge reproduce table1 --data cifar10 --scale laptop

    Example: uce-edge reproduce dropout --data digits

    Example: uce-edge reproduce all --data cifar10 --ood svhn --download --root data
    """
    need_torch("Reproducing the paper")
    show_log("uce_edge_train")
    from uce_edge_train.reproduce.experiments import reproduce as run

    out = out or Path("results") / f"{Path(data).stem}-{scale}"
    done = run(
        experiment, data, out, scale, root=root, download=download, ood_images=ood, arch=arch, epochs=epochs,
        samples=samples, seed=seed, device=device,
    )  # fmt: skip
    say(f"Wrote {', '.join(f'{kind}.md' for kind in done)} to {quote(out)}. Read {quote(out / 'README.md')}.")
