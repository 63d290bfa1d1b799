"""Parity gate: an exported file must match its original model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from uce_edge import contract
from uce_edge._util.progress import progress, working
from uce_edge.contract import Inference, NoiseKind, Posterior
from uce_edge.errors import UceEdgeError
from uce_edge.metadata import Metadata
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.model import Model
from uce_edge.runtime.providers import open_session
from uce_edge.runtime.scheduler import MAX_MEMORY
from uce_edge_export.noise import noise_table
from uce_edge_export.publish.draft import Draft

TOLERANCE = 1e-4  # on logits of unit scale
MOMENTS_TOLERANCE = 0.25  # on mean probabilities, of which 32 exact passes leave about 0.05 open
_Z_LIMIT = 6.0  # two-sided, over some dozens of comparisons: a false alarm in a hundred million exports
_STATISTIC_PASSES = 32
_CAUSE_PASSES = 8  # under other noise, that show why all passes of a file are equal
_STRONG = 1000  # times the noise of a file
_EARLIER_LOOKS = (8, 16)  # passes after which a file that is clearly right needs no more of them

Pixels = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]
Reference = Callable[[Pixels, list[FloatArray] | None], FloatArray]
"""The original model: logits [samples, batch, classes] of images under the layers' noise [samples, size], or none."""


@dataclass(frozen=True)
class Parity:
    """The measurements of the gate."""

    largest_difference: float
    """Largest |logit difference| to the original under the same noise, on logits of unit scale; for moments, of a mean
    probability to that of exact passes."""
    largest_z: float | None
    """Largest deviation of a mean probability from that under ordinary random noise, in standard errors."""


class ParityError(UceEdgeError):
    """The file does not do what the model does."""


def check(
    draft: Draft,
    images: Pixels,
    reference: Reference,
    sizes: list[int],
    fed: bytes | None,
    tolerance: float = TOLERANCE,
) -> Parity:
    """Run a contract file against its original model; see `_check`."""
    try:
        with working("checking parity"):
            return _check(draft.session, draft.metadata, images, reference, sizes, fed, tolerance)
    except UceEdgeError:
        raise
    except Exception as error:  # ONNX Runtime has a class per failure, and all mean that the graph does not run
        reason = str(error).splitlines()[0]
        raise ParityError(
            f"The exported graph does not run: {reason} Nothing was written.", "parity.not-running"
        ) from error


def check_again(draft: Draft, images: Pixels) -> None:
    """Require finite answers that do not depend on the batch."""
    session, metadata = draft.session, draft.metadata
    if not metadata.takes_seeds or not metadata.noise.replays:
        return
    seeds = np.array([1, contract.SEED_SPACE - 1], np.int32)
    ours = session.run([contract.LOGITS], {contract.IMAGE: images, contract.SEEDS: seeds})[0]
    _require(bool(np.isfinite(ours).all()), f"its answers are not finite in {metadata.precision}", "not-finite")
    _check_neighbours(session, metadata, images, seeds)


def check_members(ensemble: Model, members: Sequence[Model], images: Pixels) -> Parity:
    """Require that every pass equals that of its member alone.

    Args:
        ensemble: The file.
        members: The files of its members, in order.
        images: Images as the file takes them.
    """
    samples = 1 if ensemble.metadata.inference is Inference.DETERMINISTIC else 2
    ours = ensemble.logits(images, samples)
    _require(bool(np.isfinite(ours).all()), "its answers are not finite", "not-finite")
    if ensemble.metadata.noise is NoiseKind.RANDN:  # no pass can be repeated
        return Parity(math.nan, None)
    each = [(ours[i :: len(members)], member.logits(images, samples)) for i, member in enumerate(members)]
    return Parity(max(_compare(*both) for both in each), None)


