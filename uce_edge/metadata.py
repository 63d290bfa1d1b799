"""The metadata of a model file: one JSON document."""

import base64
import binascii
import json
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from uce_edge import contract_1
from uce_edge._util.field_rules import (
    ABOVE_ZERO,
    NONE_AS_EMPTY,
    NOT_EMPTY,
    OPTIONAL,
    Count,
    Positive,
    RecordError,
    Rule,
    Share,
    between,
    many,
    strictly_between,
)
from uce_edge._util.records import DocumentError, Record, parse
from uce_edge.calibration.label_sets import LabelSets
from uce_edge.contract import (
    IN_SET,
    KEY,
    MAX_SAMPLES,
    NOVELTY,
    VERSION,
    Inference,
    Method,
    NoiseKind,
    Posterior,
    Precision,
    Sigma,
)
from uce_edge.errors import ModelFileError, expected
from uce_edge.images.gray_range import Range
from uce_edge.images.resize import STRETCH, Resize
from uce_edge.integrity.digests import MARK, Digests, of_document
from uce_edge.integrity.self_test import Probe
from uce_edge.monitor.state import StoredReference
from uce_edge.rejection.promises import ErrorPromise, HeldOut
from uce_edge.rejection.rule import RejectRule

__all__ = [
    "Calibration",
    "CalibrationReport",
    "Costs",
    "Hashes",
    "ImageSpec",
    "LaplaceFit",
    "Metadata",
    "NoisyLayer",
    "Pretrained",
    "Sketch",
    "StoredScore",
]

_AGAIN = "Export it again: uce-edge export"

ClassNames = Annotated[tuple[Annotated[str, NOT_EMPTY], ...], many(2, "names")]
Rate = Annotated[float, strictly_between(0, 1)]
"""A dropout rate."""


@dataclass(frozen=True)
class ImageSpec(Record):
    """The image that a model takes.

    `mean` and `std` apply to pixels divided by `scale`.
    """

    height: Positive
    width: Positive
    channels: Positive
    dtype: Annotated[str, Rule("that is uint8 or float32", ("uint8", "float32").__contains__)] = "uint8"
    scale: Annotated[float, ABOVE_ZERO] = 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[Annotated[float, ABOVE_ZERO], ...] = (1.0,)
    range: Annotated[Range | None, OPTIONAL] = None
    """The raw gray values that become 0 and 255, of more than 8 bits; None for the range of the file's type."""
    resize: Annotated[Resize, OPTIONAL] = STRETCH
    """How an image of another size becomes one of this size."""

    REMEDY: ClassVar[str] = "docs/contract.md says what an image is."

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                raise self.wrong(name, "one number" if self.channels == 1 else f"one number or {self.channels}")
        self._check_resize()

    def _check_resize(self) -> None:
        resize, longer = self.resize, max(self.width, self.height)
        if resize.size is not None and resize.size < longer:
            rule = f"at least {longer}, the longer side of the model's image"
            raise RecordError("resize.size", rule, resize.size, self.REMEDY)
        if isinstance(resize.fill, tuple) and len(resize.fill) not in (1, self.channels):
            rule = "one number" if self.channels == 1 else f"one number or {self.channels}"
            raise RecordError("resize.fill", rule, resize.fill, self.REMEDY)

    @property
    def words(self) -> str:
        """The size and type of an image, in words."""
        of = "" if self.range is None else f", gray values {self.range}"
        by = "" if self.resize == STRETCH else f", resize {self.resize}"
        return f"{self.height} x {self.width} x {self.channels} {self.dtype}{of}{by}"


@dataclass(frozen=True)
class NoisyLayer(Record):
    """One layer with noise, and its rate."""

    name: str
    p: Rate
    kind: Annotated[str | None, OPTIONAL] = None
    """A `contract.PerturbationKind`, or one of a later version: a reader needs none of it. None is an older file's
    Gaussian dropout."""


@dataclass(frozen=True)
class Pretrained(Record):
    """Published weights that training started from."""

    name: str
    licence: str
    source: str
    """Where they were published."""
    sha256: str
    """Of the file, or of the tensors if they are in several."""


