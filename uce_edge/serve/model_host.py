"""The models of a server by name and version, each with its own queue."""

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from uce_edge import contract
from uce_edge.contract import Per
from uce_edge.errors import UsageError, expected
from uce_edge.rejection.rule import check_threshold
from uce_edge.runtime.answers import Answer, Request, answer_of
from uce_edge.runtime.model import Model
from uce_edge.serve.prometheus_metrics import Gauges
from uce_edge.serve.protocol import DATATYPES, InferRequest
from uce_edge.serve.request_batching import Batcher, Pixels, split

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class Named:
    """A model file with its name and version."""

    name: str
    version: int
    path: Path

    @classmethod
    def parse(cls, text: str) -> "Named":
        """Parse PATH, NAME=PATH or NAME:VERSION=PATH."""
        prefix, equals, path = text.partition("=")
        name, colon, version = prefix.partition(":") if equals else (Path(text).stem, "", "")
        if not (_NAME.fullmatch(name) and (_VERSION.fullmatch(version) or not colon)):
            rule = "PATH, NAME=PATH or NAME:VERSION=PATH, NAME of letters, digits, dots and dashes, VERSION a number"
            raise UsageError(expected("`models`", rule, text, "For example: photos:2=photos.onnx"))
        return cls(name, int(version or 1), Path(path or text))


def parse_reject(text: str) -> float | Literal["auto"]:
    """Parse the threshold of a request or a setting."""
    if text == "auto":
        return "auto"
    try:
        return check_threshold(float(text))
    except ValueError:
        rule = "between 0 and 1, or auto"
        raise UsageError(expected("`reject`", rule, text, "For example: reject=0.3")) from None


@dataclass(frozen=True)
class Limits:
    """The largest requests that a server accepts."""

    max_batch: int = 32
    """Images in one call of a model."""
    max_queue: int = 256
    """Waiting images per model."""
    max_samples: int = 256
    """Passes per request."""
    batch_delay: float = 0.0
    """Seconds to wait for more images before a call."""
    timeout: float = 30.0
    """Seconds until a request times out."""
    max_body: int = 32 * 2**20
    """Bytes per request."""

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_queue", "max_samples", "max_body"):
            if getattr(self, name) < 1:
                raise UsageError(expected(f"`{name}`", "at least 1", getattr(self, name), "Leave it out"))
        if self.max_samples > contract.MAX_SAMPLES:
            rule = f"at most {contract.MAX_SAMPLES}"
            raise UsageError(expected("`max_samples`", rule, self.max_samples, "Leave it out for 256"))
        if not self.timeout > 0 or not 0 <= self.batch_delay < self.timeout:
            rule = f"above 0 and longer than the batch delay of {self.batch_delay:g} seconds"
            raise UsageError(expected("`timeout`", rule, self.timeout, "Leave both out"))


@dataclass(frozen=True)
class _Tensors:
    """The tensors of a request; equal requests share a call."""

    seeds: tuple[int, ...]
    names: tuple[str, ...]


