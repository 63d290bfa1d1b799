"""A calibrated Bayesian classifier loaded from one ONNX file."""

import logging
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from PIL import Image

from uce_edge import contract, models
from uce_edge._util.prefetch import cores
from uce_edge.contract import Precision
from uce_edge.errors import (
    DeviceWarning,
    ImageError,
    IntegrityWarning,
    ModelFileError,
    UceEdgeError,
    argument,
    expected,
)
from uce_edge.images import loader
from uce_edge.images.resize import STRETCH
from uce_edge.integrity import self_test as probe
from uce_edge.integrity import verification
from uce_edge.integrity.digests import of_file
from uce_edge.integrity.self_test import Pattern, Probe, SelfTest
from uce_edge.metadata import Metadata
from uce_edge.rejection.rule import REASONS, Decision, Rejecting, RejectRule
from uce_edge.runtime import device_choice, graph_check
from uce_edge.runtime.answers import Answer, each_answer
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.prediction import ImageLike, ImagePrediction, Prediction
from uce_edge.runtime.providers import CARD_MEMORY, CPU, open_session
from uce_edge.runtime.request import GuaranteeWarning, Plan, Request, SamplesWarning, resolve, rule_of, seeds_of
from uce_edge.runtime.scheduler import Calls, check_memory
from uce_edge.runtime.session import Runner
from uce_edge.runtime.trunk_split import Halves, OpenSession, open_halves

_LOG = logging.getLogger(__name__)

__all__ = ["GuaranteeWarning", "Model", "SamplesWarning"]


