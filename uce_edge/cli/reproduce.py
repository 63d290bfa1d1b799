"""`uce-edge reproduce`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from uce_edge.cli.extras import need_torch
from uce_edge.cli.messages import quote, say, show_log
from uce_edge.cli.shared_options import DownloadOption, RootOption
from uce_edge.datasets.named import names
from uce_edge_train.choices import Architecture, Experiment, Scale, TrainDevice


def reproduce(
    experiment: Annotated[Experiment, typer.Argument(help="The experiment to repeat.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            help=f"A dataset, as for train: {', '.join(names())}, a folder, a manifest or an .npz file. Default: "
            "cifar10; with --scale memorise, cifar10 and cifar100 side by side."
        ),
    ] = None,
    scale: Annotated[
        Scale,
        typer.Option(
            help="memorise: a small network that memorises its images, as the paper's do, with five seeds; about an "
            "hour on 2 cores. laptop: a ResNet-8 on all images. paper: the paper's networks, days on a GPU."
        ),
    ] = Scale.MEMORISE,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of the results. Default: results/DATA-SCALE, or results/memorise for both."),
    ] = None,
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
    seed: Annotated[int, typer.Option(help="Seed of the first training.", min=0, max=2**32 - 1)] = 0,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Trainings per objective, whose spread enters every interval. Default: 5 for memorise, or 1.", min=1
        ),
    ] = None,
    device: Annotated[TrainDevice, typer.Option(help="Where to train.")] = TrainDevice.AUTO,
) -> None:
    """Repeat an experiment of the paper. Writes a CSV file, a figure and a Markdown section.

    For every seed two networks are trained, one of them with the confidence penalty. Finished work is kept: a second
    experiment uses the networks of the first, and an interrupted command continues where it stopped.

    Example: uce-edge reproduce all --root data

    Example: uce-edge reproduce table1 --data cifar10 --scale laptop

    Example: uce-edge reproduce dropout --data digits

    Example: uce-edge reproduce all --data cifar10 --ood svhn --download --root data
    """
    need_torch("Reproducing the paper")
    show_log("uce_edge_train")
    from uce_edge.datasets import splits
    from uce_edge_train.reproduce import side_by_side
    from uce_edge_train.reproduce.experiments import reproduce as run
    from uce_edge_train.reproduce.settings import changes

    both = data is None and scale is Scale.MEMORISE and experiment is Experiment.ALL
    names = ["cifar10", "cifar100"] if both else [data or "cifar10"]
    out = out or Path("results") / (f"{scale}" if both else f"{Path(names[0]).stem}-{scale}")
    for name in names[1:]:  # hours before it is needed
        splits.load(name, root, download=download)
    places = {name: out / name if both else out for name in names}
    for name, place in places.items():
        done = run(
            experiment, name, place, scale, root=root, download=download, ood_images=ood, arch=arch, epochs=epochs,
            samples=samples, seed=seed, seeds=seeds, device=device,
        )  # fmt: skip
    if both:
        words = ["uce-edge", "reproduce", experiment, "--scale", scale]
        words += changes(scale, arch, epochs, samples, ood, seed, seeds)
        side_by_side.write(out, shlex.join([*words, "--out", str(out)]), places)
    folders = " and ".join(quote(place) for place in places.values())
    say(f"Wrote {', '.join(f'{kind}.md' for kind in done)} to {folders}. Read {quote(out / 'README.md')}.")
