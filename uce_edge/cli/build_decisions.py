"""What `uce-edge build` decided, and why, from the run and the file."""

from typing import TYPE_CHECKING

from uce_edge.rejection.description import accepted_by

if TYPE_CHECKING:
    from uce_edge.metadata import Metadata
    from uce_edge_train.runs import Run


def decisions(run: "Run", file: "Metadata", budget: str, each: int) -> dict[str, str]:
    """The decisions of a build, by name.

    Args:
        run: The run, or the first one of an ensemble.
        file: The metadata of the exported file.
        budget: The time of all stages, as it was given.
        each: The training images a class.
    """
    return {
        "views, epochs": _length(run, budget),
        "trained layers": _layers(run, each),
        "dropout rate": _rate(run),
        "calibration": _calibration(file),
        "limit": _limit(file),
        "sets": _sets(file),
        "gate": _gate(file),
        "accuracy": _accuracy(file),
    }


def _length(run: "Run", budget: str) -> str:
    recipe, scores = run.recipe, run.metrics
    views = "" if recipe.unfreeze is None else f"{recipe.views} view{'s' * (recipe.views > 1)}, "
    if recipe.patience is None or scores is None:
        return f"{views}{recipe.epochs} epoch{'s' * (recipe.epochs > 1)}, which fit --budget {budget}"
    return (
        f"{views}{scores.epochs} of the {recipe.epochs} epochs that fit --budget {budget}: there the NLL of the "
        "selection images was lowest"
    )


def _layers(run: "Run", each: int) -> str:
    from uce_edge_train.choices import Unfreeze
    from uce_edge_train.loop.budget import ENOUGH

    recipe = run.recipe
    if recipe.unfreeze is None:
        return "all, from random weights (no --backbone)"
    choice = run.layer_choice
    if choice is not None:
        change = f"the NLL of the selection images from {choice.tail_nll:.3f} to {choice.all_nll:.3f}"
        if choice.kept is Unfreeze.ALL:
            return f"from {recipe.seam} on, then all: that lowered {change}"
        return f"from {recipe.seam} on; training all layers changed {change}, so the others stay as they were"
    if recipe.unfreeze is Unfreeze.ALL:  # a run of an older version
        return f"from {recipe.seam} on, then all, if that lowered the NLL of the selection images"
    few = f": {each} training images a class, and all layers take {ENOUGH}"
    return f"from {recipe.seam} on; the layers before stay as they are{few if each < ENOUGH else ''}"


def _rate(run: "Run") -> str:
    from uce_edge_train.choices import Rates

    rates = sorted(set((run.tuned_rates or run.rates).values()))
    if not rates:
        return "none: the members of an ensemble have no noise"
    names = ", ".join(run.rates) if len(run.rates) < 4 else f"{len(run.rates)} layers"
    text = f"{', '.join(f'{rate:g}' for rate in rates)} in {names}"
    if run.recipe.rates is Rates.FITTED:
        return f"{text}: the largest of those tried that did no harm on the selection images"
    return f"{text}: the default" if run.recipe.unfreeze is None else f"{text}: no time was left to fit it"


def _calibration(file: "Metadata") -> str:
    fitted = file.calibration
    scale = "" if fitted.temperature is None else f", T = {fitted.temperature:.3f}"
    if fitted.report is None:
        return f"{fitted.method}{scale}"
    report = fitted.report
    return (
        f"{fitted.method}{scale}, by the likelihood of {report.images:,} calibration images: NLL "
        f"{report.nll_before:.3f} -> {report.nll_after:.3f}"
    )


def _limit(file: "Metadata") -> str:
    from uce_edge.output.wording import at_most, percent

    rule = file.rule
    if rule is None or rule.promise is None:
        return "none: no --target-error was given"
    promise = rule.promise
    wanted = "the promised errors" if promise.target_error is None else f"an error of {at_most(promise.target_error)}"
    return (
        f"{accepted_by(rule)}: the largest that proves {wanted} with {percent(promise.confidence, 0)} confidence. It "
        f"accepts {percent(promise.coverage)} of {promise.images:,} guarantee images"
    )


def _sets(file: "Metadata") -> str:
    from uce_edge.output.wording import percent

    sets = file.sets
    if sets is None:
        return "none, as asked for, or because there are too few guarantee images"
    return (
        f"the set of labels of at least {percent(1 - sets.alpha, 0)} of the images has the true label; {sets.images:,} "
        f"guarantee images fitted it, with {sets.size:.2f} labels on average"
    )


def _gate(file: "Metadata") -> str:
    from uce_edge.output.wording import at_most, percent

    gate = None if file.rule is None else file.rule.gate
    if gate is None:
        return "none: the export states why"
    return (
        f"rejects at most {at_most(gate.level)} of images like yours, with {percent(gate.confidence, 0)} confidence "
        f"({gate.images:,} reference images)"
    )


def _accuracy(file: "Metadata") -> str:
    from uce_edge.output.wording import percent

    counts = file.held_out
    if counts is None:
        return "see the report"
    images, wrong = counts.accepted[-1], counts.errors[-1]
    return f"{percent(1 - wrong / images)} of {images:,} guarantee images; the report has that of the test images"
