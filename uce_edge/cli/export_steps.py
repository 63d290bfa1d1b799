"""Messages about the steps of an export."""

from typing import TYPE_CHECKING

from uce_edge.cli.calibration_messages import next_command, tell_calibration, tell_posterior, tell_rule
from uce_edge.cli.messages import quote, say, warn
from uce_edge.contract import Inference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from uce_edge_export.export_result import ExportedFile, NoiseCost, Step
    from uce_edge_export.pipeline import Built, Exported
    from uce_edge_export.source.preprocessing import Resizing, Scaling
    from uce_edge_export.source.trials import Fit

_SHOWN = 6  # ways


def tell_step(step: "Step") -> None:
    """Print one step of `uce_edge_export.export_file`."""
    from uce_edge.images.gray_survey import Decided
    from uce_edge.metadata import LaplaceFit
    from uce_edge_export import export_result
    from uce_edge_export.file_pipeline import DEFAULT_RATE
    from uce_edge_export.pipeline import Built
    from uce_edge_export.recalibration import Recalibrated
    from uce_edge_export.source.preprocessing import Resizing, Scaling

    match step:
        case Decided(words=str() as words):
            say(words)
        case export_result.AssumedClasses(names):
            say(f"Assumed order of the model's outputs: {', '.join(names[:5])}{', ...' * (len(names) > 5)}.")
            say("If the order is another one, give it: --classes FIRST,SECOND,...")
        case export_result.NoNoise():
            say("The file has no noise: for a network that was not trained with noise, it costs passes and helps")
            say("little. For a posterior over the last layer, add --posterior laplace. For noise in the last layers,")
            say(f"add --noisy tail --p {DEFAULT_RATE}. To keep its own dropout, add --dropout keep.")
        case export_result.MemberStarted(source):
            say(f"{source}:")
        case Scaling():
            _tell_scaling(step)
        case Resizing():
            _tell_resizing(step)
        case Built() if step.metadata.members > 1:
            tell_combined(step)
        case Built():
            tell_written(step)
        case LaplaceFit():
            tell_posterior(step)
        case Recalibrated():
            tell_rule(step)
            tell_calibration(step.metadata.calibration, step.refused)
        case export_result.NoiseCost():
            _tell_cost(step)


def tell_exported(done: "ExportedFile") -> str:
    """Print hints on an uncalibrated file; returns the next command."""
    if done.calibrated is not None:
        return next_command(done.path, done.metadata)
    if done.metadata.members > 1:
        say("Note: the ensemble is not calibrated, even if its members are.")
    elif done.p:
        say("Note: the network was not trained with noise. Noise costs passes and may make the network worse.")
        say("      Add labelled images (--data FOLDER) to calibrate the file, and to see what the noise does.")
    return f"calibrate {quote(done.path)} --data FOLDER --method temperature"


def tell_written(done: "Exported | Built") -> None:
    """Print notes, parity, and the costs of cheaper forms."""
    for note in done.notes:
        say(f"Note: {note}.")
    if done.metadata.inference is Inference.MOMENTS:
        say(f"Check on two images: mean probabilities within {done.parity.largest_difference:.3f} of 32 exact passes.")
    else:
        z = done.parity.largest_z
        statistic = "" if z is None else f"; mean probabilities within {z:.1f} standard errors of random noise"
        say(f"Parity: logits within {done.parity.largest_difference:.1e} of the original{statistic}.")
    for form, judgement in done.judgements.items():
        say(f"{form}: {judgement}.")


def tell_combined(done: "Exported | Built") -> None:
    """Print the size and the parity of an ensemble."""
    metadata = done.metadata
    every = "one pass" if metadata.inference is Inference.DETERMINISTIC else "every seed"
    say(f"The file is an ensemble of {metadata.members} networks, which all run {every}.")
    say(f"Parity: logits within {done.parity.largest_difference:.1e} of those of each member on its own.")


def _tell_scaling(scaling: "Scaling") -> None:
    given, chosen = scaling.given, scaling.chosen
    if given is not None and not given.near_chance:
        return
    if given is None:
        say(f"The scaling of the pixels was not given. The usual ways, tried on {scaling.images} images without noise")
        say("(poor ones on fewer):")
    else:
        warn(
            f"with the given --scale, --mean, --std and --channels, the network without noise is right for only "
            f"{given.accuracy:.1%} of {scaling.images} images, hardly better than chance. The usual ways to scale "
            "pixels give:"
        )
    _tell_fits(scaling.tried[:_SHOWN], [fit.way.name for fit in scaling.tried[:_SHOWN]], chosen)
    if len(scaling.tried) > _SHOWN:
        say(f"  and {len(scaling.tried) - _SHOWN} more that fit worse")
    if scaling.hopeless:
        warn(
            "the network is no better than chance with any of them. Check that its outputs are in the order of the "
            "class names (--classes), and that it was trained for such images. Otherwise give --scale, --mean and "
            "--std."
        )
    elif chosen is None:
        say(f"The best of these: {scaling.tried[0].way.options}")
    else:
        say(f"Chosen: {chosen.way.name} ({chosen.way.options}). If this is wrong, give these options yourself.")
        _tell_undecided([fit.way.name for fit in scaling.undecided])


def _tell_resizing(resizing: "Resizing") -> None:
    chosen = resizing.chosen
    say(f"The resize of the images was not given. The usual ways, tried on {chosen.images} images without noise")
    say("(poor ones on fewer):")
    _tell_fits(resizing.tried, [str(fit.resize) for fit in resizing.tried], chosen)
    say(f"Chosen: --resize {chosen.resize}. If this is wrong, give this option yourself.")
    _tell_undecided([str(fit.resize) for fit in resizing.undecided])


def _tell_fits(fits: "Sequence[Fit]", names: "Sequence[str]", chosen: "Fit | None") -> None:
    """A line per way: its quality, and its cost beside the chosen way on the same images."""
    width = max(map(len, names))
    for fit, name in zip(fits, names, strict=True):
        line = f"  {name.ljust(width)}  accuracy {fit.accuracy:6.1%}   NLL {fit.nll:6.3f}"
        if chosen is not None and fit is not chosen:
            accuracy, nll = fit.cost(chosen)
            line += f"   ({accuracy:+.1%}, {nll:+.3f} on {fit.images} images)"
        say(line)


def _tell_undecided(names: "Sequence[str]") -> None:
    if names:
        say(f"The images do not decide between it and {', '.join(names)}: the most usual way was taken.")


def _tell_cost(cost: "NoiseCost") -> None:
    if cost.times is not None:
        say(f"Cost of the noise: {cost.times:.1f} times the multiplications of the network without noise.")
    say(
        f"Without noise and with its own temperature: NLL {cost.without.nll_after:.4f}, accuracy "
        f"{cost.without.accuracy_after:.1%}. With noise: NLL {cost.noisy.nll_after:.4f}, accuracy "
        f"{cost.noisy.accuracy_after:.1%}."
    )
    if cost.without.nll_after <= cost.noisy.nll_after:
        say("Note: the noise does not make the model better here. To leave it out: --inference deterministic")