def _check(
    session: Any,
    metadata: Metadata,
    images: Pixels,
    reference: Reference,
    sizes: list[int],
    fed: bytes | None,
    tolerance: float,
) -> Parity:
    """Run a contract file against its original model.

    Args:
        session: Of the file.
        metadata: Of the file.
        images: At least two images as the file takes them.
        reference: The model it was made from, computed independently.
        sizes: Outputs per image of the noisy layers, in graph order.
        fed: The same model with its noise as graph inputs; None for a deterministic file.
        tolerance: The allowed difference, on logits of unit scale.
    """
    if metadata.inference is Inference.DETERMINISTIC:
        ours = session.run([contract.LOGITS], {contract.IMAGE: images})[0]
        return Parity(_compare(ours, reference(images, None), tolerance), None)
    assert fed is not None
    fed_session = open_session(fed, Device.CPU, spin=False)

    def with_noise(batch: Pixels, noises: list[FloatArray]) -> FloatArray:
        feed: dict[str, npt.NDArray[Any]] = {f"noise.{i}": values for i, values in enumerate(noises)}
        feed |= {contract.IMAGE: batch, contract.SEEDS: np.zeros(len(noises[0]), np.int32)}
        return fed_session.run([contract.LOGITS], feed)[0]  # type: ignore[no-any-return]

    def from_file(batch: Pixels, seeds: npt.NDArray[np.int32]) -> FloatArray:
        if metadata.noise is NoiseKind.INPUT:
            return with_noise(batch, noise_table.layer_noise(seeds.astype(np.int64), plan))
        return session.run([contract.LOGITS], {contract.IMAGE: batch, contract.SEEDS: seeds})[0]  # type: ignore[no-any-return]

    def in_turns(passes: npt.NDArray[np.int32], call: Callable[[npt.NDArray[np.int32]], FloatArray]) -> FloatArray:
        """Logits of many passes on two images, split by memory."""
        each = 1 if metadata.costs is None else metadata.costs.bytes_per_pass or 1
        step = max(1, MAX_MEMORY * 2**20 // (2 * each))
        parts = []
        with progress("checking parity", len(passes), unit="passes") as advance:
            for start in range(0, len(passes), step):
                parts.append(call(passes[start : start + step]))
                advance(len(parts[-1]))
        return np.concatenate(parts)

    rng = np.random.default_rng(1)

    def under_random_noise(passes: npt.NDArray[np.int32]) -> FloatArray:
        drawn = [rng.standard_normal((len(passes), size), np.float32) for size in sizes]
        return with_noise(images[:2], drawn)

    require_varying = partial(_require_varying, images=images, with_noise=with_noise, sizes=sizes)
    plan = noise_table.Plan(tuple(sizes))
    seeds = np.array([1, contract.SEED_SPACE - 1], np.int32)
    noises = noise_table.layer_noise(seeds.astype(np.int64), plan)
    one = images[:1]
    truth = reference(one, noises)
    ours = from_file(one, seeds)
    if metadata.inference is Inference.MOMENTS:
        _compare(with_noise(one, noises), truth, tolerance)
        exact = partial(in_turns, call=under_random_noise)
        return _check_moments(session, metadata, images, from_file, exact, require_varying)
    if metadata.noise is NoiseKind.RANDN:
        difference = _compare(with_noise(one, noises), truth, tolerance)
        _require(not np.array_equal(ours, from_file(one, seeds)), "two calls give the same noise", "replayed")
    else:
        difference = _compare(ours, truth, tolerance)
        split = np.concatenate([from_file(one, seeds[:1]), from_file(one, seeds[1:])])
        alike = _same(contract.LOGITS, ours, split, metadata)
        _require(alike, "passes split over two calls differ from the same passes in one call", "split")
        _require(np.array_equal(ours, from_file(one, seeds)), "one seed gives two different answers", "not-replayed")
    if not _vary(ours):  # two masks of few values are often equal, many are not
        several = in_turns(np.arange(_STATISTIC_PASSES, dtype=np.int32), partial(from_file, images[:2]))
        require_varying(several)
    if metadata.noise.replays:
        _check_neighbours(session, metadata, images, seeds)
    z = _statistic(partial(in_turns, call=partial(from_file, images[:2])), partial(in_turns, call=under_random_noise))
    return Parity(difference, z)


def _check_moments(
    session: Any,
    metadata: Metadata,
    images: Pixels,
    from_file: Callable[[Pixels, npt.NDArray[np.int32]], FloatArray],
    exact: Callable[[npt.NDArray[np.int32]], FloatArray],
    require_varying: Callable[[FloatArray], None],
) -> Parity:
    """Require mean probabilities near those of exact passes."""
    two, seeds = images[:2], np.arange(_STATISTIC_PASSES, dtype=np.int32)
    ours = from_file(two, seeds)
    _require(bool(np.isfinite(ours).all()), "means or variances are not finite", "not-finite")
    require_varying(ours)
    if metadata.noise.replays:
        split = np.concatenate([from_file(two, seeds[:3]), from_file(two, seeds[3:])])
        _require(np.array_equal(ours, split), "passes split over two calls differ from those in one call", "split")
        _require(np.array_equal(ours, from_file(two, seeds)), "one seed gives two different answers", "not-replayed")
        _check_neighbours(session, metadata, images, seeds[:2])
    difference = float(np.abs(softmax(ours).mean(0) - softmax(exact(seeds)).mean(0)).max())
    _require(
        difference <= MOMENTS_TOLERANCE,
        f"its mean probabilities differ from those of {_STATISTIC_PASSES} exact passes by {difference:.2f} (allowed: "
        f"{MOMENTS_TOLERANCE:g}): mean and variance do not describe this network. Use --inference mc, or --sample-from "
        "an earlier layer",
        "moments",
    )
    return Parity(difference, None)


def _require_varying(
    ours: FloatArray,
    images: Pixels,
    with_noise: Callable[[Pixels, list[FloatArray]], FloatArray],
    sizes: list[int],
) -> None:
    """Reject a file whose passes are all equal.

    Args:
        ours: The logits of some passes.
        images: The images of the logits.
        with_noise: The network under given noise.
        sizes: How much of it every layer takes.
    """
    if _vary(ours):
        return
    rng = np.random.default_rng(2)
    drawn = [rng.standard_normal((_CAUSE_PASSES, size), np.float32) for size in sizes]
    other = with_noise(images[:2], drawn)
    if _vary(other):
        cause, code = "the noise is missing: the network varies under other noise. Please report this", "noise-missing"
    elif _vary(with_noise(images[:2], [_STRONG * values for values in drawn])):
        code = "noise-weak"
        cause = (
            f"the noise is too weak to be seen; {_STRONG:,} times as much is seen. Use larger rates (--p, --dropout), "
            "or noise in more layers"
        )
    elif np.allclose(other[:, 0], other[:, 1], atol=1e-6 * float(np.abs(other).max())):
        code = "network-constant"
        cause = (
            "the network gives every image the same answer, with noise and without. Its units are dead or saturated: "
            "check what it is fed (--scale, --mean, --std)"
        )
    else:
        code = "noise-blocked"
        cause = (
            "the noise does not reach the answer: the inputs of the noisy layers are 0, or units behind "
            "them are dead or saturated. Check what the network is fed (--scale, --mean, --std), or put the noise into "
            "other layers (--noisy, --p PATTERN=RATE)"
        )
    _require(False, f"two seeds give the same answer, because {cause}", code)


def _check_neighbours(session: Any, metadata: Metadata, images: Pixels, seeds: npt.NDArray[np.int32]) -> None:
    """Require the same answer alone and in a batch."""
    outputs = contract.outputs_of(metadata.outputs)
    names = [output.name for output in outputs]
    axes = [output.dimensions.index("batch") for output in outputs]
    together = session.run(names, {contract.IMAGE: images, contract.SEEDS: seeds})
    for i in range(len(images)):
        alone = session.run(names, {contract.IMAGE: images[i : i + 1], contract.SEEDS: seeds})
        same = all(
            _same(name, one, many.take([i], axis), metadata)
            for name, one, many, axis in zip(names, alone, together, axes, strict=True)
        )
        _require(same, "an image's answer depends on its neighbours in the batch", "batch")


def _same(name: str, alone: FloatArray, together: FloatArray, metadata: Metadata) -> bool:
    """Equal bits; values without noise may differ by rounding."""
    if name == contract.NOVELTY_SCORE:
        return np.allclose(alone, together, rtol=1e-5, equal_nan=True)
    # Their networks run without noise, and runtimes choose kernels by the batch.
    if metadata.posterior is Posterior.LAPLACE or metadata.inference is Inference.MOMENTS:
        return np.allclose(alone, together, rtol=1e-4, atol=1e-5, equal_nan=True)
    return name == contract.NOVELTY or np.array_equal(alone, together)  # a function of the score alone


def _vary(logits: FloatArray) -> bool:
    """Whether two passes differ by more than rounding."""
    return not np.allclose(logits, logits[:1], atol=1e-6 * float(np.abs(logits).max()))


def _compare(ours: FloatArray, theirs: FloatArray, tolerance: float = TOLERANCE) -> float:
    scale = max(float(theirs.std()), 1e-6)
    difference = float(np.abs(ours - theirs).max()) / scale
    # Written so that NaN fails, too.
    _require(
        difference <= tolerance,
        f"its logits differ from the original's by {difference:.2g} under the same noise (allowed: {tolerance:.2g})",
        "logits",
    )
    return difference


def _statistic(
    from_file: Callable[[npt.NDArray[np.int32]], FloatArray], random: Callable[[npt.NDArray[np.int32]], FloatArray]
) -> float:
    """Compare mean probabilities with random noise, in standard errors.

    A shift of 6 standard errors after 32 passes is one of 3 after 8, give or take 1. So a file that is below 2 then is
    right, and most passes of a large network are saved; only the last look can refuse a file.

    Args:
        from_file: Logits of some seeds.
        random: Logits of as many passes under random noise.
    """
    ours, theirs = [], []
    done, z = 0, math.inf
    for count in (*_EARLIER_LOOKS, _STATISTIC_PASSES):
        seeds = np.arange(done, count, dtype=np.int32)
        ours.append(softmax(from_file(seeds)))
        theirs.append(softmax(random(seeds)))
        z, done = _distance(np.concatenate(ours), np.concatenate(theirs)), count
        if count < _STATISTIC_PASSES and z <= _Z_LIMIT * math.sqrt(count / _STATISTIC_PASSES) - 1:
            return z
    reason = f"its mean probabilities are {z:.1f} standard errors from those under random noise"
    _require(z <= _Z_LIMIT, reason, "statistic")
    return z


def _distance(p: npt.NDArray[np.float64], q: npt.NDArray[np.float64]) -> float:
    """Largest difference of two means over passes, in standard errors."""
    spread = np.sqrt((p.var(0, ddof=1) + q.var(0, ddof=1)) / len(p))
    # Where no pass moves the probability by 1e-4 there is no statistic, only rounding.
    return float((np.abs(p.mean(0) - q.mean(0)) / np.maximum(spread, 1e-4)).max())


def softmax(logits: FloatArray) -> npt.NDArray[np.float64]:
    """Over the last axis, in double precision."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)  # type: ignore[no-any-return]


def _require(holds: bool, reason: str, code: str) -> None:
    if not holds:
        raise ParityError(f"The exported graph failed its check: {reason}. Nothing was written.", f"parity.{code}")
