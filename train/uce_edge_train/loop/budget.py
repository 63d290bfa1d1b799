"""Plan a training from measured steps, to end in a given time."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from uce_edge.datasets.splits import Dataset
from uce_edge.metadata import ImageSpec
from uce_edge_train.choices import Rates, Unfreeze
from uce_edge_train.data.features import open_features
from uce_edge_train.data.pixel_scaling import normalise
from uce_edge_train.dropout.gaussian_layers import deterministic
from uce_edge_train.loop.rate_fit import TRIED
from uce_edge_train.networks import parameter_groups
from uce_edge_train.networks import seam as seams
from uce_edge_train.recipe import Recipe

_SAFE = 0.85  # of the time is planned; steps are measured while memory is warm
_EPOCHS, _VIEWS = (3, 30), (1, 8)
_FOR_VIEWS = 0.4  # of the time, at most
_PER_EPOCH_OF_ALL = 3  # epochs of the tail for one of all layers, as in `Recipe.stages`
_REPEATS = 2


@dataclass(frozen=True)
class Plan:
    """A recipe that fits a time, and where the time goes."""

    recipe: Recipe
    features: float
    """Seconds."""
    tail: float
    rate: float
    rest: float
    """All layers."""

    def summary(self, seconds: float) -> str:
        """One sentence about it."""
        recipe = self.recipe
        parts = [f"{recipe.epochs} epochs ({self.tail:.0f} s)"]
        if recipe.seam is not None:
            parts.insert(0, f"{recipe.views} views of the training images ({self.features:.0f} s)")
        if self.rate:
            parts.append(f"the rate ({self.rate:.0f} s)")
        if self.rest:
            parts.append(f"{recipe.stages()[-1].epochs} epochs of all layers ({self.rest:.0f} s)")
        total = self.features + self.tail + self.rate + self.rest
        return f"Plan for {seconds:.0f} s: {', '.join(parts)}; {total:.0f} s in all, by steps that were measured."


def plan(recipe: Recipe, dataset: Dataset, image: ImageSpec, seconds: float, given: set[str]) -> Plan:
    """Choose epochs, views and layers so that training ends in time.

    Args:
        recipe: The rest of the recipe.
        dataset: The images.
        image: The images that the network takes.
        seconds: The time.
        given: Names of settings that stay as they are.
    """
    model = recipe.build(len(dataset.class_names), image.channels)
    train, held_out = dataset.splits["train"], dataset.splits["calibration"]
    batch = min(recipe.batch_size, len(train))
    steps = len(train) // batch
    pixels = normalise(torch.from_numpy(train.images[:batch].copy()), image)
    labels = torch.from_numpy(train.labels[:batch])
    frozen = recipe.unfreeze is not None and recipe.seam is not None
    features = open_features(model, image, None, recipe.seam) if frozen else None
    left = _SAFE * seconds
    if features is None:
        epoch = steps * _step(model, model, recipe, pixels, labels)
        epochs = recipe.epochs if "epochs" in given else _within(_EPOCHS, left / epoch)
        return Plan(replace(recipe, epochs=epochs), 0, epochs * epoch, 0, 0)
    view = len(train) / batch * _time(lambda: features.seam.trunk(pixels))
    tail = _thawed(model, recipe, Unfreeze.TAIL)
    epoch = steps * _step(tail, features.tail, recipe, features.seam.trunk(pixels), labels)
    watched = view * len(held_out) / len(train)
    rate = TRIED * epoch if recipe.rates is Rates.FITTED else 0.0
    views = recipe.views
    if "views" not in given:
        views = _within(_VIEWS, min(_FOR_VIEWS * left, left - rate - _EPOCHS[0] * epoch) / view)
    spent = views * view + watched + rate
    epochs = recipe.epochs if "epochs" in given else _within(_EPOCHS, (left - spent) / epoch)
    spent += epochs * epoch
    whole, unfreeze = 0.0, recipe.unfreeze
    if "unfreeze" not in given or unfreeze is Unfreeze.ALL:
        one = steps * _step(_thawed(model, recipe, Unfreeze.ALL), model, recipe, pixels, labels)
        # A trunk that was trained computes other features, which the rate is fitted on.
        rest = -(-epochs // _PER_EPOCH_OF_ALL) * one + views * view + watched
        if unfreeze is Unfreeze.ALL or spent + rest <= left:
            unfreeze, whole = Unfreeze.ALL, rest
    found = replace(recipe, views=views, epochs=epochs, unfreeze=unfreeze)
    return Plan(found, views * view + watched, epochs * epoch, rate, whole)


def _thawed(model: nn.Module, recipe: Recipe, choice: Unfreeze) -> nn.Module:
    parameter_groups.thaw(model, seams.weights_behind(model, recipe.seam), choice)
    return model


def _step(model: nn.Module, network: nn.Module, recipe: Recipe, inputs: Any, labels: Any) -> float:
    """The seconds of a training step."""
    optimiser = recipe.optimiser_for(model, [])

    def once() -> None:
        loss, _ = recipe.loss(network(inputs), labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    if recipe.rates is Rates.FITTED:  # these epochs are without noise
        with deterministic(model):
            return _time(once)
    return _time(once)


def _time(work: Callable[[], object]) -> float:
    work()  # allocates
    best = float("inf")
    for _ in range(_REPEATS):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def _within(bounds: tuple[int, int], value: float) -> int:
    low, high = bounds
    return max(low, min(high, int(value)))