class Model:
    """A uce-edge model file, ready to predict.

    Example:
        >>> model = Model("digits.onnx")
        >>> prediction = model.predict(["three.png"], reject=0.3)
        >>> prediction.labels, prediction.uncertainty.round(2).tolist(), prediction.decisions
        (['3'], [0.0], [<Decision.ACCEPT: 'accept'>])
    """

    def __init__(
        self,
        path: str | Path | bytes | None = None,
        device: Device | str = Device.AUTO,
        *,
        threads: int | None = None,
        max_memory: int | None = None,
        spin: bool = True,
        verify: bool = True,
    ) -> None:
        """Load a file.

        Args:
            path: The file, or its content; None for the bundled model.
            device: Where to run it. `cuda:1` names a card, and `cuda,gpu_mem_limit=2000000000` adds options of its
                execution provider.
            threads: The number of threads of ONNX Runtime. `answers` uses as many more to decode files. None for all
                cores.
            max_memory: The approximate memory of one call, in megabytes; None for `scheduler.MAX_MEMORY`. Images and
                passes are split over calls, so that memory does not grow with their number.
            spin: Whether the threads of ONNX Runtime keep their cores busy while they wait for each other. False is
                better for many files, because the cores can decode the next files meanwhile.
            verify: Whether to refuse a file that was changed after it was published, and a device other than the CPU
                that answers the file's own probe images differently. False only warns.
        """
        started = time.monotonic()
        path = models.bundled() if path is None else path
        self._content = path if isinstance(path, bytes) else None
        self.path = "the model" if isinstance(path, bytes) else str(path)
        self.threads = threads
        check_memory(max_memory)
        content = path if isinstance(path, bytes) else verification.read(Path(path))
        self.sha256 = of_file(content)
        """The digest of the bytes that were checked and loaded; the file may have changed since."""
        self.digests = verification.check(Path(self.path), content, verify=verify)
        """The published digests that this file matches; None for a file without digests."""
        self._open(content, device, spin, max_memory)
        self._warn_unverified(verify)
        if verify and self.provider != CPU:
            self._check_device(content, device_choice.parse(device).device, spin, max_memory)
        _LOG.info(
            "Loaded %s (%s, %d passes) in %.2f s; it runs on %s with %s threads.", self.path, self.metadata.inference,
            self.metadata.samples, time.monotonic() - started, self.provider, threads or cores(),
        )  # fmt: skip

    def content(self) -> bytes:
        """The bytes of the file, unchanged since it was loaded.

        Raises:
            IntegrityError: The file was replaced since.
        """
        return verification.read_again(Path(self.path), self.sha256) if self._content is None else self._content

    def _open(self, content: bytes, device: Device | str, spin: bool, max_memory: int | None) -> None:
        self._session = open_session(content, device, self.threads, spin=spin, name=self.path)
        choice = device_choice.parse(device)
        runner = Runner(self._session, card=choice.card, captures=choice.captures)
        if runner.on_card and max_memory is None:
            max_memory = CARD_MEMORY
        try:
            self.metadata = Metadata.from_properties(self._session.get_modelmeta().custom_metadata_map, self.path)
            graph_check.check(self._session, self.metadata, self.path)
        except UnicodeDecodeError:  # ONNX Runtime decodes a text on first access
            raise ModelFileError(
                f"{self.path} is damaged: a text in it is not UTF-8. Export it again: uce-edge export", "model.damaged"
            ) from None
        open_part = partial(open_session, device=device, threads=self.threads, spin=spin, name=self.path)
        halves = partial(self._halves, open_part) if self.provider == CPU else None
        self._calls = Calls(runner, self.metadata, self.path, max_memory, halves=halves)

    def _halves(self, open_part: OpenSession) -> Halves | None:
        """The trunk and the tail; None if the file has none or was replaced."""
        try:
            return open_halves(self.content(), open_part)
        except ModelFileError:
            return None

    def _warn_unverified(self, verify: bool) -> None:
        """Warn when a file was not verified."""
        if not verify:
            reason = "was loaded without a check that it is the file that was published"
        elif self.metadata.digests is not None and self.digests is None:
            description = Path(self.path).with_suffix(".json")
            reason = f"cannot be checked: its digest lies in {description}, which is missing or has none"
        else:
            return
        warnings.warn(f"{self.path} {reason}", IntegrityWarning, stacklevel=3)

    def _check_device(self, content: bytes, device: Device, spin: bool, max_memory: int | None) -> None:
        """Reject a device that fails the self-test."""
        found = self.self_test()
        if found is None or found.passed:
            return
        if device is not Device.AUTO:
            raise UceEdgeError(
                f"{found.sentence(self.path)} Update its driver, or run with {argument('device', 'cpu')}.",
                "device.untrusted",
            )
        warnings.warn(f"{found.sentence(self.path)} Running on the CPU.", DeviceWarning, stacklevel=3)
        self._open(content, Device.CPU, spin, max_memory)

    def self_test(self) -> SelfTest | None:
        """Compare the outputs for probe images with published ones.

        Returns:
            The largest difference, and whether it is allowed; None for a file without probe images.
        """
        stored = self.metadata.probe
        if not stored:
            return None
        exact = self.provider == CPU and self.metadata.precision in (Precision.FP32, Precision.FP16_WEIGHTS)
        outputs = [self.answer_probe(one.pattern, one.samples) for one in stored]
        found = probe.compare(stored, outputs, self.provider, exact=exact)
        if self.provider != CPU:  # an accelerator chooses other kernels for larger calls
            found = replace(found, difference=float(np.max([found.difference, self._difference_of_calls(stored[0])])))
        return found

    def _difference_of_calls(self, one: Probe) -> float:
        """The largest difference of the stored passes in large calls and in the calls of a probe."""
        if not self.metadata.takes_seeds or self.metadata.samples <= one.samples:
            return 0.0
        pixels = probe.image(one.pattern, self.metadata.image)[None]
        seeds, step = self.seeds(), one.samples
        whole = self._calls.passes(contract.PASS_PROBABILITIES, pixels, seeds)
        starts = range(0, len(seeds), step)
        parts = [self._calls.passes(contract.PASS_PROBABILITIES, pixels, seeds[at : at + step]) for at in starts]
        return float(np.abs(whole - np.concatenate(parts)).max())

    def answer_probe(self, pattern: Pattern, samples: int) -> dict[str, list[float]]:
        """The outputs for a probe image, by name."""
        pixels = probe.image(pattern, self.metadata.image)
        values = self._calls.run(pixels[None], np.array(contract.pass_seeds(samples, 0), np.int32))
        return {name: [float(str(x)) for x in values[name].ravel()] for name in probe.COMPARED if name in values}

    @property
    def session(self) -> Any:
        """The ONNX Runtime session, for calls outside the contract."""
        return self._session

    @property
    def provider(self) -> str:
        """The execution provider that runs the model."""
        return str(self._session.get_providers()[0])

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in the order of the probabilities."""
        return self.metadata.classes

    @overload
    def predict(  # type: ignore[overload-overlap]  # a text is a sequence of texts to mypy
        self,
        images: str | Path | bytes | Image.Image,
        samples: int | None = None,
        seed: int = 0,
        reject: Rejecting = None,
        adaptive: float | None = None,
    ) -> ImagePrediction: ...

    @overload
    def predict(
        self,
        images: npt.NDArray[np.uint8] | Sequence[ImageLike],
        samples: int | None = None,
        seed: int = 0,
        reject: Rejecting = None,
        adaptive: float | None = None,
    ) -> Prediction: ...

    def predict(
        self,
        images: npt.NDArray[np.uint8] | Sequence[ImageLike] | str | Path | bytes | Image.Image,
        samples: int | None = None,
        seed: int = 0,
        reject: Rejecting = None,
        adaptive: float | None = None,
    ) -> Prediction | ImagePrediction:
        """Classify a batch of images, or one image.

        Args:
            images: uint8 [batch, height, width, channels] of the model's size, or a sequence of paths, encoded
                bytes, Pillow images or arrays of any size: uint8, or uint16 gray. Or one path, encoded image or Pillow
                image.
            samples: Number of Monte Carlo passes; None means the number stored in the file.
            seed: Seed of the passes, 0 to 4095. The same seed gives the same answer.
            reject: Reject images whose uncertainty is above this threshold. "auto" applies the rule of the file, which
                may also reject out-of-distribution images.
            adaptive: Stop drawing passes as soon as the outcome of an image is clear: rejected, or accepted with its
                label. This is the largest probability, per image, that all passes would give another outcome. None
                draws all passes.

        Returns:
            The predictions, or for one image its prediction: `predict("a.png").label`. An image's answer does not
            depend on the others in the batch.
        """
        plan = self.plan(Request(samples, seed, reject, adaptive))
        if isinstance(images, str | Path | bytes | Image.Image):
            return self.predict_planned([images], plan)[0]
        return self.predict_planned(images, plan)

    def predict_planned(self, images: npt.NDArray[np.uint8] | Sequence[ImageLike], plan: Plan) -> Prediction:
        """Classify a batch of images by a resolved request.

        Args:
            images: As in `predict`.
            plan: From `plan`.
        """
        images = images if isinstance(images, np.ndarray) else list(images)
        batch, seeds, applied = self._as_batch(images), np.array(plan.seeds, np.int32), plan.rule
        if plan.request.adaptive is None:
            values, drawn = self._calls.run(batch, seeds), np.full(len(batch), plan.samples, np.int32)
        else:
            values, drawn = self._calls.run_until_settled(batch, seeds, applied, plan.request.adaptive)
        spec = self.metadata.image
        numbers: dict[str, Any] = {name: values.get(name) for name in (*contract.NUMBERS, *contract.MAPS)}
        decisions: list[Decision | None] = [None] * len(batch)
        reasons = None
        if applied.decides:
            codes = values[contract.DECISION]
            if plan.request.reject != "auto":
                codes = applied.decide(values[contract.UNCERTAINTY], values[contract.PROBABILITIES], None)
            reasons = [REASONS[code] for code in codes]
            decisions = [Decision.ACCEPT if reason is None else Decision.REJECT for reason in reasons]
        return Prediction(
            class_ids=values[contract.CLASS_ID],
            labels=[self.classes[index] for index in values[contract.CLASS_ID]],
            probabilities=values[contract.PROBABILITIES],
            decisions=decisions,
            samples=plan.samples,
            drawn=drawn,
            seed=int(plan.request.seed),
            reasons=reasons,
            in_set=values.get(contract.IN_SET),
            rule=applied,
            classes=self.classes,
            sources=images,
            spec=replace(spec, resize=STRETCH) if isinstance(images, np.ndarray) else spec,
            **numbers,
        )

    def answers(
        self,
        paths: Iterable[str | Path],
        samples: int | None = None,
        seed: int = 0,
        reject: Rejecting = None,
        adaptive: float | None = None,
        *,
        top: int = 3,
        keep: bool = False,
    ) -> Iterator[Answer]:
        """Classify any number of files, one by one.

        A file that cannot be used gives an answer with an error.

        Args:
            paths: Image files; `-` is standard input. They are read as the answers are taken, 32 at a time.
            samples: As in `predict`.
            seed: As in `predict`.
            reject: As in `predict`.
            adaptive: As in `predict`.
            top: The number of likeliest classes that an answer lists.
            keep: Whether an answer keeps the bytes of its file.

        Returns:
            One answer per path, in order. If a model gives numbers that are not finite, the answer is an error.

        Example:
            >>> for answer in model.answers(["three.png", "broken.png"], reject=0.3):
            ...     print(answer.path, answer.prediction.label if answer.ok else answer.error)
            three.png 3
            broken.png ... is not an image ...
        """
        if isinstance(paths, str | bytes | Path):
            raise ImageError(expected("`paths`", "a sequence of paths", paths, "Use: answers([path])"))
        return each_answer(self, paths, self.plan(Request(samples, seed, reject, adaptive, top, keep)))

    def plan(self, request: Request) -> Plan:
        """Resolve a request for this file; warns once."""
        return resolve(request, self.metadata, self.path)

    def reject_rule(self, reject: Rejecting) -> RejectRule:
        """The reject rule of a request."""
        return rule_of(reject, self.metadata, self.path)

    def threshold(self, reject: Rejecting) -> float | None:
        """The threshold on the uncertainty, if the rule has one."""
        return self.reject_rule(reject).threshold

    def logits(
        self, images: npt.NDArray[np.uint8] | Sequence[ImageLike], samples: int | None = None, seed: int = 0
    ) -> npt.NDArray[np.float32]:
        """Raw logits [samples, batch, classes], before calibration."""
        return self._calls.passes(contract.LOGITS, self._as_batch(images), self.seeds(samples, seed))

    def outputs(
        self, images: npt.NDArray[np.uint8], seeds: npt.NDArray[np.int32], names: Sequence[str]
    ) -> dict[str, npt.NDArray[Any]]:
        """Outputs of the graph, by name.

        Args:
            images: uint8 [batch, height, width, channels] of the model's size.
            seeds: One for every pass, as `seeds` gives them; a file that takes none ignores them.
            names: Outputs that the file has.
        """
        table = {output.name: output for output in contract.OUTPUTS}
        batch, values = self._as_batch(images), {}
        if any(table[name].per is contract.Per.IMAGE for name in names):
            values = self._calls.run(batch, seeds)
        passes = {
            name: self._calls.passes(name, batch, seeds) for name in names if table[name].per is contract.Per.PASS
        }
        return {name: passes[name] if name in passes else values[name] for name in names}

    def seeds(self, samples: int | None = None, seed: int = 0) -> npt.NDArray[np.int32]:
        """The seeds that `samples` and `seed` mean."""
        return np.array(seeds_of(samples, seed, self.metadata), np.int32)

    def _as_batch(self, given: npt.NDArray[np.uint8] | Iterable[ImageLike]) -> npt.NDArray[np.uint8]:
        spec = self.metadata.image
        if isinstance(given, np.ndarray):
            shape = (spec.height, spec.width, spec.channels)
            if given.ndim != 4 or given.shape[1:] != shape or given.dtype != spec.dtype or len(given) == 0:
                raise ImageError(
                    expected(
                        "`images`",
                        f"{spec.dtype} of shape [batch, {spec.height}, {spec.width}, {spec.channels}], batch >= 1",
                        f"{given.dtype} {list(given.shape)}",
                        "A list of images of any size is resized for you: predict([image])",
                    )
                )
            return given
        if isinstance(given, str | bytes | Path | Image.Image):
            raise ImageError(
                expected("`images`", "a sequence of images", type(given).__name__, "Put it into a list: [image]")
            )
        prepared = [
            loader.load(item, spec) if isinstance(item, str | Path | bytes) else loader.prepare(item, spec)
            for item in given
        ]
        if not prepared:
            raise ImageError(expected("`images`", "at least one image", [], "Pass an image: predict([image])"))
        return np.stack(prepared)
