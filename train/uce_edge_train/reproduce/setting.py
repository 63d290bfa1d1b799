"""What is trained for a reproduction, at each scale."""

import shlex
from dataclasses import dataclass, fields, replace

from uce_edge_train.choices import Scale, Schedule
from uce_edge_train.data import Dataset
from uce_edge_train.recipe import Recipe

PENALTY = 0.1  # the paper's beta
_MIRRORED = ("cifar10", "cifar100")  # digits, letters and chests have a left and a right
_PAPER_ARCH = {"cifar100": "resnet101"}
_LAPTOP_IMAGES = 480_000  # that a training sees at most, which two cores do in twenty minutes


@dataclass(frozen=True)
class Setting:
    """One column of the paper: a dataset, a network, and how both are used."""

    data: str
    """As the user names it."""
    scale: Scale
    recipe: Recipe
    samples: int = 25
    ood: str | None = None

    def command(self, penalty: float, out: str) -> str:
        """The command that trains a network of this setting."""
        recipe, plain = replace(self.recipe, penalty=penalty), Recipe()
        options = []
        for field in fields(recipe):
            value = getattr(recipe, field.name)
            if value != getattr(plain, field.name):
                name = f"--{field.name.replace('_', '-')}"
                options.append(name if value is True else f"{name} {value}")
        return f"uce-edge train --data {shlex.quote(self.data)} {' '.join(options)} --out {shlex.quote(out)}"


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
    """The setting of a dataset at a scale, with the user's changes."""
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
            epochs=min(40, max(5, _LAPTOP_IMAGES // images)), batch_size=min(128, images), flip=flip, seed=seed
        )
    recipe = replace(recipe, arch=arch or recipe.arch, epochs=epochs or recipe.epochs)
    return Setting(data, scale, recipe, samples, ood or {"cifar10": "cifar100", "svhn": "cifar10"}.get(data))
