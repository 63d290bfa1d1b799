"""Plan a training from measured steps, to end in a given time."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from uce_edge._util.progress import working
from uce_edge.datasets.splits import Dataset, Split
from uce_edge.metadata import ImageSpec
from uce_edge_train.choices import Rates, Unfreeze
from uce_edge_train.data import selection
from uce_edge_train.data.features import before_noise, open_features
from uce_edge_train.data.pixel_scaling import normalise
from uce_edge_train.dropout.gaussian_layers import deterministic
from uce_edge_train.dropout.monte_carlo import mc_logits
from uce_edge_train.loop import rate_fit
from uce_edge_train.loop.training import evaluate
from uce_edge_train.networks import parameter_groups
from uce_edge_train.networks import seam as seams
from uce_edge_train.recipe import Recipe

_SAFE = 0.85  # of the time is planned; steps are measured while memory is warm
_EPOCHS, _VIEWS = (3, 30), (1, 8)
_TAIL_EPOCHS = 14  # at most, as a backbone's recipe: a longer cycle spends more epochs at rates that overfit
_FOR_VIEWS = 0.4  # of the time, at most
ENOUGH = 300
"""Training images a class from which a plan trains all layers, too. It is a judgement, not a measurement."""
_PER_EPOCH_OF_ALL = 3  # epochs of the tail for one of all layers, as in `Recipe.stages`
_REPEATS = 4  # the best counts: another process makes a step several times slower


@dataclass(frozen=True)
class Cost:
    """Seconds of the parts of a training, measured."""

    epoch: float
    """Of the layers that are trained first."""
    rate: float
    """Of fitting the rate; 0 where it is not fitted."""
    view: float = 0.0
    """What the trunk computes of all training images; 0 without a trunk."""
    whole: float = 0.0
    """An epoch of all layers; 0 where they are not trained after the tail."""
    repeat: float = 0.0
    """An epoch of the tail on all training images; 0 where it is trained once."""


@dataclass(frozen=True)
class Plan:
    """A recipe that fits a time, and where the time goes."""

    recipe: Recipe
    features: float
    """Seconds."""
    tail: float
    rate: float
    rest: float = 0.0
    """All layers."""
    few: int | None = None
    """The training images a class, if they are too few to train all layers."""
    smallest: bool = False
    """Whether there is no time to fit a rate, so that the smallest is taken."""
    members: int = 1
    """The networks that are trained one after another; all seconds are those of one."""

    @property
    def total(self) -> float:
        """Seconds."""
        return self.features + self.tail + self.rate + self.rest

    def summary(self, seconds: float) -> str:
        """Some sentences about it, and the time of one network."""
        recipe = self.recipe
        again = " and again on all training images" if recipe.repeats else ""
        parts = [f"{recipe.epochs} epoch{'s' * (recipe.epochs > 1)}{again} ({self.tail:.0f} s)"]
        if self.features:
            parts.insert(0, f"{recipe.views} views of the training images ({self.features:.0f} s)")
        if self.rate:
            parts.append(f"the rate ({self.rate:.0f} s)")
        if self.rest:
            parts.append(f"{recipe.stages()[-1].epochs} epochs of all layers ({self.rest:.0f} s)")
        allowed = f"{seconds:.0f} s" + (f" for each of {self.members} members" if self.members > 1 else "")
        text = f"Plan for {allowed}: {', '.join(parts)}; {self.total:.0f} s in all, by steps that were measured."
        if self.few is not None:
            text += f" The trunk stays frozen: {self.few} training images a class, and all layers take {ENOUGH}."
        if self.smallest:
            text += f" There is no time to fit a rate: p = {recipe.p:g}, the smallest."
        if self.total > seconds:
            whole = self.members * self.total
            text += f" No plan is shorter, and training takes {whole:.0f} s: use fewer or smaller images, or more time."
        return text


def plan(
    recipe: Recipe,
    dataset: Dataset,
    image: ImageSpec,
    seconds: float,
    given: set[str],
    members: int = 1,
    *,
    shared: bool = False,
) -> Plan:
    """Choose epochs, views and layers so that training ends in time.

    Args:
        recipe: The rest of the recipe.
        dataset: The images.
        image: The images that the network takes.
        seconds: The time of one network.
        given: Names of settings that stay as they are.
        members: The networks that are trained one after another.
        shared: Whether they share the stored features of a trunk, which are computed once.
    """
    each = len(dataset.splits["train"]) // len(dataset.class_names)
    too_few = "unfreeze" not in given and each < ENOUGH
    with working("measuring steps"):
        cost = measured(recipe, dataset, image, all_layers=not too_few)
    if shared:
        cost = replace(cost, view=cost.view / members)
    few = each if cost.view and too_few else None
    found = choose(recipe, cost, seconds, given if few is None else given | {"unfreeze"})
    return replace(found, few=few, members=members)


def choose(recipe: Recipe, cost: Cost, seconds: float, given: set[str]) -> Plan:
    """The plan for a time, by what the parts cost.

    What is left out first, where time is short: all layers, views, epochs, the fit of the rate.
    """
    left, rate, smallest = _SAFE * seconds, cost.rate, False
    epoch = cost.epoch + cost.repeat
    (fewest, most), fewest_views = _EPOCHS, recipe.views if "views" in given else _VIEWS[0]
    shortest = recipe.epochs if "epochs" in given else fewest
    if rate and not {"rates", "p"} & given and fewest_views * cost.view + rate + shortest * epoch > left:
        rate, smallest = 0.0, True
        recipe = replace(recipe, rates=Rates.FIXED, p=rate_fit.RATES[0])
    if rate == 0:
        fewest = 1
    views = recipe.views
    if "views" not in given and cost.view:
        spare = left - rate - _EPOCHS[0] * epoch
        views = _within(_VIEWS, min(_FOR_VIEWS * left, spare) / cost.view)
    features = views * cost.view
    epochs = recipe.epochs
    if "epochs" not in given:
        most = most if recipe.unfreeze is None else _TAIL_EPOCHS
        epochs = _within((fewest, most), (left - features - rate) / epoch)
    found = Plan(replace(recipe, views=views, epochs=epochs), features, epochs * epoch, rate, smallest=smallest)
    if not cost.whole or ("unfreeze" in given and recipe.unfreeze is not Unfreeze.ALL):
        return found
    # A trunk that was trained computes other features, which the rate is fitted on.
    rest = math.ceil(epochs / _PER_EPOCH_OF_ALL) * cost.whole + features
    once = replace(found, recipe=replace(found.recipe, unfreeze=Unfreeze.ALL), tail=epochs * cost.epoch, rest=rest)
    if recipe.unfreeze is Unfreeze.ALL or once.total <= left:
        return once
    return found


def measured(recipe: Recipe, dataset: Dataset, image: ImageSpec, *, all_layers: bool = True) -> Cost:
    """Measure a step of each part of a training.

    Args:
        recipe: How it is trained.
        dataset: The images.
        image: The images that the network takes.
        all_layers: Whether a plan may train all layers after the tail. Such a step is slow.
    """
    model = recipe.build(len(dataset.class_names), image.channels)
    train = dataset.splits["train"]
    # A plan may add all layers, and layers are chosen by the selection images.
    parts = selection.part(train, selects=recipe.selects or recipe.unfreeze is not None)
    batch = min(recipe.batch_size, len(parts.fitted))
    steps, looks = len(parts.fitted) // batch, len(parts.held_out(dataset)) / batch
    first = train.take(parts.fitted[:batch])
    pixels, labels = normalise(torch.from_numpy(first.images), image), torch.from_numpy(first.labels)
    frozen = recipe.unfreeze is not None and recipe.seam is not None
    features = open_features(model, image, None, recipe.seam) if frozen else None
    again = len(train) // batch if recipe.repeats else 0
    if features is None:
        begun = recipe.stages()[0].unfreeze
        network = model if begun is None else _thawed(model, recipe, begun)
        step, look = _step(network, network, recipe, pixels, labels), looks * _look(model, image, first)
        rate, whole = _rate(recipe, steps * step + look, looks, model, image, first), 0.0
        if recipe.unfreeze is Unfreeze.ALL:
            whole = steps * _step(_thawed(model, recipe, Unfreeze.ALL), model, recipe, pixels, labels) + look
        return Cost(steps * step + look, rate, whole=whole, repeat=again * step)
    view = len(train) / batch * _time(lambda: features.seam.trunk(pixels))
    tail, stored = _thawed(model, recipe, Unfreeze.TAIL), features.of(first)
    inputs = torch.from_numpy(stored.images).permute(0, 3, 1, 2)
    step = _step(tail, features.tail, recipe, inputs, labels)
    epoch = steps * step + looks * _look(features.tail, features.spec, stored)
    rate = _rate(recipe, epoch, looks, features.tail, features.spec, stored)
    if not all_layers and recipe.unfreeze is not Unfreeze.ALL:
        return Cost(epoch, rate, view, repeat=again * step)
    whole = steps * _step(_thawed(model, recipe, Unfreeze.ALL), model, recipe, pixels, labels)
    return Cost(epoch, rate, view, whole + looks * _look(model, image, first), again * step)


def _rate(recipe: Recipe, epoch: float, looks: float, network: nn.Module, image: ImageSpec, batch: Split) -> float:
    """The seconds of fitting the rate: epochs, and passes over the images that are watched."""
    if recipe.rates is not Rates.FITTED:
        return 0.0
    noisy, spec, inputs = before_noise(network.eval(), image, batch)
    one = _time(lambda: list(mc_logits(noisy, inputs, spec, 1, 0)))
    return rate_fit.TRIED * epoch + rate_fit.PASSES * looks * one


def _look(network: nn.Module, image: ImageSpec, batch: Split) -> float:
    """The seconds of a look at some images."""
    return _time(lambda: evaluate(network, image, batch))


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
