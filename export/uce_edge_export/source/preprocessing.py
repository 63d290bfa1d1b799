"""Scaling and resize of third-party networks, chosen by labelled images."""

from dataclasses import dataclass, replace

import onnx_ir as ir

from uce_edge._util.progress import progress
from uce_edge.calibration.maps import fit_map
from uce_edge.contract import Method, ResizeFilter, ResizeMode
from uce_edge.datasets.splits import Split
from uce_edge.images.resize import STRETCH, Resize
from uce_edge.metadata import CalibrationReport, ImageSpec, Metadata
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.providers import open_session
from uce_edge_export.options import ChannelOrder
from uce_edge_export.source.third_party import ThirdParty, take_bgr
from uce_edge_export.source.trials import Fit, Preprocessing, Round, Trials, Way, choose, run

_SCALE_ROUNDS = (Round(32, 99), Round(96, 5), Round(256, 3))
_RESIZE_ROUNDS = (Round(64, 99), Round(256, 4), Round(1000, 3))
"""At most 5,700 runs of the network in all: 1,400 and 3,500, and 800 to compare scalings with another resize."""

DEFAULT = Preprocessing("0 to 1")
_USUAL = (
    DEFAULT,
    Preprocessing("-1 to 1", 255.0, (0.5,), (0.5,)),
    Preprocessing("0 to 255", 1.0),
    Preprocessing("(x - 127) / 128", 1.0, (127.0,), (128.0,)),
    Preprocessing("-0.5 to 0.5", 255.0, (0.5,)),
)
_GRAY = (*_USUAL, Preprocessing("MNIST", 255.0, (0.1307,), (0.3081,)))
_RGB = (
    *_USUAL,
    Preprocessing("ImageNet", 255.0, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    Preprocessing("CIFAR-10", 255.0, (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
    Preprocessing("CLIP", 255.0, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    Preprocessing("ImageNet's mean", 1.0, (123.68, 116.779, 103.939)),
    Preprocessing("ImageNet's mean, over 58.8", 1.0, (123.68, 116.779, 103.939), (58.8,)),
)
_COLOUR = (*_RGB, *(replace(way, name=f"{way.name}, BGR", order=ChannelOrder.BGR) for way in _RGB))
"""Caffe's networks take the last ones."""
_CROPS = (0.875, 0.9, 0.95, 1.0)
"""The usual shares of the shorter side that are cut out: 256 for 224, and so on."""


@dataclass(frozen=True)
class Scaling:
    """The scaling of a network's pixels, and its alternatives."""

    images: int
    """Images that the best ways were tried on."""
    tried: tuple[Fit, ...] = ()
    """The usual ways, the best first, or the one to take instead of a given way; none where that is good."""
    chosen: Fit | None = None
    """The way that was taken; None where one was given, or none is better than chance."""
    given: Fit | None = None
    """The way of the user, if there is one."""
    undecided: tuple[Fit, ...] = ()
    """Other ways that the images do not tell from the chosen one."""

    @property
    def hopeless(self) -> bool:
        """Whether no way is better than chance."""
        return bool(self.tried) and self.tried[0].near_chance


@dataclass(frozen=True)
class Resizing:
    """How a network's images are resized, and the alternatives."""

    tried: tuple[Fit, ...]
    """The usual ways, the best first; ways that give the same pixels are there once."""
    chosen: Fit
    """The way that was taken."""
    undecided: tuple[Fit, ...] = ()
    """Other ways that the images do not tell from the chosen one."""


@dataclass(frozen=True)
class FittedPixels:
    """A network with its scaling and resize."""

    source: ThirdParty
    metadata: Metadata
    scaling: Scaling
    resizing: Resizing | None
    """None where the resize was given, or the images were never resized."""


def fit_pixels(
    source: ThirdParty, metadata: Metadata, data: Split, *, scaling_given: bool, resize_given: bool
) -> FittedPixels:
    """Choose the scaling and the resize that fit labelled images, unless given.

    The scaling is chosen first, then the resize; with another resize, the best scalings are compared again.

    Args:
        source: The network.
        metadata: Of its file, with the given or the default scaling and resize.
        data: Labelled images that prove no promise.
        scaling_given: Whether the user gave the scaling. It is kept, and compared with others if it is near chance.
        resize_given: Whether the user gave the resize. It is kept.
    """
    spec = metadata.image
    trials = Trials(source.classifier, spec, data)
    scaling = _given_scaling(source, spec, trials) if scaling_given else _fit_scaling(source, spec, trials)
    fit = scaling.given or scaling.chosen
    resizing = None
    if fit is not None and not fit.near_chance and not resize_given and data.originals is not None:
        resizing = _fit_resize(fit.way, spec, trials)
        resize = resizing.chosen.resize
        if resize != spec.resize and scaling.chosen is not None:
            scaling = _compare_again(source, scaling, resize, trials)
        spec = replace(spec, resize=resize)
    chosen = scaling.chosen
    if chosen is not None:
        spec = chosen.way.of(spec)
        source = take_bgr(source) if chosen.way.order is ChannelOrder.BGR else source
    return FittedPixels(source, replace(metadata, image=spec), scaling, resizing)


def usual_scalings(channels: int) -> tuple[Preprocessing, ...]:
    """The usual ways to scale, the most usual first."""
    return _COLOUR if channels == 3 else _GRAY


def usual_resizes(spec: ImageSpec) -> tuple[Resize, ...]:
    """The usual ways to resize; the first is the default."""
    longer = max(spec.height, spec.width)
    by = (ResizeFilter.BICUBIC, ResizeFilter.BILINEAR)
    crops = [Resize(ResizeMode.CROP, int(longer / share), filter_) for share in _CROPS for filter_ in by]
    return STRETCH, *crops, Resize(filter=ResizeFilter.BICUBIC), *(Resize(ResizeMode.PAD, filter=one) for one in by)


def plain_report(source: ThirdParty, spec: ImageSpec, data: Split) -> CalibrationReport:
    """Quality of a network without noise, at its best temperature."""
    classifier = source.classifier
    session = open_session(ir.to_proto(classifier.model).SerializeToString(), Device.CPU)
    with progress("measuring without noise", len(data), unit="images") as advance:
        # The graph of a network that takes BGR reverses the channels itself.
        logits = run(session, classifier, spec, ChannelOrder.RGB, data, advance)
    return fit_map(Method.TEMPERATURE, logits[None], data.labels).outcome


def _fit_scaling(source: ThirdParty, spec: ImageSpec, trials: Trials) -> Scaling:
    ways = [Way(scaling, spec.resize) for scaling in usual_scalings(source.channels)]
    fits = trials.narrow(ways, _SCALE_ROUNDS)
    if fits[0].near_chance:
        return Scaling(fits[0].images, tuple(fits))
    chosen, undecided = choose(fits, ways)
    return Scaling(fits[0].images, tuple(fits), chosen, undecided=undecided)


def _given_scaling(source: ThirdParty, spec: ImageSpec, trials: Trials) -> Scaling:
    # The graph of a BGR network reverses the channels itself.
    own = trials.fit(
        Way(Preprocessing("as given", spec.scale, spec.mean, spec.std), spec.resize), _SCALE_ROUNDS[-1].images
    )
    if not own.near_chance:
        return Scaling(own.images, given=own)
    other = _fit_scaling(source, spec, trials)
    first = () if other.chosen is None else (other.chosen,)
    return Scaling(own.images, (*first, *(fit for fit in other.tried if fit is not other.chosen)), given=own)


def _fit_resize(scaling: Preprocessing, spec: ImageSpec, trials: Trials) -> Resizing:
    ways = [Way(scaling, resize) for resize in usual_resizes(spec)]
    fits = trials.narrow(ways, _RESIZE_ROUNDS)
    return Resizing(tuple(fits), *choose(fits, ways))


def _compare_again(source: ThirdParty, scaling: Scaling, resize: Resize, trials: Trials) -> Scaling:
    """Compare the best scalings with another resize."""
    ways = [Way(one, resize) for one in usual_scalings(source.channels)]
    last = [fit.way for fit in scaling.tried if fit.images == scaling.images]
    best = trials.narrow([way for way in ways if way.scaling in last], _SCALE_ROUNDS[-1:])
    others = tuple(fit for fit in scaling.tried if fit.way not in last)
    chosen, undecided = choose(best, ways)
    untold = tuple(fit for fit in scaling.undecided if fit in others)
    return Scaling(scaling.images, (*best, *others), chosen, undecided=(*undecided, *untold))