@dataclass(frozen=True, kw_only=True)
class CalibrationReport(Record):
    """The effect of a map on its fitting images."""

    images: Positive
    nll_of_chance: Annotated[float | None, OPTIONAL] = None
    """NLL of a guess."""
    nll_before: float
    nll_after: float
    label_flips: Count
    """Images whose label changed."""
    accuracy_before: Annotated[Share | None, OPTIONAL] = None
    accuracy_after: Annotated[Share | None, OPTIONAL] = None
    rates_tuned: Annotated[bool | None, OPTIONAL] = None
    """Whether better dropout rates were found, where they were looked for."""

    @property
    def near_chance(self) -> bool:
        """Whether the calibrated model is hardly better than a guess."""
        return self.nll_of_chance is not None and self.nll_after > 0.9 * self.nll_of_chance


@dataclass(frozen=True)
class Calibration(Record):
    """The calibration map in the graph, and its fit."""

    method: Method = Method.NONE
    parameters: dict[str, list[float] | list[list[float]]] = field(default_factory=dict)
    samples: Annotated[int, between(1, MAX_SAMPLES)] | None = None
    """The number of passes it was fitted at; the temperature depends on it."""
    report: Annotated[CalibrationReport | None, NONE_AS_EMPTY] = None
    error: tuple[float, float, float] | None = None
    """The parameters of `error_map.EntropyErrorMap`, in a file of an older version."""
    confidence_error: Annotated[tuple[float, float] | None, OPTIONAL] = None
    """The parameters of `error_map.ErrorMap`: the probability of a wrong label given the confidence."""
    class_shares: Annotated[tuple[Share, ...], OPTIONAL] = ()
    """The mix of classes that it was corrected for; empty for that of its images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("temperature", "variance_scale"):
            values = self.parameters.get(name, [1.0])
            if len(values) != 1 or not isinstance(values[0], int | float) or values[0] <= 0:
                raise RecordError(f"parameters.{name}", "one number above 0", values, self.REMEDY)

    @property
    def outcome(self) -> CalibrationReport:
        """The report of a map that was fitted."""
        if self.report is None:
            raise self.wrong("report", "that of a fit")
        return self.report

    @property
    def temperature(self) -> float | None:
        """The temperature, if there is one."""
        values = self.parameters.get("temperature", [None])
        return values[0] if isinstance(values[0], int | float) else None


@dataclass(frozen=True)
class Costs(Record):
    """Multiply-accumulates for one image, and memory."""

    macs_once: Count
    """Once per image, for any N."""
    macs_per_pass: Count
    """Per pass."""
    bytes_per_pass: Annotated[Positive | None, OPTIONAL] = None
    """The approximate memory of one image-pass; None if not measured."""
    bytes_per_draw: Annotated[Positive | None, OPTIONAL] = None
    """The approximate memory of one more pass when the network runs once; None if not measured."""

    @property
    def runs_once(self) -> bool:
        """Whether a pass costs hardly more than a draw.

        One run of the network then gives all passes.
        """
        return 100 * self.macs_per_pass < self.macs_once

    def macs(self, samples: int) -> int:
        """The total of one image with so many passes."""
        return self.macs_once + samples * self.macs_per_pass


@dataclass(frozen=True)
class LaplaceFit(Record):
    """How the posterior of the last layer was fitted."""

    prior_precision: Annotated[float, ABOVE_ZERO]
    prior_from: str
    """A `contract.PriorFrom`, or one of a later version."""
    images: Positive
    """The number of images for the curvature."""
    nll: float
    """On held-out images, with draws at their own temperature."""
    nll_without: float
    """The same without draws."""


@dataclass(frozen=True)
class StoredScore(Record):
    """A metric on test images; undefined values are None."""

    value: float | None
    low: float | None = None
    """The lower end of the 95 % interval."""
    high: float | None = None
    """The upper end."""
    twin: float | None = None
    """The score of a perfectly calibrated model with the same probabilities."""


@dataclass(frozen=True)
class Sketch(Record):
    """Fingerprints of training images, see `uce_edge.datasets.overlap`."""

    one_in: Positive
    """Only every `one_in`-th fingerprint is kept."""
    blake2b_64: str
    """The fingerprints, 8 bytes each, in base64."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            whole = len(self.content) % 8 == 0
        except (binascii.Error, ValueError):
            whole = False
        if not whole:
            raise self.wrong("blake2b_64", "base64 of 8 bytes per image")

    @property
    def content(self) -> bytes:
        """The fingerprints, one after the other."""
        return base64.b64decode(self.blake2b_64, validate=True)


