"""A calibrated Bayesian classifier loaded from one ONNX file."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from uce_edge import adaptive as sequential
from uce_edge import contract, images
from uce_edge.answers import Answer, Request, each_answer
from uce_edge.calibration.error_map import ErrorMap
from uce_edge.contract import Inference, NoiseKind
from uce_edge.errors import ImageError, ModelFileError, UceEdgeWarning, UsageError, expected
from uce_edge.metadata import Metadata
from uce_edge.prediction import Decision, Prediction, Summary, summarise
from uce_edge.providers import Device, open_session
from uce_edge.runner import Runner

ImageLike = str | Path | bytes | npt.NDArray[np.uint8] | Image.Image

# One call holds this many image-passes at most: more make none of them faster.
_ROWS_PER_CALL = 32
MAX_MEMORY = 256
"""Megabytes that the values of one call may take, about, unless told otherwise; the network itself comes on top."""
# A moments graph that draws its last layer computes an image once, and then holds this many probabilities at most.
_DRAWN_PER_CALL = 2**20


class SamplesWarning(UceEdgeWarning):
    """A prediction uses another number of passes than the calibration was fitted at."""


class GuaranteeWarning(UceEdgeWarning):
    """A stored threshold is used for other passes than it was found with."""


def check_memory(max_memory: int | None) -> None:
    """Refuse a budget that cannot be."""
    if max_memory is not None and max_memory < 1:
        rule = "at least 1 MB"
        raise UsageError(expected("`max_memory`", rule, max_memory, f"Leave it out for {MAX_MEMORY}"))


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
        path: str | Path,
        device: Device | str = Device.AUTO,
        *,
        threads: int | None = None,
        max_memory: int | None = None,
    ) -> None:
        """Load a file.

        Args:
            path: The file.
            device: Where to run it.
            threads: Of ONNX Runtime; None for all cores.
            max_memory: Megabytes that the values of one call may take, about; None for `MAX_MEMORY`. Images and passes
                are split over calls, so that memory does not grow with their number.
        """
        self.path = str(path)
        if Path(path).is_dir():
            raise ModelFileError(
                f"{path} is a folder, not a model file. A training run is exported with: uce-edge export {path}"
            )
        if not Path(path).is_file():
            raise ModelFileError(
                f"There is no model file {path}. Check its spelling; without --model, the bundled model answers; "
                "one of your own is made with: uce-edge export"
            )
        check_memory(max_memory)
        self._session = open_session(self.path, device, threads)
        self._runner = Runner(self._session)
        self.metadata = Metadata.from_session(self._session, self.path)
        self._check_signature()
        self._rows = self._affordable_rows(max_memory)

    @property
    def provider(self) -> str:
        """The execution provider the model really runs on."""
        return str(self._session.get_providers()[0])

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in the order of the probabilities."""
        return self.metadata.classes

    def predict(
        self,
        images: npt.NDArray[np.uint8] | Sequence[ImageLike],
        samples: int | None = None,
        seed: int = 0,
        reject: float | Literal["auto"] | None = None,
        adaptive: float | None = None,
    ) -> Prediction:
        """Classify a batch of images.

        Args:
            images: uint8 [batch, height, width, channels] of the model's size, or a sequence of paths, encoded
                bytes, Pillow images or uint8 arrays of any size.
            samples: Number of Monte Carlo passes; None means the number stored in the file.
            seed: Which 4096 passes to draw from; the same seed gives the same answer.
            reject: Reject what has a higher uncertainty than this; "auto" for the threshold stored in the file.
            adaptive: Draw only as many of the passes as settle what becomes of an image (rejected, or accepted as
                what), but for this probability (see `uce_edge.adaptive`); None draws all.

        Returns:
            The predictions. An image's answer does not depend on the others in the batch.
        """
        samples = self._samples(samples)
        if reject == "auto":
            self._check_promise(samples, seed, adaptive is not None)
        elif reject is not None:
            contract.check_threshold(reject)
        reject = self.threshold(reject)
        self._announce(samples, adaptive is not None)
        seeds = self._seeds(samples, seed)
        batch = self._as_batch(images)
        drawn = np.full(len(batch), samples, np.int32)
        if adaptive is None:
            step = self._images_per_call(samples)
            parts = [self._run(batch[start : start + step], seeds) for start in range(0, len(batch), step)]
            merged = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        else:
            starts = range(0, len(batch), self._rows)
            found = [self._run_adaptively(batch[i : i + self._rows], seeds, reject, adaptive) for i in starts]
            merged = {name: np.concatenate([part[name] for part, _ in found]) for name in found[0][0]}
            drawn = np.concatenate([counts for _, counts in found])
        uncertainty = merged[contract.UNCERTAINTY]
        decisions: list[Decision | None] = [None] * len(batch)
        if reject is not None:
            accepted = contract.accepts(uncertainty, reject)
            decisions = [Decision.ACCEPT if good else Decision.REJECT for good in accepted]
        return Prediction(
            class_ids=merged[contract.CLASS_ID],
            labels=[self.classes[index] for index in merged[contract.CLASS_ID]],
            probabilities=merged[contract.PROBABILITIES],
            uncertainty=uncertainty,
            model_uncertainty=merged[contract.MODEL_UNCERTAINTY],
            standard_error=merged[contract.STANDARD_ERROR],
            error_probability=merged[contract.ERROR_PROBABILITY],
            decisions=decisions,
            samples=len(seeds),
            drawn=drawn,
            seed=int(seed),
        )

    def answers(
        self,
        paths: Iterable[str | Path],
        samples: int | None = None,
        seed: int = 0,
        reject: float | Literal["auto"] | None = None,
        adaptive: float | None = None,
        *,
        top: int = 3,
        keep: bool = False,
    ) -> Iterator[Answer]:
        """Classify any number of files, one answer after another: a file that cannot be used is an answer too.

        Args:
            paths: Image files; `-` is standard input. They are read as the answers are taken, 32 at a time.
            samples: As in `predict`, like the next three.
            seed: Which passes.
            reject: The threshold.
            adaptive: Stop early.
            top: How many of the likeliest classes an answer lists.
            keep: Whether an answer keeps the bytes of its file.

        Returns:
            An answer per path, in order. Numbers that are not finite are an error here, and never a prediction.

        Example:
            >>> for answer in model.answers(["three.png", "broken.png"], reject=0.3):
            ...     print(answer.path, answer.prediction.label if answer.ok else answer.error)
            three.png 3
            broken.png ... is not an image ...
        """
        if isinstance(paths, str | bytes | Path):
            raise ImageError(expected("`paths`", "a sequence of paths", paths, "Use: answers([path])"))
        # A wrong request is told now, and not when the first answer is taken.
        self._seeds(self._samples(samples), seed)
        if reject is not None and reject != "auto":
            contract.check_threshold(reject)
        self.threshold(reject)
        if adaptive is not None:
            contract.check_adaptive(adaptive)
        if top < 1:
            raise UsageError(expected("`top`", "at least 1", top, "Leave it out for 3"))
        return each_answer(self, paths, Request(samples, seed, reject, adaptive, top, keep))

    def threshold(self, reject: float | Literal["auto"] | None) -> float | None:
        """What the uncertainty is compared with, "auto" being the stored threshold."""
        if reject != "auto":
            return reject
        if self.metadata.reject is None:
            raise UsageError(
                f"{self.path} has no stored threshold. Give one (reject=0.3), or store one with a promise about the "
                "error: uce-edge calibrate --target-error 0.05"
            )
        return self.metadata.reject.threshold

    def logits(
        self, images: npt.NDArray[np.uint8] | Sequence[ImageLike], samples: int | None = None, seed: int = 0
    ) -> npt.NDArray[np.float32]:
        """Raw logits [samples, batch, classes] before calibration, for recalibration and for checks."""
        seeds = self._seeds(self._samples(samples), seed)
        return self._chunked(contract.LOGITS, self._as_batch(images), seeds)

    def _samples(self, samples: int | None) -> int:
        """The number of passes that a request means; None is the file's own."""
        stored = self.metadata.samples
        if samples is not None and samples != stored and not self.metadata.takes_seeds:
            kind = "model with its passes baked in" if self.metadata.baked else "deterministic model"
            raise UsageError(
                expected("`samples`", f"{stored} for a {kind}", samples, "Leave --samples out for this file")
            )
        return stored if samples is None else samples

    def _seeds(self, samples: int, seed: int) -> npt.NDArray[np.int32]:
        """The passes that a request means."""
        if seed != 0 and self.metadata.baked:
            rule = "0 for a model with its passes baked in"
            raise UsageError(expected("`seed`", rule, seed, "Export it without --bake-samples"))
        return np.array(contract.pass_seeds(samples, seed), np.int32)

    def _check_promise(self, samples: int, seed: int, early: bool) -> None:
        """Say when the stored threshold is used otherwise than it was found."""
        stored = self.metadata.reject
        if stored is not None and (early or (samples, seed) != (stored.samples, stored.seed)):
            now = f"at most {samples}" if early else samples
            warnings.warn(
                f"the stored threshold was found with {stored.samples} samples and seed {stored.seed}: "
                f"with {now} and seed {seed} its promise about the error does not hold",
                GuaranteeWarning,
                stacklevel=3,
            )

    def _announce(self, samples: int, early: bool) -> None:
        fitted = self.metadata.calibration.samples
        if fitted is not None and samples != fitted:
            warnings.warn(
                f"this model was calibrated at {fitted} samples and runs with {'at most ' if early else ''}{samples}: "
                "its probabilities are a little off",
                SamplesWarning,
                stacklevel=3,
            )

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
                expected("`images`", "a sequence of images", type(given).__name__, "Use: predict([image])")
            )
        prepared = [
            images.load(item, spec) if isinstance(item, str | Path | bytes) else images.prepare(item, spec)
            for item in given
        ]
        if not prepared:
            raise ImageError(expected("`images`", "at least one image", [], "Pass an image: predict([image])"))
        return np.stack(prepared)

    def _run(self, batch: npt.NDArray[np.uint8], seeds: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[Any]]:
        """All outputs that have one entry per image, with the passes split over calls when there are many."""
        if len(seeds) <= self._passes_per_call(1):
            values = self._runner.run(list(contract.OUTPUTS[:6]), self._feed(batch, seeds))
            return dict(zip(contract.OUTPUTS, values, strict=False))
        return self._outputs(summarise(self._passes(contract.PASS_PROBABILITIES, batch, seeds)))

    def _run_adaptively(
        self, batch: npt.NDArray[np.uint8], seeds: npt.NDArray[np.int32], reject: float | None, error: float
    ) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.int32]]:
        """As `_run`, with the passes of each image that settle it, and their number."""
        contract.check_adaptive(error)
        if self.metadata.inference is not Inference.MC or self.metadata.baked:
            raise UsageError(
                f"{self.path} computes an image in one call, so there is nothing to stop early: leave --adaptive out."
            )
        drawn = np.zeros(len(batch), np.int32)
        settled: list[tuple[npt.NDArray[np.intp], Summary]] = []
        open_images, passes = np.arange(len(batch)), np.empty((0, len(batch), len(self.classes)), np.float32)
        for count in sequential.looks(len(seeds)):
            fresh = self._chunked(contract.PASS_PROBABILITIES, batch[open_images], seeds[len(passes) : count])
            passes = np.concatenate([passes, fresh])
            last = count == len(seeds)
            done = np.full(len(open_images), True) if last else sequential.settled(passes, reject, error, len(seeds))
            if done.any():
                settled.append((open_images[done], summarise(passes[:, done])))
            drawn[open_images[done]] = count
            open_images, passes = open_images[~done], passes[:, ~done]
            if not len(open_images):
                break
        order = np.argsort(np.concatenate([indices for indices, _ in settled]))
        columns = zip(*(summary for _, summary in settled), strict=True)
        return self._outputs(Summary(*(np.concatenate(column)[order] for column in columns))), drawn

    def _chunked(
        self, output: str, batch: npt.NDArray[np.uint8], seeds: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """As `_passes`, for any number of images."""
        step = self._images_per_call(len(seeds))
        starts = range(0, len(batch), step)
        return np.concatenate([self._passes(output, batch[i : i + step], seeds) for i in starts], axis=1)

    def _images_per_call(self, samples: int) -> int:
        return max(1, min(self._rows, self._rows_per_call() // samples))

    def _passes_per_call(self, images: int) -> int:
        if self.metadata.baked:
            return self.metadata.samples
        return max(1, self._rows_per_call() // images)

    def _rows_per_call(self) -> int:
        """Image-passes that one call may hold: more where a pass is only a draw of the last layer."""
        costs = self.metadata.costs
        cheap = costs is not None and 100 * costs.macs_per_pass < costs.macs_once
        if self.metadata.inference is Inference.MOMENTS and cheap:
            return max(self._rows, _DRAWN_PER_CALL // len(self.classes))
        return self._rows

    def _affordable_rows(self, max_memory: int | None) -> int:
        """Image-passes that one call may hold of the network proper."""
        each = None if self.metadata.costs is None else self.metadata.costs.bytes_per_pass
        if each is None:
            return _ROWS_PER_CALL
        rows = (max_memory or MAX_MEMORY) * 2**20 // each
        if rows < 1 and max_memory is not None:
            rule = f"at least {-(-each // 2**20)} MB, which one pass of {self.path} takes"
            raise UsageError(expected("`max_memory`", rule, max_memory, "Give it more, or export a smaller network"))
        return min(max(rows, 1), _ROWS_PER_CALL)

    def _outputs(self, summary: Summary) -> dict[str, npt.NDArray[Any]]:
        """What the graph would have given for these passes in one call."""
        return {
            contract.PROBABILITIES: summary.probabilities,
            contract.CLASS_ID: summary.probabilities.argmax(-1).astype(np.int32),
            contract.UNCERTAINTY: summary.uncertainty,
            contract.MODEL_UNCERTAINTY: summary.model_uncertainty,
            contract.STANDARD_ERROR: summary.standard_error,
            contract.ERROR_PROBABILITY: self._error(summary),
        }

    def _error(self, summary: Summary) -> npt.NDArray[np.float32]:
        """The probability of error, as the graph computes it."""
        fitted = self.metadata.calibration.error
        if fitted is None:
            return np.asarray(1 - summary.probabilities.max(-1), np.float32)
        return ErrorMap(*fitted)(summary.uncertainty).astype(np.float32)

    def _passes(
        self, output: str, batch: npt.NDArray[np.uint8], seeds: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """An output with one entry per pass, [samples, batch, classes]."""
        step = self._passes_per_call(len(batch))
        chunks = (seeds[start : start + step] for start in range(0, len(seeds), step))
        placed = self._runner.place(batch)
        return np.concatenate([self._runner.run([output], self._feed(placed, chunk))[0] for chunk in chunks])

    def _feed(self, batch: Any, seeds: npt.NDArray[np.int32]) -> dict[str, Any]:
        feed = {contract.IMAGE: batch}
        if self.metadata.takes_seeds:
            feed[contract.SEEDS] = seeds
        return feed

    def _check_signature(self) -> None:
        """Refuse a file whose metadata promises what its graph does not keep."""
        if self.metadata.noise is NoiseKind.INPUT:
            raise ModelFileError(
                f"{self.path} takes its noise as graph inputs, for experiments with onnxruntime itself. "
                "Export a model to predict with: uce-edge export --noise table"
            )
        inputs = {value.name for value in self._session.get_inputs()}
        outputs = {value.name for value in self._session.get_outputs()}
        wanted = {contract.IMAGE} | ({contract.SEEDS} if self.metadata.takes_seeds else set())
        if inputs != wanted or not set(contract.OUTPUTS) <= outputs:
            raise ModelFileError(
                f"{self.path} has inputs {sorted(inputs)} and outputs {sorted(outputs)}, which is not contract "
                f"{contract.VERSION}. Export it again: uce-edge export"
            )
        spec = self.metadata.image
        pixels = next(value for value in self._session.get_inputs() if value.name == contract.IMAGE)
        table = next(value for value in self._session.get_outputs() if value.name == contract.PROBABILITIES)
        kind = {"uint8": "tensor(uint8)", "float32": "tensor(float)"}.get(spec.dtype)
        promised = [kind, spec.height, spec.width, spec.channels, len(self.classes)]
        found = [pixels.type, *pixels.shape[1:], table.shape[-1]]
        if promised != found:
            raise ModelFileError(
                f"{self.path} is damaged: its metadata promises {promised} (image type, height, width, channels; "
                f"classes), and its graph has {found}. Export it again: uce-edge export"
            )
