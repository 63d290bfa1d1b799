"""Recipes of a reproduction at each scale."""

import shlex
from dataclasses import dataclass, fields, replace

import numpy as np

from uce_edge.datasets.splits import Dataset, Split
from uce_edge_train.choices import Scale, Schedule
from uce_edge_train.recipe import Recipe

PENALTY = 0.1  # the paper's beta
_MIRRORED = ("cifar10", "cifar100")  # digits, letters and chests have a left and a right
_PAPER_ARCH = {"cifar100": "resnet101"}
_LAPTOP_IMAGES = 480_000  # that a training sees at most, which two cores do in twenty minutes
SEEDS = 5
"""Trainings per objective at the scale `memorise`."""
_MANY_CLASSES = 50
_MEMORISED, _MEMORISED_MANY = 5_000, 10_000  # training images: of few classes, of many
_JUDGED = 2_500  # calibration images, and test images, at the scale `memorise`


@dataclass(frozen=True)
class Setting:
    """A dataset, a network, and how both are used."""

    data: str
    """As the user names it."""
    scale: Scale
    recipe: Recipe
    samples: int = 25
    ood: str | None = None
    seeds: int = 1
    """How many networks are trained per objective, with the seeds from the recipe's on."""

    changes: tuple[str, ...] = ()
    """The user's other options, as typed."""

    @property
    def own_splits(self) -> bool:
        """Whether the splits are others than those of `train`: see `split_for`."""
        return self.scale is not Scale.LAPTOP

    @property
    def shown(self) -> str:
        """Which training a figure shows, as a sentence."""
        return "" if self.seeds == 1 else f"Of the first of {self.seeds} trainings. "

    def with_seed(self, number: int) -> "Setting":
        """The setting of one of its trainings."""
        return replace(self, recipe=replace(self.recipe, seed=self.recipe.seed + number))

    def command(self, experiment: str, out: str) -> str:
        """The command that repeats an experiment."""
        words = ["uce-edge", "reproduce", experiment, "--data", self.data, "--scale", self.scale, *self.changes]
        return shlex.join([*words, "--out", out])

    def train_command(self, penalty: float) -> str:
        """The command that trains one network of this setting."""
        recipe, plain = replace(self.recipe, penalty=penalty), Recipe()
        words = ["uce-edge", "train", "--data", self.data]
        for field in fields(recipe):
            value, name = getattr(recipe, field.name), field.name.replace("_", "-")
            if value != getattr(plain, field.name):
                words += (
                    [f"--{name}"]
                    if value is True
                    else [f"--no-{name}"]
                    if value is False
                    else [f"--{name}", str(value)]
                )
        return shlex.join([*words, "--out", f"runs/{'penalty' if penalty else 'nll'}"])


def setting(
    dataset: Dataset,
    data: str,
    scale: Scale,
    arch: str | None = None,
    epochs: int | None = None,
    samples: int = 25,
    ood: str | None = None,
    seed: int = 0,
    seeds: int | None = None,
) -> Setting:
    """The setting of a dataset, with the user's changes."""
    flip = data in _MIRRORED
    if scale is Scale.PAPER:
        # The authors' earlier public code: AdamW 0.01, batch 256, a plateau schedule, up to 500 epochs, shifts of 4
        # pixels, flips, erasing in half of the images.
        recipe = Recipe(
            arch=_PAPER_ARCH.get(data, "resnet34"), epochs=500, batch_size=256, schedule=Schedule.PLATEAU, flip=flip,
            erase=0.5, seed=seed,
        )  # fmt: skip
    elif scale is Scale.MEMORISE:
        recipe = Recipe(
            arch="convnet5", epochs=12 if _has_many_classes(dataset) else 30, batch_size=100, learning_rate=4e-3,
            shift=0, seed=seed,
        )  # fmt: skip
    else:
        images = len(dataset.splits["train"])
        recipe = Recipe(
            epochs=min(20, max(5, _LAPTOP_IMAGES // images)), batch_size=min(128, images), flip=flip, seed=seed
        )
    recipe = replace(recipe, arch=arch or recipe.arch, epochs=epochs or recipe.epochs)
    default_ood = {"cifar10": "cifar100", "cifar100": "cifar10", "svhn": "cifar10"}.get(data)
    words = changes(scale, arch, epochs, samples, ood, seed, seeds)
    return Setting(data, scale, recipe, samples, ood or default_ood, seeds or _seeds(scale), tuple(words))


def changes(
    scale: Scale,
    arch: str | None,
    epochs: int | None,
    samples: int,
    ood: str | None,
    seed: int,
    seeds: int | None,
) -> list[str]:
    """The user's changes of a setting, as options of a command."""
    given = {
        "arch": arch,
        "epochs": epochs,
        "samples": None if samples == 25 else samples,
        "ood": ood,
        "seed": seed or None,
        "seeds": None if seeds == _seeds(scale) else seeds,
    }
    return [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]


def _seeds(scale: Scale) -> int:
    """How many networks are trained per objective, unless the user says."""
    return SEEDS if scale is Scale.MEMORISE else 1


def split_for(scale: Scale, dataset: Dataset) -> Dataset:
    """The splits of a scale.

    The paper keeps no images for promises, so its scale trains on those, too: on 45,000 images of CIFAR-10.
    """
    if scale is Scale.MEMORISE:
        return memorised(dataset)
    if scale is Scale.LAPTOP:
        return dataset
    train, calibration = _joined(dataset, "train", "guarantee"), dataset.splits["calibration"]
    return replace(dataset, splits=dataset.splits | {"train": train, "guarantee": calibration})


def _joined(dataset: Dataset, *names: str) -> Split:
    parts = [dataset.splits[name] for name in names]
    return Split(np.concatenate([one.images for one in parts]), np.concatenate([one.labels for one in parts]))


def memorised(dataset: Dataset) -> Dataset:
    """Splits for networks that memorise their training images.

    Few of the training images are used. The test images are divided: the maps are fitted on one half, and judged on the
    other.
    """
    most = _MEMORISED_MANY if _has_many_classes(dataset) else _MEMORISED
    pool = _joined(dataset, "train", "calibration", "guarantee")
    calibration, test = (half.at_most(_JUDGED) for half in dataset.splits["test"].halves())
    parts = {"train": pool.at_most(most), "calibration": calibration, "guarantee": calibration, "test": test}
    return replace(dataset, splits=parts)


def _has_many_classes(dataset: Dataset) -> bool:
    return len(dataset.class_names) >= _MANY_CLASSES
