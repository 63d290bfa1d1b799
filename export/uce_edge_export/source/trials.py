"""Try ways to prepare pixels, on more and more labelled images."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from uce_edge._util.progress import progress
from uce_edge.calibration.maps import fit_map
from uce_edge.contract import Method
from uce_edge.datasets import labelled
from uce_edge.datasets.splits import Split
from uce_edge.errors import ImageError
from uce_edge.images.resize import STRETCH, Resize
from uce_edge.metadata import ImageSpec
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.providers import open_session
from uce_edge_export.check.graph_reference import normalised
from uce_edge_export.graph.assembly import Classifier
from uce_edge_export.options import ChannelOrder

_BLOCK = 16  # images between two steps of a progress bar
_ORDER_SEED = 20200713
_CLEARLY = 2.0  # standard errors of the paired NLL by which a way is clearly worse
_EQUAL = 0.005  # NLL that makes no difference to a user, however sure it is


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


class Way(NamedTuple):
    """One way to prepare pixels."""

    scaling: Preprocessing
    resize: Resize = STRETCH


class Round(NamedTuple):
    """So many images, for at most so many ways."""

    images: int
    ways: int


@dataclass(frozen=True, eq=False)
class Fit:
    """Quality of one way, without noise, at its best temperature."""

    way: Preprocessing
    losses: npt.NDArray[np.float64]
    """The NLL of every image that it was tried on, in the order of all trials."""
    hits: npt.NDArray[np.bool_]
    """Whether the label of every image is right."""
    near_chance: bool = False
    resize: Resize = STRETCH

    @property
    def images(self) -> int:
        """Images that it was tried on: poor ways get fewer."""
        return len(self.losses)

    @property
    def accuracy(self) -> float:
        """Share of right labels."""
        return float(self.hits.mean())

    @property
    def nll(self) -> float:
        """Mean NLL."""
        return float(self.losses.mean())

    def cost(self, other: "Fit") -> tuple[float, float]:
        """Accuracy and NLL beyond those of another, on the same images."""
        both = min(self.images, other.images)
        accuracy = float(self.hits[:both].mean() - other.hits[:both].mean())
        return accuracy, float(self.losses[:both].mean() - other.losses[:both].mean())

    def errors_behind(self, other: "Fit") -> float:
        """Standard errors by which its NLL is above another's."""
        both = min(self.images, other.images)
        with np.errstate(invalid="ignore"):  # ways without finite answers
            behind = self.losses[:both] - other.losses[:both]
            mean = float(behind.mean())
            error = float(behind.std(ddof=1)) / np.sqrt(both) if both > 1 else np.inf
        if mean == 0 or np.isnan(mean):
            return 0.0
        return mean / error if np.isfinite(mean) and error > 0 else float(np.copysign(np.inf, mean))


class Choice(NamedTuple):
    """The way that was taken, and those that the images do not tell from it."""

    chosen: Fit
    undecided: tuple[Fit, ...]


def choose(fits: Sequence[Fit], usual: Sequence[Way]) -> Choice:
    """The most usual way that is not clearly worse than the best.

    Args:
        fits: The best first.
        usual: All ways, the most usual first.
    """
    best = fits[0]
    last = _good([fit for fit in fits if fit.images == best.images], best)
    chosen = min(last, key=lambda fit: usual.index(Way(fit.way, fit.resize)))
    return Choice(chosen, tuple(fit for fit in _good(_good(fits, best), chosen) if fit is not chosen))


