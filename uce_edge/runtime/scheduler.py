"""Split passes over calls within a memory budget, and merge.

The contract's table of outputs says how.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from uce_edge import contract
from uce_edge._util.field_rules import Rule, checked
from uce_edge.calibration.error_map import error_probability
from uce_edge.contract import Inference, Merge, Output, Per
from uce_edge.errors import ModelFileError, UsageError, argument, expected
from uce_edge.metadata import Metadata
from uce_edge.rejection.rule import RejectRule
from uce_edge.runtime import early_stopping
from uce_edge.runtime.pooled_maps import PooledMaps
from uce_edge.runtime.prediction import seed_averages, summarise
from uce_edge.runtime.session import Runner
from uce_edge.runtime.trunk_split import Halves, Kept

# More image-passes in one call are not faster.
_ROWS_PER_CALL = 32
# The bytes of the passes of a call whose maps hardly leave a processor's caches. EfficientNet-Lite0 (18 MB a pass) is
# fastest with one pass in a call, MobileNetV3 (3.4 MB) with 3 to 8, ResNet-20 (0.25 MB) and ResNet-34 (1 MB) with many.
_CACHED = 25 * 2**20
MAX_MEMORY = 256
"""Default megabytes for the values of one call; the network itself needs more."""
# The most probabilities in one call of a file whose passes are hardly more than draws.
_DRAWN_PER_CALL = 2**20
# Repetitions of the trunk that take as long as opening it and its tail on their own.
_REPEATS = 8
# A trunk below this share of a pass is not worth two more sessions.
_LEAST_SHARE = 1 / 3

_Megabytes = Annotated[int, Rule("of at least 1 MB", lambda value: value >= 1)] | None

Pixels = npt.NDArray[np.uint8]
Seeds = npt.NDArray[np.int32]
Values = dict[str, npt.NDArray[Any]]
"""Outputs by their names in the contract."""


def check_memory(max_memory: int | None) -> None:
    """Reject a memory budget below 1 MB."""
    checked("max_memory", _Megabytes, max_memory, f"Leave it out for {MAX_MEMORY}")


def from_passes(passes: npt.NDArray[np.float32], metadata: Metadata) -> Values:
    """Compute the outputs of one call from all passes.

    Args:
        passes: Calibrated probabilities [seeds * members, batch, classes].
        metadata: Of the file.
    """
    summary = summarise(passes, metadata.members)
    confidence = summary.probabilities.max(-1)
    error = error_probability(metadata.calibration, confidence, summary.uncertainty).astype(np.float32)
    return {
        contract.PROBABILITIES: summary.probabilities,
        contract.CLASS_ID: summary.probabilities.argmax(-1).astype(np.int32),
        contract.UNCERTAINTY: summary.uncertainty,
        contract.MODEL_UNCERTAINTY: summary.model_uncertainty,
        contract.STANDARD_ERROR: summary.standard_error,
        contract.ERROR_PROBABILITY: error,
    }


class _Whole:
    """Images that the whole file runs on."""

    def __init__(self, runner: Runner, batch: Pixels) -> None:
        self._runner, self.batch = runner, batch
        self._placed: Any = None

    def rows(self, chosen: Any) -> "_Whole":
        """Some of the images."""
        return _Whole(self._runner, self.batch[chosen])

    def run(self, names: Sequence[str], seeds: Seeds | None) -> list[Any]:
        """Outputs of the file; images move to a device once."""
        self._placed = self._runner.place(self.batch) if self._placed is None else self._placed
        feed = {contract.IMAGE: self._placed} | ({} if seeds is None else {contract.SEEDS: seeds})
        return self._runner.run(list(names), feed)


class Calls:
    """Runs any number of images and passes."""

    def __init__(
        self,
        runner: Runner,
        metadata: Metadata,
        source: str,
        max_memory: int | None = None,
        table: Sequence[Output] = contract.OUTPUTS,
        halves: Callable[[], Halves | None] | None = None,
    ) -> None:
        """Prepare the calls of a session.

        Args:
            runner: The session.
            metadata: The metadata of its file.
            source: The name of the file, for messages.
            max_memory: Megabytes, as in `Model`.
            halves: Opens the trunk and the tail, as in `trunk_split`; None to run the whole file in every call.
            table: The known outputs; those that the file has are requested.
        """
        check_memory(max_memory)
        self._runner, self._metadata, self._source = runner, metadata, source
        self._open_halves = halves if self._trunk_is_worth_it else None
        self._halves: Halves | None = None
        self._repeats = 0
        outputs = contract.outputs_of(metadata.outputs, metadata.contract, table)
        self._per_image = [output for output in outputs if output.per is Per.IMAGE]
        self._same = [output for output in outputs if output.merge is Merge.SAME]
        self._maps = [output for output in outputs if output.merge is Merge.POOLED]
        self._named = {output.name: output for output in outputs}
        self._axes = {output.name: output.dimensions.index("batch") for output in outputs}
        self._rows = self._affordable_rows(max_memory)
        self._rows_per_call = self._drawn_rows(max_memory)

    def run(self, batch: Pixels, seeds: Seeds) -> Values:
        """All outputs that have one entry per image."""
        step = self._images_per_call(len(seeds))
        parts = [self._run(batch[i : i + step], seeds) for i in range(0, len(batch), step)]
        return self._decided(self._joined(parts))

    def run_until_settled(
        self, batch: Pixels, seeds: Seeds, rule: RejectRule, error: float
    ) -> tuple[Values, npt.NDArray[np.int32]]:
        """As `run`, with early stopping; and the passes per image.

        Args:
            batch: The images.
            seeds: The passes to draw at most.
            rule: The reject rule; without limits only the label counts.
            error: The probability that all passes would give another outcome, as in `early_stopping`.
        """
        if not self._metadata.takes_seeds or self._rows_per_call > self._rows:
            raise UsageError(
                f"{self._source} computes an image in one call, so there is nothing to stop early: "
                f"leave {argument('adaptive')} out.",
                "model.single-call",
            )
        starts = range(0, len(batch), self._rows)
        parts = [self._settled(batch[i : i + self._rows], seeds, rule, error) for i in starts]
        return self._decided(self._joined([part for part, _ in parts])), np.concatenate([drawn for _, drawn in parts])

    def passes(self, name: str, batch: Pixels, seeds: Seeds) -> npt.NDArray[np.float32]:
        """An output per pass, [seeds * members, batch, classes]."""
        return self._passes([self._named[name]], _Whole(self._runner, batch), len(batch), seeds)[0][name]

    def _run(self, batch: Pixels, seeds: Seeds) -> Values:
        """As `run`, for images that one call takes."""
        if len(seeds) <= self._passes_per_call(1):
            return self._call(self._per_image, _Whole(self._runner, batch), seeds)
        outputs = [self._named[contract.PASS_PROBABILITIES], *self._same]
        values, maps = self._split(outputs, _Whole(self._runner, batch), len(batch), seeds, self._maps)
        passes = values.pop(contract.PASS_PROBABILITIES)
        return values | self._mapped(from_passes(passes, self._metadata), maps, passes, batch, seeds)

    def _settled(
        self, batch: Pixels, seeds: Seeds, rule: RejectRule, error: float
    ) -> tuple[Values, npt.NDArray[np.int32]]:
        drawn = np.zeros(len(batch), np.int32)
        settled: list[tuple[npt.NDArray[np.intp], Values]] = []
        open_images, passes = np.arange(len(batch)), np.empty((0, len(batch), len(self._metadata.classes)), np.float32)
        images = self._images(batch, 1)
        same: Values = {}
        maps: PooledMaps | None = None
        members, taken = self._metadata.members, 0
        for count in early_stopping.looks(len(seeds)):
            outputs = [self._named[contract.PASS_PROBABILITIES], *([] if taken else self._same)]
            self._repeats += taken > 0
            chosen = images.rows(open_images)
            fresh, more_maps = self._passes(outputs, chosen, len(open_images), seeds[taken:count], self._maps)
            maps = None if more_maps is None else more_maps.plus(maps)
            taken = count
            passes = np.concatenate([passes, fresh.pop(contract.PASS_PROBABILITIES)])
            same |= fresh
            last = count == len(seeds)
            done = np.full(len(open_images), True)
            if not last:  # members are not draws: their mean varies from seed to seed
                done = early_stopping.settled(seed_averages(passes, members), rule, error, len(seeds))
            if done.any():
                own, pixels = passes[:, done], batch[open_images[done]]
                shown = None if maps is None else maps.chosen(done)
                settled.append(
                    (open_images[done], self._mapped(from_passes(own, self._metadata), shown, own, pixels, seeds))
                )
            drawn[open_images[done]] = count
            open_images, passes = open_images[~done], passes[:, ~done]
            maps = None if maps is None else maps.chosen(~done)
            if not len(open_images):
                break
        order = np.argsort(np.concatenate([indices for indices, _ in settled]))
        computed = {name: np.concatenate([part[name] for _, part in settled])[order] for name in settled[0][1]}
        return computed | same, drawn

    def _decided(self, values: Values) -> Values:
        """Add the decision and the set of the file, if missing.

        The numpy reference computes them for split passes, and the decision for files of contract 1.
        """
        sets = self._metadata.sets
        if sets is not None and contract.IN_SET not in values:
            values = values | {contract.IN_SET: sets.contains(values[contract.PROBABILITIES])}
        if contract.DECISION in values:
            return values
        stored = self._metadata.rule or RejectRule()
        needed = (values[contract.UNCERTAINTY], values[contract.PROBABILITIES], values.get(contract.NOVELTY))
        return values | {contract.DECISION: stored.decide(*needed)}

    def _mapped(
        self,
        values: Values,
        maps: PooledMaps | None,
        passes: npt.NDArray[np.float32],
        batch: Pixels,
        seeds: Seeds,
    ) -> Values:
        """Add the maps of the predicted class.

        A call that predicts another class shows that one. Then the passes that predict the class on their own run
        again: any of them predict it together, too.
        """
        if maps is None:
            return values
        merged = maps.merged()
        for image in np.flatnonzero(~maps.agree):
            own = np.flatnonzero(passes[:, image].argmax(-1) == values[contract.CLASS_ID][image])
            again = self._again(batch[image : image + 1], seeds[own])
            for name in merged:
                merged[name][image] = np.nan if again is None else again.merged()[name][0]
        return values | merged

    def _again(self, image: Pixels, seeds: Seeds) -> PooledMaps | None:
        """The maps of some passes of one image; None without passes."""
        return self._split([], _Whole(self._runner, image), 1, seeds, self._maps)[1] if len(seeds) else None

    def _passes(
        self,
        outputs: Sequence[Output],
        images: "_Whole | Kept",
        count: int,
        seeds: Seeds,
        maps: Sequence[Output] = (),
    ) -> tuple[Values, PooledMaps | None]:
        """As `_split`, for any number of images."""
        step = self._images_per_call(len(seeds))
        parts = [
            self._split(outputs, images.rows(slice(i, i + step)), min(step, count - i), seeds, maps)
            for i in range(0, count, step)
        ]
        pooled = [part for _, part in parts if part is not None]
        return self._joined([values for values, _ in parts]), PooledMaps.side_by_side(pooled) if pooled else None

    def _split(
        self,
        outputs: Sequence[Output],
        images: "_Whole | Kept",
        count: int,
        seeds: Seeds,
        maps: Sequence[Output] = (),
    ) -> tuple[Values, PooledMaps | None]:
        """Run passes split over calls; merge without computing.

        Args:
            outputs: What to merge.
            images: Images that one call takes.
            count: How many they are.
            seeds: All passes.
            maps: Heatmaps to pool.
        """
        step = self._passes_per_call(count)
        chunks = [seeds[start : start + step] for start in range(0, len(seeds), step)]
        if isinstance(images, _Whole):
            images = self._images(images.batch, len(chunks) - 1)
        shown = [self._named[contract.CLASS_ID], *maps] if maps else []
        first = self._call([*outputs, *shown], images, chunks[0])
        per_pass = [output for output in outputs if output.merge is Merge.CONCATENATED]
        calls = [first, *(self._call([*per_pass, *shown], images, chunk) for chunk in chunks[1:])]
        pooled: PooledMaps | None = None
        for call, chunk in zip(calls, chunks, strict=True) if maps else ():
            pooled = PooledMaps.of(call, len(chunk)).plus(pooled)
        merged = {output.name: first[output.name] for output in outputs}
        merged |= {output.name: np.concatenate([call[output.name] for call in calls]) for output in per_pass}
        return merged, pooled

    def _images(self, batch: Pixels, repeats: int) -> "_Whole | Kept":
        """Images for several calls; kept results of the trunk if that is known to pay.

        Opening the two halves takes as long as some calls do, so the first repetitions run the whole file.
        """
        self._repeats += repeats
        if repeats and self._repeats > _REPEATS and self._open_halves is not None:
            self._halves, self._open_halves = self._halves or self._open_halves(), None
        kept = None
        if repeats and self._halves is not None:
            with self._reporting():
                kept = self._halves.keep(batch)
        return _Whole(self._runner, batch) if kept is None else kept

    @property
    def _trunk_is_worth_it(self) -> bool:
        costs = self._metadata.costs
        return costs is not None and _LEAST_SHARE * costs.macs_per_pass < costs.macs_once

    def _call(self, outputs: Sequence[Output], images: "_Whole | Kept", seeds: Seeds) -> Values:
        names = [output.name for output in outputs]
        with self._reporting():
            return dict(zip(names, images.run(names, seeds if self._metadata.takes_seeds else None), strict=True))

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Turn what ONNX Runtime raises into an error with a remedy."""
        try:
            yield
        except Exception as error:  # onnxruntime raises its own unrelated classes per failure
            reason = str(error).splitlines()[0]
            raise ModelFileError(
                f"{self._source} cannot be run ({reason}). If the memory is full, lower {argument('max_memory')}; "
                "otherwise the file is damaged: copy or export it again.",
                "model.failed",
            ) from None

    def _images_per_call(self, samples: int) -> int:
        return max(1, min(self._rows, self._rows_per_call // samples))

    def _passes_per_call(self, images: int) -> int:
        if self._metadata.baked:
            return self._metadata.samples
        return max(1, self._rows_per_call // images)

    def _drawn_rows(self, max_memory: int | None) -> int:
        """Image-passes that one call may hold.

        More where a pass is hardly more than a draw, so that one call takes all of them.
        """
        costs, each = self._metadata.costs, 1
        if costs is None or not costs.runs_once:
            return self._rows
        if costs.bytes_per_draw is not None:
            each = costs.bytes_per_draw
        elif self._metadata.inference is Inference.MC:  # an older file without the cost of a draw
            return self._rows
        affordable = (max_memory or MAX_MEMORY) * 2**20 // each
        return max(
            self._rows, min(affordable, _DRAWN_PER_CALL // (len(self._metadata.classes) * self._metadata.members))
        )

    def _affordable_rows(self, max_memory: int | None) -> int:
        """Image-passes that one call may hold of the network proper."""
        each = None if self._metadata.costs is None else self._metadata.costs.bytes_per_pass
        if each is None:
            return _ROWS_PER_CALL
        rows = (max_memory or MAX_MEMORY) * 2**20 // each
        drawn = self._metadata.costs.bytes_per_draw if self._metadata.costs is not None else None
        cached = _ROWS_PER_CALL if drawn is None or self._runner.on_card else max(1, _CACHED // drawn)
        if rows < 1 and max_memory is not None:
            rule = f"at least {-(-each // 2**20)} MB, which one pass of {self._source} takes"
            raise UsageError(expected("`max_memory`", rule, max_memory, "Give it more, or export a smaller network"))
        return min(max(rows, 1), cached, _ROWS_PER_CALL)

    def _joined(self, parts: Sequence[Values]) -> Values:
        """Join the outputs of several groups of images."""
        return {name: np.concatenate([part[name] for part in parts], axis=self._axes[name]) for name in parts[0]}
