"""Recipes of a reproduction at each scale."""

import shlex
from dataclasses import dataclass, fields, replace

from uce_edge.datasets.splits import Dataset
from uce_edge_train.choices import Scale, Schedule
from uce_edge_train.recipe import Recipe

PENALTY = 0.1  # the paper's beta
_MIRRORED = ("cifar10", "cifar100")  # digits, letters and chests have a left and a right
_PAPER_ARCH = {"cifar100": "resnet101"}
_LAPTOP_IMAGES = 480_000  # that a training sees at most, which two cores do in twenty minutes


@dataclass(frozen=True)
class Setting:
    """A dataset, a network, and how both are used."""

    data: str
    """As the user names it."""
    scale: Scale
    recipe: Recipe
    samples: int = 25
    ood: str | None = None

    changes: tuple[str, ...] = ()
    """The user's other options, as typed."""

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
) -> Setting:
    """The setting of a dataset, with the user's changes."""
    flip = data in _MIRRORED
    if scale is Scale.PAPER:
        # The authors' public code: AdamW 0.01, batch 256, a plateau schedule, shifts of 4 pixels.
        recipe = Recipe(
            arch=_PAPER_ARCH.get(data, "resnet34"), epochs=200, batch_size=256, schedule=Schedule.PLATEAU,
            patience=20, flip=flip, seed=seed,
        )  # fmt: skip
    else:
        images = len(dataset.splits["train"])
        recipe = Recipe(
            epochs=min(20, max(5, _LAPTOP_IMAGES // images)), batch_size=min(128, images), flip=flip, seed=seed
        )
    recipe = replace(recipe, arch=arch or recipe.arch, epochs=epochs or recipe.epochs)
    given = {
        "arch": arch,
        "epochs": epochs,
        "samples": None if samples == 25 else samples,
        "ood": ood,
        "seed": seed or None,
    }
    changes = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    default_ood = {"cifar10": "cifar100", "svhn": "cifar10"}.get(data)
    return Setting(data, scale, recipe, samples, ood or default_ood, tuple(changes))
