"""Settings of `uce-edge train` that follow from a backbone or a time."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from uce_edge.cli.messages import say
from uce_edge.cli.shared_options import parse_time
from uce_edge.errors import UsageError, expected
from uce_edge_train.choices import Dropout, Rates, Unfreeze

if TYPE_CHECKING:
    from uce_edge.datasets.splits import Dataset
    from uce_edge_train.recipe import Recipe

PLAN = "plan.json"
"""The planned recipe of a training with --budget, in its folder."""
_PLANNED = {"epochs", "views", "unfreeze", "rates", "p"}


def given(ctx: typer.Context) -> set[str]:
    """The options that were typed, or set by the environment."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {name for name, source in sources.items() if source is not None and source.name != "DEFAULT"}


def check_network(arch: str, backbone: str | None) -> None:
    """Reject a name that means no network, before torch is loaded."""
    from uce_edge_train.networks import arch_names

    if backbone is None:
        arch_names.check(arch, Path.cwd())


def of_backbone(settings: dict[str, Any], given: set[str], dropout: Dropout) -> dict[str, Any]:
    """The settings of a backbone that no option replaces."""
    for name in ("arch", "init"):
        if name in given:
            message = f"--backbone and --{name} both choose the network's start. Leave one of them out."
            raise UsageError(message, "usage.backbone-and-start")
    if "p" in given or dropout is not Dropout.GAUSSIAN:  # a rate that was chosen is not fitted
        given = given | {"rates"}
    return {name: value for name, value in settings.items() if name not in given}


def of_shared_trunk(settings: dict[str, Any], members: int) -> Unfreeze:
    """Which layers are trained of members that share a trunk; raises an error where there is none."""
    if members < 2:
        rule, remedy = "left out for a single network", "Train an ensemble: --members 5"
        raise UsageError(expected("`share_trunk`", rule, f"members = {members}", remedy))
    if any(settings[name] is None for name in ("init", "seam", "unfreeze")):
        rule, remedy = "left out without stored features", "Name a network that has them: --backbone efficientnet-lite0"
        raise UsageError(expected("`share_trunk`", rule, str(settings["arch"]), remedy))
    if settings["unfreeze"] is Unfreeze.ALL:
        rule, remedy = f"{Unfreeze.NONE} or {Unfreeze.TAIL} with a shared trunk", "Leave --share-trunk out"
        raise UsageError(expected("`unfreeze`", rule, str(Unfreeze.ALL), remedy))
    chosen: Unfreeze = settings["unfreeze"]
    return chosen


def checked(settings: dict[str, Any], given: set[str]) -> "Recipe":
    """The recipe; raises an error for settings that the network or the processes do not allow."""
    from uce_edge_train.loop import rate_fit
    from uce_edge_train.recipe import Recipe

    unused = sorted({"seam", "views"} & given) if settings["unfreeze"] is None else []
    if unused:
        rule, remedy = "left out where no layer stays frozen", "Add --unfreeze tail, or --backbone efficientnet-lite0"
        raise UsageError(expected(f"`{unused[0]}`", rule, settings[unused[0]], remedy))
    recipe = Recipe(**settings)
    rate_fit.check_processes(recipe.rates, _processes())
    return recipe


def of_start(start: Path | None, given: set[str], dropout: Dropout) -> dict[str, Any]:
    """The rate of weights that were trained before: that of their run, or a fitted one."""
    from uce_edge_train.networks import pretrained

    if start is None or {"p", "rates"} & given or dropout is not Dropout.GAUSSIAN:
        return {}
    own = pretrained.rate_of(start)
    return {"rates": Rates.FITTED} if own is None else {"p": own}


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def seconds_of(budget: str | None) -> float | None:
    """Parse --budget."""
    if budget is None:
        return None
    if _processes() > 1:
        rule, remedy = "absent with several processes", "Choose the epochs: --epochs 20"
        raise UsageError(expected("`budget`", rule, budget, remedy))
    return parse_time(budget)


def planned(
    recipe: "Recipe",
    dataset: "Dataset",
    seconds: float,
    given: set[str],
    out: Path,
    members: int,
    *,
    shared: bool,
    resume: bool,
) -> "Recipe":
    """The recipe with epochs, views and layers for the time of all members.

    The plan is kept in the run. A training that resumes after its first epoch follows it, but for the settings that are
    given.
    """
    from uce_edge._util.atomic_files import replacing
    from uce_edge._util.records import parse
    from uce_edge_train.loop import budget, checkpoint, training
    from uce_edge_train.recipe import Recipe
    from uce_edge_train.runs import DESCRIPTION

    stored = out / PLAN
    kept = (checkpoint.CHECKPOINT, f"*/{checkpoint.CHECKPOINT}", f"*/{DESCRIPTION}")
    if resume and stored.exists() and any(True for name in kept for _ in out.glob(name)):
        say(f"Training follows the plan of {stored}.")
        before = Recipe.from_document(parse(stored.read_bytes()))
        return replace(recipe, **{name: getattr(before, name) for name in _PLANNED - given})
    image, own = training.image_of(dataset, recipe), seconds / members
    found = budget.plan(recipe, dataset, image, own, given, members, shared=shared)
    say(found.summary(own))
    with replacing(out / PLAN) as path:
        path.write_text(found.recipe.to_json(indent=2, sort_keys=False) + "\n")
    return found.recipe
