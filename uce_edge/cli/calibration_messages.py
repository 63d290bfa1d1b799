"""Messages about a calibration, for `calibrate` and `export`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from uce_edge.cli.messages import again, describe_auto, quote, say, table, warn
from uce_edge.contract import PriorFrom

if TYPE_CHECKING:
    from uce_edge.metadata import Calibration, LaplaceFit, Metadata
    from uce_edge.rejection.guarantee import NoGuaranteeError
    from uce_edge_export.check.novelty_levels import Costs
    from uce_edge_export.recalibration import Recalibrated


def tell_rule(done: "Recalibrated") -> str | None:
    """Print and return the rule of a file."""
    if done.unfit is not None:
        say(f"Note: the file has no gate against out-of-distribution images. {done.unfit}")
    if done.features is not None and done.features.layers:
        from uce_edge.output.wording import percent

        say(
            f"The novelty gate looks at {len(done.features.layers)} layers: it then accepts "
            f"{percent(done.features.accepted)} of images made by rule, and {percent(done.features.accepted_by_last)} "
            "with the last layer alone, if 5 % of the own images are rejected."
        )
    tell_levels(done.costs)
    return tell_auto(done.metadata)


def tell_mix(done: "Recalibrated") -> None:
    """Print the mix of classes that a file was corrected for."""
    mix = done.mix
    if mix is None:
        return
    from uce_edge.output.wording import percent

    how = f"estimated from {mix.unlabelled:,} images" if mix.unlabelled else "as given"
    say(f"Corrected for these shares of the classes, {how}; {mix.kept:,} calibration images have this mix:")
    rows = zip(done.metadata.classes, mix.shares, mix.old, strict=True)
    table(
        ("class", "new share", "in the data"), [(name, percent(new), percent(old)) for name, new, old in rows], err=True
    )


def tell_auto(metadata: "Metadata") -> str | None:
    """Print and return the stored rule in words; None without."""
    auto = describe_auto(metadata)
    if auto is not None:
        say(*auto.split("\n"))
    if metadata.sets is not None:
        from uce_edge.calibration import label_sets

        say(label_sets.describe(metadata.sets, metadata.classes))
    return auto


def next_command(out: Path, metadata: "Metadata") -> str:
    """The command that tries a calibrated file."""
    return f"predict --model {quote(out)} image.png --reject {'0.3' if metadata.rule is None else 'auto'}"


def tell_levels(costs: "Costs | None") -> None:
    """Print what every level of the novelty gate accepts."""
    if costs is None:
        return
    from uce_edge.output.wording import at_most, percent

    fitted = "training" if costs.training else "half of the calibration"
    say(f"The novelty gate looks at the input of {', '.join(costs.layers)}; {fitted} images fit it.")
    rule = "the gate alone" if costs.target_error is None else f"for an error of at most {at_most(costs.target_error)}"
    say(f"What each novelty level accepts ({rule}), of {costs.images:,} calibration images and of images made by rule.")
    if costs.target_error is not None:
        say("The limits of this table are found on the calibration images. The guarantee images give the file its own.")
    kinds = costs.rows[0].far
    table(
        ("level", "own", "wrong of these", *kinds),
        [
            (
                f"{at_most(row.level)}{' (used)' if row.used else ''}",
                percent(row.coverage),
                percent(row.error),
                *(percent(row.far[kind], 0) for kind in kinds),
            )
            for row in costs.rows
        ],
        err=True,
    )
    say("To use another one: --novelty-level. To judge the file by other kinds: uce-edge evaluate --ood far")


def tell_posterior(fit: "LaplaceFit") -> None:
    """Print a posterior's fit and the effect of its draws."""
    say(f"Fitted the posterior of the last layer to {fit.images:,} images; prior precision {fit.prior_precision:.3g}.")
    say(
        f"NLL on other images, with a temperature fitted for each case: {fit.nll:.4f} with draws, "
        f"{fit.nll_without:.4f} without."
    )
    if fit.nll > 1.02 * fit.nll_without:
        remedy = "use the network without draws: --inference deterministic"
        if fit.prior_from != PriorFrom.HELD_OUT_NLL:
            remedy = f"choose the prior by held-out images (--prior held-out-nll), or {remedy}"
        warn(f"the draws make the model worse on these images. Instead, {remedy}")
    elif fit.nll >= fit.nll_without:
        say("Note: the draws do not make the model better on these images.")


def tell_calibration(fitted: "Calibration", refused: "NoGuaranteeError | None") -> None:
    """Print the effect of a map, and a refused promise."""
    report = fitted.outcome
    if fitted.temperature is not None:
        say(f"Temperature {fitted.temperature:.4f} at {fitted.samples} samples.")
    say(
        f"On {report.images} calibration images: NLL {report.nll_before:.4f} -> {report.nll_after:.4f}, "
        f"accuracy {report.accuracy_before:.1%} -> {report.accuracy_after:.1%}, "
        f"labels changed: {report.label_flips}."
    )
    if report.images < 100:
        warn("the calibration is itself uncertain with fewer than 100 images. Give more images.")
    if report.near_chance:
        warn(
            "the model is hardly better than chance on these images. First check its input: the scaling of the pixels "
            "(--scale, --mean and --std of `export`), the order of the channels and the order of the classes."
        )
        if fitted.samples is not None and fitted.samples > 1:
            say("If the model is good without noise, the noise is too strong for it. Use a smaller --p, or add noise")
            say("only to the last layers with --noisy tail.")
    if refused is not None:
        warn(f"nothing is promised. {refused}")
        tell_curve(refused, lambda target: again("--target-error", f"{target:g}"))


def tell_curve(refused: "NoGuaranteeError", command: Callable[[float], str | None]) -> None:
    """Print provable errors, and the command for the first."""
    from uce_edge.output.wording import at_most, percent, threshold
    from uce_edge.rejection.promises import RejectBy

    if not refused.curve:
        say("These images cannot prove any error up to 50 %. Give more images, or a better model.")
        return
    sure = percent(refused.curve[0].confidence, 0)
    by_confidence = refused.score is RejectBy.CONFIDENCE
    say(f"Errors that the same images can prove, each with {sure} confidence:")
    table(
        (
            "error at most",
            "accepted",
            "confidence at least" if by_confidence else "uncertainty at most",
            "wrong among the accepted",
        ),
        [
            (
                at_most(row.target_error),
                percent(row.coverage),
                percent(1 - row.threshold) if by_confidence else threshold(row.threshold),
                f"{round((row.error or 0) * row.accepted):,} of {row.accepted:,}",
            )
            for row in refused.curve
        ],
        err=True,
    )
    say("Each row holds on its own. Choose the error that you can accept, not the row that looks best.")
    pasted = command(refused.curve[0].target_error or 0)
    if pasted is not None:
        say(f"For the first row: {pasted}")
