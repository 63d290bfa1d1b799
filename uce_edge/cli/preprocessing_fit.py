"""What labelled images tell of somebody else's network: how it wants its pixels, and what noise costs it."""

from dataclasses import replace
from typing import TYPE_CHECKING

from uce_edge.cli.messages import say, warn

if TYPE_CHECKING:
    from uce_edge.datasets.splits import Split
    from uce_edge.metadata import Calibration, Metadata
    from uce_edge_export.source.preprocessing import Fit
    from uce_edge_export.source.third_party import ThirdParty

_SHOWN = 6  # ways


def fit_preprocessing(
    source: "ThirdParty", metadata: "Metadata", data: "Split", *, given: bool
) -> "tuple[ThirdParty, Metadata]":
    """Try the usual ways to feed pixels on labelled images, and take the one that fits where the user gave none.

    Args:
        source: The network.
        metadata: What its file will say, with the user's numbers, or the default ones.
        data: Labelled images that no promise is made from.
        given: Whether the user gave numbers, or an order of the channels. They are kept, and checked.
    """
    from uce_edge_export.options import ChannelOrder
    from uce_edge_export.source import preprocessing
    from uce_edge_export.source.third_party import take_bgr

    few = min(len(data), preprocessing.TRIED)
    if given:
        # A network that takes blue first has a graph that takes red first by now.
        own = preprocessing.try_one(source, metadata.image, ChannelOrder.RGB, data)
        if own.near_chance:
            warn(
                f"with the given --scale, --mean, --std and --channels, the network without noise is right for only "
                f"{own.accuracy:.1%} of {few} images, hardly better than chance. The usual ways to scale pixels give:"
            )
            fits = preprocessing.try_usual(source, metadata.image, data)
            _show(fits)
            if not _are_hopeless(fits):
                say(f"The best of these: {fits[0].way.options}")
        return source, metadata
    fits = preprocessing.try_usual(source, metadata.image, data)
    taken = preprocessing.choose(fits)
    say(f"The scaling of the pixels was not given. The usual ways, tried on {few} images without noise:")
    _show(fits)
    if _are_hopeless(fits):
        return source, metadata
    say(f"Chosen: {taken.way.name} ({taken.way.options}). If this is wrong, give these options yourself.")
    if taken.way.order is ChannelOrder.BGR:
        source = take_bgr(source)
    return source, replace(metadata, image=taken.way.of(metadata.image))


def tell_price(source: "ThirdParty", metadata: "Metadata", data: "Split", noisy: "Calibration") -> None:
    """Say what the noise of a file costs, and what it did to the images that its map was fitted on.

    Args:
        source: The network.
        metadata: What its file says, with its costs.
        data: These images.
        noisy: The map.
    """
    from uce_edge_export.graph.weight_layers import multiplications
    from uce_edge_export.source.preprocessing import plain_report

    with_noise, without = noisy.outcome, plain_report(source, metadata.image, data)
    plain = sum(map(multiplications, source.classifier.graph))
    if metadata.costs is not None and plain:
        all_passes = metadata.costs.macs_once + metadata.samples * metadata.costs.macs_per_pass
        times = all_passes / plain
        say(f"Cost of the noise: {times:.1f} times the multiplications of the network without noise.")
    say(
        f"Without noise and with its own temperature: NLL {without.nll_after:.4f}, accuracy "
        f"{without.accuracy_after:.1%}. With noise: NLL {with_noise.nll_after:.4f}, accuracy "
        f"{with_noise.accuracy_after:.1%}."
    )
    if without.nll_after <= with_noise.nll_after:
        say("Note: the noise does not make the model better here. To leave it out: --inference deterministic")


def _show(fits: "list[Fit]") -> None:
    shown = fits[:_SHOWN]
    width = max(len(fit.way.name) for fit in shown)
    for fit in shown:
        say(f"  {fit.way.name.ljust(width)}  accuracy {fit.accuracy:6.1%}   NLL {fit.nll:.3f}")
    if len(fits) > len(shown):
        say(f"  and {len(fits) - len(shown)} more that fit worse")


def _are_hopeless(fits: "list[Fit]") -> bool:
    """Whether no way is better than a guess, which is then said."""
    if not fits[0].near_chance:
        return False
    warn(
        "the network is no better than chance with any of them. Check that its outputs are in the order of the class "
        "names (--classes), and that it was trained for such images. Otherwise give --scale, --mean and --std."
    )
    return True