@dataclass(frozen=True)
class Hashes(Record):
    """SHA-256 of the sources of a file."""

    calibration_data: Annotated[str | None, OPTIONAL] = None
    """The images of the last calibration, when that was not the run's own."""
    source: Annotated[str | None, OPTIONAL] = None
    """The third-party source file."""
    splits: Annotated[dict[str, str], OPTIONAL] = field(default_factory=dict)
    """The parts of the run's dataset, by name."""
    weights: Annotated[str | None, OPTIONAL] = None

    def named(self) -> dict[str, str]:
        """All of them, those of the splits as splits/NAME."""
        single = {"calibration_data": self.calibration_data, "source": self.source, "weights": self.weights}
        known = {name: digest for name, digest in single.items() if digest is not None}
        return dict(sorted((known | {f"splits/{name}": digest for name, digest in self.splits.items()}).items()))


@dataclass(frozen=True)
class Metadata(Record):
    """All metadata of a model file.

    One JSON document under the key `uce_edge`.
    """

    classes: ClassNames
    image: ImageSpec
    contract: int = VERSION
    minor: Annotated[Count, OPTIONAL] = 0
    """The minor version of the contract that the file was written by."""
    outputs: Annotated[tuple[str, ...], OPTIONAL] = ()
    """The optional outputs that the graph has."""
    inference: Inference = Inference.MC
    posterior: Annotated[Posterior | None, OPTIONAL] = None
    """What the passes differ in; None in a file from before there was a choice."""
    members: Annotated[Positive, OPTIONAL] = 1
    """How many networks an ensemble has: the samples axis of the outputs is seeds x members, seed by seed."""
    laplace: Annotated[LaplaceFit | None, OPTIONAL] = None
    """How the posterior of a `laplace` file was fitted."""
    noise: NoiseKind = NoiseKind.TABLE
    precision: Precision = Precision.FP32
    architecture: str = ""
    samples: Annotated[int, between(1, MAX_SAMPLES)] = 25
    baked: bool = False
    """Whether the seeds 0, 1, ..., samples - 1 are in the graph, which then has no such input."""
    sigma: Annotated[Sigma, OPTIONAL] = Sigma.EXACT
    """How the standard deviation of the noise is computed."""
    layers: tuple[NoisyLayer, ...] = ()
    calibration: Calibration = field(default_factory=Calibration)
    rule: Annotated[RejectRule | None, OPTIONAL] = None
    """The rule of `--reject auto` and of the output `decision`; None if the file stores none."""
    novelty_layers: Annotated[tuple[Count, ...], OPTIONAL] = ()
    """The weight layers of the network, from 0, whose inputs the novelty gate looks at; none for the last layer."""
    sets: Annotated[LabelSets | None, OPTIONAL] = None
    """The prediction sets of the output `in_set`; None for a file without it."""
    held_out: HeldOut | None = None
    """The effect of thresholds on held-out images."""
    monitor: Annotated[StoredReference | None, OPTIONAL] = None
    """The reference of the drift monitor: outputs for images like the calibration images."""
    costs: Annotated[Costs | None, NONE_AS_EMPTY] = None
    metrics: dict[str, StoredScore] = field(default_factory=dict)
    """Scores on test images, by name."""
    card: dict[str, Any] = field(default_factory=dict)
    """The model card: data, commands, limits, licence."""
    trained_on: Annotated[Sketch | None, NONE_AS_EMPTY] = None
    """Fingerprints of the training images, to detect calibration on them."""
    seen: Annotated[tuple[str, ...], OPTIONAL] = ()
    """Augmentations and added images of training, by name; an evaluation reports them separately."""
    group: Annotated[str | None, OPTIONAL] = None
    """The column or pattern that grouped the images, so that no group is in two splits."""
    pretrained: Annotated[Pretrained | None, OPTIONAL] = None
    """The published weights that training started from, with their licence."""
    hashes: Hashes = field(default_factory=Hashes)
    tools: dict[str, str] = field(default_factory=dict)
    """The versions that made the file."""
    probe: Annotated[tuple[Probe, ...], OPTIONAL] = ()
    """The self-test: synthetic images and their published outputs."""
    digests: Annotated[Digests | None, OPTIONAL] = None
    """The published digests; None in older files."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("contract", "classes", "image", "inference", "samples")

    def __post_init__(self) -> None:
        super().__post_init__()
        stored = self.rule
        if stored is not None and stored.cutoff is not None and NOVELTY not in self.outputs:
            raise self.wrong("outputs", f"a list with {NOVELTY}, which the rule compares")
        if stored is not None and not stored.fits(len(self.classes)):
            raise self.wrong("rule", f"an object with one limit, or {len(self.classes)}, one for every class")
        if (self.sets is not None) != (IN_SET in self.outputs):
            raise self.wrong("outputs", f"a list with {IN_SET} exactly when there are prediction sets")
        if self.sets is not None and not self.sets.fits(len(self.classes)):
            raise self.wrong("sets", f"an object with one limit, or {len(self.classes)}, one for every label")

    @property
    def runs_once(self) -> bool:
        """Whether the network runs once per image, however many passes are drawn."""
        return self.costs is not None and self.costs.runs_once

    @property
    def takes_seeds(self) -> bool:
        """Whether the graph has the input `seeds`."""
        return self.inference is not Inference.DETERMINISTIC and not self.baked

    @property
    def promise(self) -> ErrorPromise | None:
        """The promised error of what `--reject auto` accepts."""
        stored = self.rule
        return None if stored is None else stored.promise

    def without_promises(self) -> "Metadata":
        """Drop everything measured on outputs that have changed."""
        outputs = tuple(name for name in self.outputs if name != IN_SET)
        return replace(self, rule=None, sets=None, outputs=outputs, held_out=None, monitor=None, metrics={}, probe=())

    def to_properties(self) -> dict[str, str]:
        """The key/value pairs of the ONNX file.

        They include the plain keys that other tools read.
        """
        properties = {
            KEY: self.to_json(),
            "names": json.dumps({str(i): name for i, name in enumerate(self.classes)}),
            "imgsz": json.dumps([self.image.height, self.image.width]),
        }
        if self.digests is not None:
            properties[MARK] = "sha256"
        return properties

    def sealed(self, graph: str, ort: str | None = None) -> "Metadata":
        """The same with digests.

        Args:
            graph: The digest of the graph.
            ort: That of the file in ONNX Runtime's own format, for the description beside it.
        """
        others = Digests(graph, metadata="0" * 64, ort=ort).to_document() | {"metadata": ""}
        document = json.dumps(self.to_document() | {"digests": others}, sort_keys=True, allow_nan=False)
        return replace(self, digests=Digests(graph, of_document(document), ort))

    @classmethod
    def from_properties(cls, properties: dict[str, str], source: str) -> "Metadata":
        """Read the metadata of a model file.

        Args:
            properties: The custom metadata of the ONNX file.
            source: The file's name, for the message.
        """
        if KEY not in properties:
            raise ModelFileError(
                f"{source} is an ONNX file, but not a uce-edge model (it has no metadata under {KEY!r}). "
                f"Make one of it with: uce-edge export --from {source}",
                "metadata.missing",
            )
        try:
            document = parse(properties[KEY])
            cls._check_version(document, source)
            return cls.from_document(contract_1.convert(document) if document["contract"] == 1 else document)
        except DocumentError as error:
            raise ModelFileError(f"{source} has damaged metadata ({error}). {_AGAIN}", "metadata.damaged") from None
        except RecordError as error:
            message = expected(f"`{error.key}`", error.rule, error.value, _AGAIN)
            raise ModelFileError(
                f"{source} has metadata this version cannot read. {message}", "metadata.damaged", **message.fields
            ) from None

    @classmethod
    def _check_version(cls, document: dict[str, Any], source: str) -> None:
        """Reject an unknown contract, or missing required keys."""
        version = document.get("contract")
        if type(version) is not int or version not in (1, VERSION):  # true is 1 to Python alone
            raise ModelFileError(
                f"{source} follows model contract {version!r}, and this version of uce-edge reads 1 and {VERSION}. "
                "Export the model again, or install the uce-edge that wrote it.",
                "metadata.version",
            )
        missing = [key for key in cls.REQUIRED if key not in document]
        if missing:
            raise ModelFileError(f"{source} lacks the metadata {', '.join(missing)}. {_AGAIN}", "metadata.incomplete")