class Trials:
    """A network without noise, and its logits so far."""

    def __init__(self, classifier: Classifier, spec: ImageSpec, data: Split) -> None:
        """Open the network.

        Args:
            classifier: The network.
            spec: Of its images, as `data` has them; the scaling is not used.
            data: Labelled images.
        """
        self._classifier, self._spec = classifier, spec
        self._session = open_session(ir.to_proto(classifier.model).SerializeToString(), Device.CPU)
        self._data = data.take(np.random.default_rng(_ORDER_SEED).permutation(len(data)))
        self._logits: dict[Way, npt.NDArray[np.float64]] = {}

    def narrow(self, ways: Sequence[Way], rounds: Sequence[Round]) -> list[Fit]:
        """Try all ways on few images, and those that are not clearly worse on more.

        Args:
            ways: The most usual first.
            rounds: Of more and more images. The most usual way that is not clearly worse is in all of them.

        Returns:
            The best first. Those that were dropped follow, the last ones first. Of ways with equal answers, the first
            of `ways` alone is there.
        """
        dropped: list[Fit] = []
        alive = list(ways)
        for number, (images, _) in enumerate(rounds):
            fits = self._fits(alive, images)
            if number == 0:
                fits = _distinct(fits)
            ranked = sorted(fits, key=lambda fit: fit.nll)
            if number + 1 == len(rounds) or images >= len(self._data):
                return ranked + dropped
            kept = _kept(fits, ranked, rounds[number + 1].ways)
            dropped = [fit for fit in ranked if fit not in kept] + dropped
            alive = [Way(fit.way, fit.resize) for fit in fits if fit in kept]
        raise AssertionError("at least one round")

    def fit(self, way: Way, images: int) -> Fit:
        """Quality on so many images.

        Raises:
            ImageError: One of them cannot be resized in this way.
        """
        with self._progress([way], images) as advance:
            return self._fit(way, images, advance)

    def _fit(self, way: Way, images: int, advance: Callable[[int], None]) -> Fit:
        logits, labels = self._on(way, images, advance), self._data.labels[:images]
        if not np.isfinite(logits).all():
            return Fit(way.scaling, np.full(len(labels), np.inf), np.zeros(len(labels), bool), True, way.resize)
        fitted = fit_map(Method.TEMPERATURE, logits[None], labels)
        losses = _losses(logits / (fitted.temperature or 1.0), labels)
        return Fit(way.scaling, losses, logits.argmax(1) == labels, fitted.outcome.near_chance, way.resize)

    def _fits(self, ways: Sequence[Way], images: int) -> list[Fit]:
        fits = []
        with self._progress(ways, images) as advance:
            for way in ways:
                try:
                    fits.append(self._fit(way, images, advance))
                except ImageError:  # too narrow to be cut out of: the others are left
                    if way.resize == self._spec.resize:
                        raise
        return fits

    def _progress(self, ways: Sequence[Way], images: int) -> AbstractContextManager[Callable[[int], None]]:
        runs = sum(len(self._unknown(way, images)) for way in ways)
        return progress("trying ways to prepare pixels", runs, unit="images")

    def _unknown(self, way: Way, images: int) -> range:
        """The numbers of the images without logits."""
        return range(len(self._logits.get(way, ())), min(images, len(self._data)))

    def _on(self, way: Way, images: int, advance: Callable[[int], None]) -> npt.NDArray[np.float64]:
        """The logits of the first images, of which some may be known."""
        spec = replace(self._spec, resize=way.resize)
        unknown = self._unknown(way, images)
        parts = [self._logits[way]] if way in self._logits else []
        for start in unknown[::_BLOCK]:
            data = self._data.take(np.arange(start, min(start + _BLOCK, unknown.stop)))
            data = data if spec == self._spec else labelled.resized(data, spec, shown=False)
            parts.append(run(self._session, self._classifier, way.scaling.of(spec), way.scaling.order, data, advance))
        self._logits[way] = np.concatenate(parts)
        return self._logits[way][:images]


def run(
    session: Any,
    classifier: Classifier,
    spec: ImageSpec,
    order: ChannelOrder,
    data: Split,
    advance: Callable[[int], None],
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
        advance(len(pixels))
    return np.concatenate(blocks).astype(np.float64)


def _good(fits: Sequence[Fit], best: Fit) -> list[Fit]:
    """Those that are not clearly worse than another."""
    return [fit for fit in fits if fit.errors_behind(best) <= _CLEARLY or fit.cost(best)[1] <= _EQUAL]


def _kept(usual: Sequence[Fit], ranked: Sequence[Fit], ways: int) -> list[Fit]:
    """The most usual and the best by turns, without those that are clearly worse."""
    turns = zip(_good(usual, ranked[0]), _good(ranked, ranked[0]), strict=True)
    return list(dict.fromkeys(fit for turn in turns for fit in turn))[:ways]


def _distinct(fits: Sequence[Fit]) -> list[Fit]:
    """Without ways whose answers an earlier one gives as well."""
    known: dict[bytes, Fit] = {}
    for fit in fits:
        known.setdefault(fit.losses.tobytes() if np.isfinite(fit.losses).all() else str(id(fit)).encode(), fit)
    return list(known.values())


def _losses(logits: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    shifted = logits - logits.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]
    return np.asarray(losses, np.float64)
