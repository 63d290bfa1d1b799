"""Run the paper's experiments."""

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
from uce_edge_train.reproduce.settings import setting, split_for
from uce_edge_train.reproduce.trained_networks import Study, Subject

OOD_IMAGES = 5000  # more change no printed digit

EXPERIMENTS: dict[Experiment, Callable[[Study], None]] = {
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
    scale: Scale = Scale.MEMORISE,
    *,
    root: str | Path | None = None,
    download: bool = False,
    ood_images: str | None = None,
    arch: str | None = None,
    epochs: int | None = None,
    samples: int = 25,
    seed: int = 0,
    seeds: int | None = None,
    device: TrainDevice = TrainDevice.AUTO,
) -> list[Experiment]:
    """Repeat an experiment.

    Networks and logits of an earlier call in `out` are reused.

    Returns:
        The experiments that ran.
    """
    dataset = split_for(scale, splits.load(name, root, download=download))
    chosen = setting(dataset, name, scale, arch, epochs, samples, ood_images, seed, seeds)
    requested: list[Experiment] = list(EXPERIMENTS) if experiment is Experiment.ALL else [experiment]
    ood = None
    needs_ood = {Experiment.OOD, Experiment.SCORECARD} & set(requested)
    if chosen.ood is not None and needs_ood:
        ood = labelled.load_ood(chosen.ood, ImageSpec(*dataset.image_shape), root, download).at_most(OOD_IMAGES)
    elif experiment is Experiment.ALL:
        requested.remove(Experiment.OOD)
    if experiment is Experiment.OOD and ood is None:
        raise UsageError(
            f"Which images are out of distribution for {name}? Name them: --ood cifar100, --ood folder/ or --ood x.npz",
            "ood.missing",
        )
    out = Path(out)
    writable_folder(out)
    subjects = [Subject(chosen.with_seed(i), dataset, ood, out, device) for i in range(chosen.seeds)]
    for kind in requested:
        EXPERIMENTS[kind](Study(chosen, subjects, out))
    return requested
