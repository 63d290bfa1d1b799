"""Pixel scaling of third-party networks, chosen by labelled images."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge.calibration.maps import fit_map
from uce_edge.contract import Method
from uce_edge.datasets.splits import Split
from uce_edge.metadata import CalibrationReport, ImageSpec, Metadata
from uce_edge.runtime.providers import Device, open_session
from uce_edge_export.check.graph_reference import normalised
from uce_edge_export.graph.assembly import Classifier
from uce_edge_export.options import ChannelOrder
from uce_edge_export.source.third_party import ThirdParty, take_bgr

TRIED = 128
"""Images that a way is tried on, at most."""
_BLOCK = 16
_CLEARLY = 2.0  # standard errors that another way must be better by


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of pixels: (x / scale - mean) / std, channel order."""

    name: str
    scale: float = 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    """Like the mean, in the order red, green, blue, also where the network takes them in another one."""
    order: ChannelOrder = ChannelOrder.RGB

    def of(self, spec: ImageSpec) -> ImageSpec:
        """An image with these numbers."""
        return replace(spec, scale=self.scale, mean=self.mean, std=self.std)

    @property
    def options(self) -> str:
        """The command-line options."""
        mean, std = (",".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
        order = "" if self.order is ChannelOrder.RGB else f" --channels {self.order}"
        return f"--scale {self.scale:g} --mean {mean} --std {std}{order}"


DEFAULT = Preprocessing("0 to 1")
_USUAL = (DEFAULT, Preprocessing("-1 to 1", 255.0, (0.5,), (0.5,)), Preprocessing("0 to 255", 1.0))
_GRAY = (*_USUAL, Preprocessing("MNIST", 255.0, (0.1307,), (0.3081,)))
_RGB = (
    *_USUAL,
    Preprocessing("ImageNet", 255.0, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    Preprocessing("CIFAR-10", 255.0, (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
    Preprocessing("ImageNet's mean", 1.0, (123.68, 116.779, 103.939)),
)
_COLOUR = (*_RGB, *(replace(way, name=f"{way.name}, BGR", order=ChannelOrder.BGR) for way in _RGB))
"""The last one is Caffe's."""


@dataclass(frozen=True)
class Fit:
    """Quality of one way, without noise, at its best temperature."""

    way: Preprocessing
    accuracy: float
    nll: float
    near_chance: bool
    losses: npt.NDArray[np.float64]
    """The NLL of every image."""


@dataclass(frozen=True)
class Scaling:
    """The scaling of a network's pixels, and its alternatives."""

    images: int
    """Images that the ways were tried on."""
    tried: tuple[Fit, ...] = ()
    """The usual ways, the best first; none where a given way is good."""
    chosen: Fit | None = None
    """The way that was taken; None where one was given, or none is better than chance."""
    given: Fit | None = None
    """The way of the user, if there is one."""

    @property
    def hopeless(self) -> bool:
        """Whether no way is better than chance."""
        return bool(self.tried) and self.tried[0].near_chance


def fit_scaling(
    source: ThirdParty, metadata: Metadata, data: Split, *, given: bool
) -> tuple[ThirdParty, Metadata, Scaling]:
    """Choose the pixel scaling that fits labelled images, unless given.

    Args:
        source: The network.
        metadata: Of its file, with the given or the default scaling.
        data: Labelled images that prove no promise.
        given: Whether the user gave the scaling. It is kept, and compared with others if it is near chance.
    """
    images, spec = min(len(data), TRIED), metadata.image
    if given:
        own = try_one(source, spec, ChannelOrder.RGB, data)  # the graph of a BGR network reverses the channels itself
        others = try_usual(source, spec, data) if own.near_chance else []
        return source, metadata, Scaling(images, tuple(others), given=own)
    tried = try_usual(source, spec, data)
    chosen = choose(tried)
    if tried[0].near_chance:
        return source, metadata, Scaling(images, tuple(tried))
    if chosen.way.order is ChannelOrder.BGR:
        source = take_bgr(source)
    return source, replace(metadata, image=chosen.way.of(spec)), Scaling(images, tuple(tried), chosen)


def try_usual(source: ThirdParty, spec: ImageSpec, data: Split) -> list[Fit]:
    """Try the usual ways; the best comes first.

    Args:
        source: The network.
        spec: Of its images; the scaling is not used.
        data: Labelled images.
    """
    return _fits(source.classifier, spec, data, _COLOUR if source.channels == 3 else _GRAY)


def try_one(source: ThirdParty, spec: ImageSpec, order: ChannelOrder, data: Split) -> Fit:
    """Quality of a network with the scaling of a spec."""
    way = Preprocessing("as given", spec.scale, spec.mean, spec.std, order)
    return _fits(source.classifier, spec, data, [way])[0]


def choose(fits: list[Fit]) -> Fit:
    """The best way, if clearly better than the default."""
    best, default = fits[0], next(fit for fit in fits if fit.way == DEFAULT)
    gain = default.losses - best.losses
    error = float(gain.std(ddof=1)) / np.sqrt(len(gain)) if len(gain) > 1 else np.inf
    return best if float(gain.mean()) > _CLEARLY * error else default


def plain_report(source: ThirdParty, spec: ImageSpec, data: Split) -> CalibrationReport:
    """Quality of a network without noise, at its best temperature."""
    classifier = source.classifier
    # The graph of a network that takes BGR reverses the channels itself.
    logits = _logits(_session(classifier), classifier, spec, ChannelOrder.RGB, data)
    return fit_map(Method.TEMPERATURE, logits[None], data.labels).outcome


def _fits(classifier: Classifier, spec: ImageSpec, data: Split, ways: Iterable[Preprocessing]) -> list[Fit]:
    few = data.at_most(TRIED)
    fits = []
    session = _session(classifier)
    for way in ways:
        logits = _logits(session, classifier, way.of(spec), way.order, few)
        if not np.isfinite(logits).all():
            fits.append(Fit(way, 0.0, np.inf, True, np.full(len(few), np.inf)))
            continue
        fitted = fit_map(Method.TEMPERATURE, logits[None], few.labels)
        losses = _losses(logits / (fitted.temperature or 1.0), few.labels)
        accuracy = float((logits.argmax(1) == few.labels).mean())
        fits.append(Fit(way, accuracy, float(losses.mean()), fitted.outcome.near_chance, losses))
    return sorted(fits, key=lambda fit: fit.nll)


def _losses(logits: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    shifted = logits - logits.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]
    return np.asarray(losses, np.float64)


def _session(classifier: Classifier) -> Any:
    return open_session(ir.to_proto(classifier.model).SerializeToString(), Device.CPU)


def _logits(
    session: Any, classifier: Classifier, spec: ImageSpec, order: ChannelOrder, data: Split
) -> npt.NDArray[np.float64]:
    """The logits of the network without noise, block by block."""
    name = session.get_inputs()[0].name
    axis = 3 if classifier.channels_last else 1
    blocks = []
    for start in range(0, len(data), _BLOCK):
        pixels = normalised(classifier, spec, data.images[start : start + _BLOCK])
        if order is ChannelOrder.BGR:
            pixels = np.ascontiguousarray(np.flip(pixels, axis))
        blocks.append(session.run(None, {name: pixels})[0])
    return np.concatenate(blocks).astype(np.float64)