class Hosted:
    """One model that answers requests."""

    def __init__(
        self,
        named: Named,
        model: Model,
        limits: Limits,
        gauges: Gauges,
        reject: float | Literal["auto"] | None = None,
    ) -> None:
        """Queue the requests of a loaded model."""
        self.named, self.model, self.reject, self._limits = named, model, reject, limits
        self.outputs = {output.name: output for output in contract.outputs_of(model.metadata.outputs)}
        self.batcher = Batcher(
            self._run,
            max_images=limits.max_batch,
            max_waiting=limits.max_queue,
            delay=limits.batch_delay,
            observe=lambda images: gauges.batch(named.name, images),
        )

    @property
    def per_image(self) -> list[str]:
        """The outputs of a request that names none."""
        return [output.name for output in self.outputs.values() if output.per is Per.IMAGE]

    def describe(self, versions: Iterable[int]) -> dict[str, Any]:
        """The model metadata of the protocol."""
        metadata = self.model.metadata
        spec = metadata.image
        shape = [-1, spec.height, spec.width, spec.channels]
        inputs = [{"name": contract.IMAGE, "datatype": DATATYPES[spec.dtype], "shape": shape}]
        if metadata.takes_seeds:
            inputs.append({"name": contract.SEEDS, "datatype": "INT32", "shape": [-1]})
        lengths = {"classes": len(metadata.classes)}
        outputs = [
            {
                "name": output.name,
                "datatype": DATATYPES[output.dtype],
                "shape": [lengths.get(dimension, -1) for dimension in output.dimensions],
            }
            for output in self.outputs.values()
        ]
        return {
            "name": self.named.name,
            "versions": [str(version) for version in versions],
            "platform": "onnxruntime_onnx",
            "inputs": inputs,
            "outputs": outputs,
        }

    async def infer(self, request: InferRequest) -> dict[str, npt.NDArray[Any]]:
        """Compute the tensors of a request."""
        pixels = self._image(request)
        names = tuple(self.per_image if request.outputs is None else (output.name for output in request.outputs))
        unknown = [name for name in names if name not in self.outputs]
        if unknown or len(set(names)) < len(names):
            rule = f"some of {', '.join(self.outputs)}, each once"
            raise UsageError(expected("`outputs`", rule, list(names), "Leave them out for all per image"))
        result: dict[str, npt.NDArray[Any]] = await self.batcher.submit(_Tensors(self._seeds(request), names), pixels)
        return result

    async def answer(self, pixels: Pixels, request: Request, path: str) -> Answer:
        """Answer for one image, as `predict` does."""
        self._check_samples(request.samples)
        answer: Answer = await self.batcher.submit(request, pixels[None])
        return replace(answer, path=path)

    def _run(self, key: Hashable, jobs: Sequence[Pixels]) -> Sequence[Any]:
        batch = jobs[0] if len(jobs) == 1 else np.concatenate(jobs)
        if isinstance(key, _Tensors):
            values = self.model.outputs(batch, np.array(key.seeds, np.int32), key.names)
            axes = {name: self.outputs[name].dimensions.index("batch") for name in key.names}
            return split(values, axes, [len(job) for job in jobs])
        assert isinstance(key, Request)
        predictions = self.model.predict(batch, key.samples, key.seed, key.reject)
        return [answer_of(self.model, "", prediction) for prediction in predictions]

    def _image(self, request: InferRequest) -> Pixels:
        accepted = {contract.IMAGE} | ({contract.SEEDS} if self.model.metadata.takes_seeds else set())
        if contract.IMAGE not in request.inputs or not request.inputs.keys() <= accepted:
            rule = f"{contract.IMAGE}, optionally {contract.SEEDS}" if len(accepted) > 1 else f"only {contract.IMAGE}"
            raise UsageError(expected("`inputs`", rule, sorted(request.inputs), "Read the metadata of the model"))
        pixels, spec = request.inputs[contract.IMAGE], self.model.metadata.image
        if pixels.shape[1:] != (spec.height, spec.width, spec.channels) or pixels.dtype != spec.dtype:
            rule = f"{DATATYPES[spec.dtype]} [batch, {spec.height}, {spec.width}, {spec.channels}]"
            found = f"{DATATYPES[pixels.dtype.name]} {list(pixels.shape)}"
            raise UsageError(expected("`image`", rule, found, "Send an encoded image of any size to /answer"))
        if len(pixels) > self._limits.max_queue:
            rule = f"at most {self._limits.max_queue} images"
            raise UsageError(expected("`image`", rule, len(pixels), "Send several requests"))
        return pixels

    def _seeds(self, request: InferRequest) -> tuple[int, ...]:
        samples, seed = request.parameters.get("samples"), request.parameters.get("seed", 0)
        if contract.SEEDS in request.inputs:
            seeds = request.inputs[contract.SEEDS]
            if samples is not None or "seed" in request.parameters:
                message = "Choose one of the input `seeds` and the parameters `samples` and `seed`."
                raise UsageError(message, "request.seeds-twice")
            if seeds.dtype != np.int32 or seeds.ndim != 1 or seeds.min() < 0 or seeds.max() >= contract.SEED_SPACE:
                rule = f"INT32 [samples] from 0 to {contract.SEED_SPACE - 1}"
                raise UsageError(expected("`seeds`", rule, f"{seeds.dtype} {list(seeds.shape)}", "Send 0, 1, ..., N-1"))
            self._check_samples(len(seeds))
            return tuple(seeds.tolist())
        for name, value in (("samples", samples), ("seed", seed)):
            if value is not None and type(value) is not int:
                raise UsageError(expected(f"`{name}`", "a whole number", value, "Leave it out for the model's own"))
        self._check_samples(samples)
        return tuple(self.model.seeds(samples, seed).tolist())

    def _check_samples(self, samples: int | None) -> None:
        if samples is not None and samples > self._limits.max_samples:
            rule = f"at most {self._limits.max_samples} on this server"
            raise UsageError(expected("`samples`", rule, samples, "Request fewer passes"))


class Hosts:
    """All models of a server."""

    def __init__(self, hosted: Sequence[Hosted]) -> None:
        """Check that every name and version is unique."""
        self._versions: dict[str, dict[int, Hosted]] = {}
        for model in hosted:
            versions = self._versions.setdefault(model.named.name, {})
            if model.named.version in versions:
                name = f"{model.named.name}:{model.named.version}"
                rule = "different names or versions"
                raise UsageError(
                    expected("`models`", rule, f"{name} twice", "Use NAME:VERSION=PATH"), "model.duplicate"
                )
            versions[model.named.version] = model

    def __iter__(self) -> Any:
        return (model for versions in self._versions.values() for model in versions.values())

    def names(self) -> list[str]:
        """The names of the models."""
        return list(self._versions)

    def versions(self, name: str) -> list[int]:
        """The versions of a model, oldest first."""
        return sorted(self._versions[name])

    def find(self, name: str, version: str | None) -> Hosted | None:
        """Find a model; without a version, its newest."""
        versions = self._versions.get(name, {})
        if version is None:
            return versions[max(versions)] if versions else None
        return versions.get(int(version)) if _VERSION.fullmatch(version) else None
