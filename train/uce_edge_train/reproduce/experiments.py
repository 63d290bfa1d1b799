"""Running experiments: the data, the networks, then one table or figure after the other."""

from collections.abc import Callable
from pathlib import Path

from uce_edge._util.atomic_files import writable_folder
from uce_edge.datasets import labelled, splits
from uce_edge.errors import UsageError
from uce_edge.metadata import ImageSpec
from uce_edge_train.choices import Experiment, Scale, TrainDevice
from uce_edge_train.reproduce import (
    dropout_figure,
    ood_detection,
    rejection_curve,
    reliability_diagrams,
    scorecard,
    table1,
)
from uce_edge_train.reproduce.settings import setting
from uce_edge_train.reproduce.trained_networks import Subject

FOREIGN = 5000  # images of another distribution that are shown; more change no digit that is printed

EXPERIMENTS: dict[Experiment, Callable[[Subject], None]] = {
    Experiment.TABLE1: table1.run,
    Experiment.RELIABILITY: reliability_diagrams.run,
    Experiment.REJECTION: rejection_curve.run,
    Experiment.OOD: ood_detection.run,
    Experiment.DROPOUT: dropout_figure.run,
    Experiment.SCORECARD: scorecard.run,
}


def reproduce(
    experiment: Experiment,
    name: str,
    out: str | Path,
    scale: Scale = Scale.LAPTOP,
    *,
    root: str | Path | None = None,
    download: bool = False,
    ood_images: str | None = None,
    arch: str | None = None,
    epochs: int | None = None,
    samples: int = 25,
    seed: int = 0,
    device: TrainDevice = TrainDevice.AUTO,
) -> list[Experiment]:
    """Repeat an experiment; what an earlier call trained or computed in `out` is used again.

    Returns:
        The experiments that were done.
    """
    dataset = splits.load(name, root, download=download)
    chosen = setting(dataset, name, scale, arch, epochs, samples, ood_images, seed)
    wanted: list[Experiment] = list(EXPERIMENTS) if experiment is Experiment.ALL else [experiment]
    foreign = None
    needs_ood = {Experiment.OOD, Experiment.SCORECARD} & set(wanted)
    if chosen.ood is not None and needs_ood:
        foreign = labelled.load_ood(chosen.ood, ImageSpec(*dataset.image_shape), root, download).at_most(FOREIGN)
    elif experiment is Experiment.ALL:
        wanted.remove(Experiment.OOD)
    if experiment is Experiment.OOD and foreign is None:
        raise UsageError(f"Which images are foreign to {name}? Name them: --ood cifar100, --ood folder/ or --ood x.npz")
    out = Path(out)
    writable_folder(out)
    subject = Subject(chosen, dataset, foreign, out, device)
    for kind in wanted:
        EXPERIMENTS[kind](subject)
    return wanted
