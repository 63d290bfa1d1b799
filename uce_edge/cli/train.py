"""`uce-edge train`."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uce_edge.cli import train_settings
from uce_edge.cli.dataset_summary import tell_dataset
from uce_edge.cli.extras import need_torch
from uce_edge.cli.messages import quote, say, show_log
from uce_edge.cli.shared_options import (
    DataOption,
    DownloadOption,
    GroupOption,
    RangeOption,
    ResizeOption,
    RootOption,
    SizeOption,
    noisy_option,
    parse_numbers,
    parse_range,
    parse_resize,
    parse_size,
)
from uce_edge.contract import Sigma
from uce_edge.errors import UsageError
from uce_edge_train.choices import (
    Architecture,
    Arithmetic,
    Dropout,
    Mixing,
    Optimiser,
    Rates,
    Schedule,
    Stem,
    TrainDevice,
    Unfreeze,
)

if TYPE_CHECKING:
    from uce_edge_train.runs import Run

_MEMBER = "member-"
_DROPOUT, _AUGMENTATION, _OPTIMISATION, _MACHINE = "Uncertainty", "Augmentation", "Optimisation", "Network and machine"
_START = "Start from trained weights"


def train(
    ctx: typer.Context,
    data: DataOption = "digits",
    group: GroupOption = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the run. Default: runs/NAME, after --data.")] = None,
    arch: Annotated[
        str, typer.Option(help=f"The network: {', '.join(Architecture)}, or your own package.module:function.")
    ] = Architecture.RESNET8.value,
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = 20,
    batch_size: Annotated[int, typer.Option(help="Images per step, summed over all processes.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="The highest learning rate of the schedule.")] = 0.01,
    seed: Annotated[
        int,
        typer.Option(help="Seed of the weights, of the order of the images and of the noise.", min=0, max=2**32 - 1),
    ] = 0,
    members: Annotated[
        int, typer.Option(help="Train an ensemble of this many networks, with the seeds SEED, SEED + 1, ...", min=1)
    ] = 1,
    share_trunk: Annotated[
        bool,
        typer.Option(
            "--share-trunk",
            help="Train the tails of all --members on stored outputs of one frozen --backbone. The exported file runs "
            "what they share once.",
        ),
    ] = False,
    root: RootOption = None,
    download: DownloadOption = False,
    size: SizeOption = None,
    range_: RangeOption = None,
    resize: ResizeOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the checkpoint in --out, if there is one.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="Start from a pretrained network: a name of `uce-edge backbones`, timm:NAME or hf:FOLDER. Its image "
            "size, pixel scaling and recipe become the defaults of the other options.",
            rich_help_panel=_START,
        ),
    ] = None,
    unfreeze: Annotated[
        Unfreeze | None,
        typer.Option(
            help="Which layers of --backbone are trained. none: the last layer. tail: the last stage, on stored "
            "outputs of the layers before it (default). all: the tail, then all layers.",
            rich_help_panel=_START,
        ),
    ] = None,
    seam: Annotated[
        str | None,
        typer.Option(
            help="The first layer of the tail of --unfreeze, by name. A later one makes tails over a shared trunk "
            "cheaper. Default: that of --backbone.",
            rich_help_panel=_START,
        ),
    ] = None,
    views: Annotated[
        int,
        typer.Option(
            help="Stored views of a training image: itself, and augmented ones. Default with --backbone: 4.",
            rich_help_panel=_START,
            min=1,
        ),
    ] = 1,
    mean: Annotated[
        str | None,
        typer.Option(
            help="Subtract this from pixels between 0 and 1: 0.5 or r,g,b. Default: that of --backbone, or of the "
            "training images.",
            rich_help_panel=_START,
        ),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(
            help="After --mean, divide by this: 0.25 or r,g,b. Default: as for --mean.", rich_help_panel=_START
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            help="Start from these weights: a safetensors or PyTorch file with the parameter names of torchvision, "
            "timm or this project, or the folder of a run.",
            rich_help_panel=_START,
        ),
    ] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option(
            help="Do not train these layers: all-but-head, or a layer name, which may have wildcards. Can be repeated.",
            rich_help_panel=_START,
        ),
    ] = None,
    layer_decay: Annotated[
        float,
        typer.Option(
            help="Multiply the learning rate by this factor (up to 1) for every stage below the head.",
            rich_help_panel=_START,
        ),
    ] = 1.0,
    dropout: Annotated[
        Dropout,
        typer.Option(
            help="The noise that training adds to the network. none: only dropout that the network already has.",
            rich_help_panel=_DROPOUT,
        ),
    ] = Dropout.GAUSSIAN,
    p: Annotated[
        float,
        typer.Option(
            help="The dropout rate (0 to 1). Default with --backbone or --init: fitted.", rich_help_panel=_DROPOUT
        ),
    ] = 0.2,
    rates: Annotated[
        Rates,
        typer.Option(
            help="fixed: keep --p. fitted: train without noise, then take the largest rate that does no harm to "
            "the selection images. model: learn one rate for the network. layer: learn one rate per layer.",
            rich_help_panel=_DROPOUT,
        ),
    ] = Rates.FIXED,
    noisy: Annotated[list[str] | None, noisy_option(_DROPOUT)] = None,
    sigma: Annotated[
        Sigma,
        typer.Option(
            help="How the standard deviation of the Gaussian noise is computed. exact: as in the paper. factored: an "
            "approximation that halves the time of training and inference. channel: multiply every input channel of "
            "a convolution by one number.",
            rich_help_panel=_DROPOUT,
        ),
    ] = Sigma.EXACT,
    penalty: Annotated[
        float,
        typer.Option(help="Weight (beta) of the confidence penalty. The paper uses 0.1.", rich_help_panel=_DROPOUT),
    ] = 0.0,
    logit_norm: Annotated[
        float | None,
        typer.Option(
            help="Train with LogitNorm at this temperature; its paper uses 0.04. Default: off.",
            rich_help_panel=_DROPOUT,
        ),
    ] = None,
    shift: Annotated[
        int | None,
        typer.Option(
            help="Shift images by up to this many pixels. Default: an eighth of the width.",
            rich_help_panel=_AUGMENTATION,
        ),
    ] = None,
    flip: Annotated[
        bool, typer.Option("--flip", help="Mirror half of the images, left to right.", rich_help_panel=_AUGMENTATION)
    ] = False,
    rotate: Annotated[
        float,
        typer.Option(
            help="Rotate images by up to this many degrees (0 to 180), in either direction.",
            rich_help_panel=_AUGMENTATION,
        ),
    ] = 0.0,
    colour: Annotated[
        float,
        typer.Option(
            help="Strength (0 to 1) of random changes of brightness, contrast, saturation and hue. Usual: 0.4.",
            rich_help_panel=_AUGMENTATION,
        ),
    ] = 0.0,
    mixup: Annotated[
        float,
        typer.Option(
            help="Blend pairs of images and their labels (mixup) with this alpha. Usual: 0.2. 0: off.",
            rich_help_panel=_AUGMENTATION,
        ),
    ] = 0.0,
    erase: Annotated[
        float,
        typer.Option(
            help="Probability (0 to 1) that a rectangle of an image is erased.", rich_help_panel=_AUGMENTATION
        ),
    ] = 0.0,
    augment: Annotated[
        Mixing,
        typer.Option(
            help="augmix: mix images with changed copies of themselves. pixmix: also with fractals. trivial: apply one "
            "random change to each image.",
            rich_help_panel=_AUGMENTATION,
        ),
    ] = Mixing.NONE,
    noise: Annotated[
        float,
        typer.Option(
            help="Probability (0 to 1) that an image gets noise of random strength.", rich_help_panel=_AUGMENTATION
        ),
    ] = 0.0,
    blur: Annotated[
        float,
        typer.Option(
            help="Probability (0 to 1) that an image is blurred by a random strength.", rich_help_panel=_AUGMENTATION
        ),
    ] = 0.0,
    optimiser: Annotated[
        Optimiser, typer.Option(help="The optimiser.", rich_help_panel=_OPTIMISATION)
    ] = Optimiser.ADAMW,
    schedule: Annotated[
        Schedule, typer.Option(help="How the learning rate changes during training.", rich_help_panel=_OPTIMISATION)
    ] = Schedule.ONE_CYCLE,
    weight_decay: Annotated[
        float,
        typer.Option(
            help="Strength of the weight decay, which pulls the weights towards 0.", rich_help_panel=_OPTIMISATION
        ),
    ] = 0.01,
    clip: Annotated[
        float | None,
        typer.Option(help="Clip gradients to this norm. Default: no clipping.", rich_help_panel=_OPTIMISATION),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Stop when the NLL of the selection images, a sixth of the training images, has not improved for this "
            "many epochs, and keep the best weights.",
            rich_help_panel=_OPTIMISATION,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Choose the epochs so that training takes about this long: 90s, 10m or 2h. With --backbone, also the "
            "views, and whether all layers are trained. Options that are given stay.",
            rich_help_panel=_OPTIMISATION,
        ),
    ] = None,
    stem: Annotated[
        Stem,
        typer.Option(
            help="The first layer. cifar: for small images. imagenet: for large images.", rich_help_panel=_MACHINE
        ),
    ] = Stem.CIFAR,
    device: Annotated[TrainDevice, typer.Option(help="Where to train.", rich_help_panel=_MACHINE)] = TrainDevice.AUTO,
    precision: Annotated[
        Arithmetic,
        typer.Option(help="Number format of the forward pass. float16 needs CUDA.", rich_help_panel=_MACHINE),
    ] = Arithmetic.FLOAT32,
    channels_last: Annotated[
        bool,
        typer.Option(
            help="Store images with the channels last, which is faster on most machines.", rich_help_panel=_MACHINE
        ),
    ] = True,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write log files for TensorBoard.", rich_help_panel=_MACHINE)
    ] = False,
) -> None:
    """Train a classifier with dropout.

    Every epoch is written to log.csv and to a checkpoint. If training is interrupted, the same command with --resume
    continues it and ends with the same weights. The members of an ensemble are trained one after another, in
    OUT/member-0, OUT/member-1, ... Under torchrun, several processes or machines share every batch.

    Example: uce-edge train --data digits --out runs/digits

    Example: uce-edge train --data photos/ --backbone efficientnet-lite0 --budget 10m --out runs/photos

    Example: uce-edge train --data photos/ --size 64x64 --arch resnet20 --flip --epochs 30 --out runs/photos

    Example: uce-edge train --data photos/ --size 224x224 --resize crop:256:bicubic --arch resnet18 --out runs/photos

    Example: uce-edge train --data xrays/ --init runs/photos --freeze all-but-head --out runs/xrays

    Example: uce-edge train --data scans.csv --group patient --size 64x64 --out runs/scans

    Example: uce-edge train --data digits --members 3 --out runs/three

    Example: uce-edge train --data photos/ --backbone efficientnet-lite0 --members 5 --share-trunk --out runs/photos

    Example: torchrun --nproc-per-node 2 -m uce_edge train --data cifar10 --arch resnet34 --out runs/cifar10
    """
    out = out or Path("runs") / Path(data).resolve().stem
    following = _following(out, members, dropout)
    folders = _folders(out, members)
    finished = [_is_finished(folder, resume, overwrite) for folder in folders]
    if all(finished):
        say(f"{out} is finished. {following}")
        return
    train_settings.check_network(arch, backbone)
    need_torch("Training")
    show_log("uce_edge_train")
    from uce_edge._util.atomic_files import writable_folder
    from uce_edge.datasets import splits as datasets
    from uce_edge.images.resize import STRETCH
    from uce_edge_train.loop import training
    from uce_edge_train.networks import architectures, backbones, pretrained

    settings: dict[str, Any] = dict(
        init=None if init is None else pretrained.start_from(init), freeze=tuple(freeze or ()), layer_decay=layer_decay,
        arch=arch, stem=stem, p=p, dropout=dropout, noisy=tuple(noisy or ()), sigma=sigma, rates=rates, epochs=epochs,
        batch_size=batch_size, optimiser=optimiser,
        schedule=schedule, learning_rate=learning_rate, weight_decay=weight_decay, penalty=penalty,
        rotate=rotate, colour=colour, mixup=mixup,
        logit_norm=logit_norm, shift=shift, flip=flip, erase=erase, augment=augment, noise=noise, blur=blur, clip=clip,
        patience=patience, precision=precision, channels_last=channels_last, seed=seed, unfreeze=unfreeze, seam=seam,
        views=views,
        mean=None if mean is None else tuple(parse_numbers("mean", mean)),
        std=None if std is None else tuple(parse_numbers("std", std)),
    )  # fmt: skip
    given = train_settings.given(ctx)
    settings |= train_settings.of_start(init, given, dropout)
    if backbone is not None:
        chosen = backbones.named(backbone)
        settings |= train_settings.of_backbone(chosen.recipe(), given, dropout)
        size = size or f"{chosen.image.height}x{chosen.image.width}"
        resize = resize or str(chosen.image.resize)
    if share_trunk:
        settings["unfreeze"] = train_settings.of_shared_trunk(settings, members)
        given.add("unfreeze")  # a plan must not train the trunk
    recipe = train_settings.checked(settings, given)
    seconds = train_settings.seconds_of(budget)
    leads = os.environ.get("RANK", "0") == "0"
    if architectures.check(arch, Path.cwd()):  # before the images are read
        following = following.replace("uce-edge", "PYTHONPATH=. uce-edge", 1)
    if leads:
        show_log()
    how = parse_resize(resize) or STRETCH
    dataset = datasets.load(data, root, parse_size(size), download, group, parse_range(range_), how)
    recipe.build(len(dataset.class_names), dataset.image_shape[2])  # raises errors before anything is printed
    if leads:
        tell_dataset(dataset)
    if seconds is not None:
        recipe = train_settings.planned(
            recipe, dataset, seconds, given, out, members, shared=share_trunk, resume=resume
        )
    for folder in folders if members > 1 else ():  # all at once, because an incomplete ensemble is not finished
        writable_folder(folder)
    for number, folder in enumerate(folders):
        if finished[number]:
            continue
        own = replace(recipe, seed=seed + number)
        run = training.train(
            dataset, folder, own, device=device, resume=resume, tensorboard=tensorboard,
            features=out if share_trunk else None,
        )  # fmt: skip
        if leads:
            say(_result(run, "" if members == 1 else f"Member {number + 1} of {members}: "))
    if leads:
        say(following)


def _result(run: "Run", which: str) -> str:
    """What a finished training reached."""
    assert run.metrics is not None  # every training measures them
    watched, scores = "selection" if run.recipe.selects else "calibration", run.metrics
    if run.recipe.repeats:
        return (
            f"{which}Trained {run.recipe.arch} on all training images of {run.data}, for {scores.epochs} epoch"
            f"{'s' * (scores.epochs > 1)}. Trained without the selection images, its accuracy on these was "
            f"{scores.held_out_accuracy:.1%} without noise."
        )
    return (
        f"{which}Trained {run.recipe.arch} on {run.data}: NLL {scores.train_nll:.3f} in epoch {scores.epochs}, "
        f"accuracy {scores.held_out_accuracy:.1%} on the {watched} images without noise."
    )


def _following(out: Path, members: int, dropout: Dropout) -> str:
    """The command to try next."""
    if members == 1:
        return f"Next: uce-edge calibrate {quote(out)} --method temperature"
    return f"Next: uce-edge export {quote(out)}{' --inference deterministic' if dropout is Dropout.NONE else ''}"


def _folders(out: Path, members: int) -> list[Path]:
    """The folders of the networks; raises an error if one has other contents."""
    others = sorted(path.name for path in out.glob(f"{_MEMBER}*") if path.is_dir())
    if members == 1:
        if others:
            message = f"{out} holds an ensemble ({', '.join(others)}). Choose another --out, or add --members."
            raise UsageError(message, "run.ensemble", path=out)
        return [out]
    if (out / "run.json").exists() or (out / "checkpoint.safetensors").exists():
        message = f"{out} holds a single run, but --members trains an ensemble. Choose another --out."
        raise UsageError(message, "run.not-ensemble", path=out)
    folders = [out / f"{_MEMBER}{number}" for number in range(members)]
    beyond = sorted(set(others) - {folder.name for folder in folders})
    if beyond:
        raise UsageError(
            f"{out} holds more members than {members} ({', '.join(beyond)}). Choose another --out, or a larger "
            "--members.",
            "run.more-members",
            path=out,
        )
    return folders


def _is_finished(folder: Path, resume: bool, overwrite: bool) -> bool:
    """Whether a network is trained and kept; raises an error without --resume or --overwrite."""
    unfinished = (folder / "checkpoint.safetensors").exists()
    if (folder / "run.json").exists() and not overwrite and not (resume and unfinished):
        if resume:
            return True
        message = f"{folder} holds a trained run already. Choose another --out, or replace it with --overwrite."
        raise UsageError(message, "run.exists", path=folder)
    if unfinished and not (resume or overwrite):
        raise UsageError(
            f"{folder} holds an unfinished training. Continue it with --resume, or start again with --overwrite.",
            "run.unfinished",
            path=folder,
        )
    return False
