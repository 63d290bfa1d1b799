"""What a model file says of itself: one JSON document, as the contract describes it."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

from uce_edge.contract import KEY, MAX_SAMPLES, VERSION, Inference, Method, NoiseKind, Precision
from uce_edge.errors import ModelFileError


@dataclass(frozen=True)
class ImageSpec:
    """What the model takes as one image. `mean` and `std` apply to pixels divided by `scale`."""

    height: int
    width: int
    channels: int
    dtype: str = "uint8"
    scale: float = 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "ImageSpec":
        """From parsed JSON."""
        return cls(**(document | {"mean": tuple(document["mean"]), "std": tuple(document["std"])}))


@dataclass(frozen=True)
class NoisyLayer:
    """One weight layer with Gaussian dropout and its rate."""

    name: str
    p: float


@dataclass(frozen=True)
class Calibration:
    """The calibration map that is in the graph, and how it was fitted."""

    method: Method = Method.NONE
    parameters: dict[str, Any] = field(default_factory=dict)
    samples: int | None = None
    """The number of passes it was fitted at; the temperature depends on it."""
    report: dict[str, Any] = field(default_factory=dict)
    """NLL before and after, flips of the label, size of the calibration set."""
    error: tuple[float, float, float] | None = None
    """The parameters of `error_map.ErrorMap`: the probability of a wrong label given the uncertainty."""

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "Calibration":
        """From parsed JSON."""
        error = document.get("error")
        values = {"method": Method(document.get("method", "none")), "error": None if error is None else tuple(error)}
        return cls(**(document | values))


@dataclass(frozen=True)
class Metadata:
    """Everything a file says about itself: one JSON document under the key `uce_edge`."""

    classes: tuple[str, ...]
    image: ImageSpec
    contract: int = VERSION
    inference: Inference = Inference.MC
    noise: NoiseKind = NoiseKind.TABLE
    precision: Precision = Precision.FP32
    architecture: str = ""
    samples: int = 25
    baked: bool = False
    """Whether the seeds 0, 1, ..., samples - 1 are in the graph, which then has no such input."""
    layers: tuple[NoisyLayer, ...] = ()
    calibration: Calibration = field(default_factory=Calibration)
    reject: dict[str, Any] | None = None
    """A stored rejection threshold with its guarantee, when one was fitted."""
    held_out: dict[str, Any] | None = None
    """The `guarantee.Counts` of images that nothing was fitted on, and which passes they were counted with."""
    costs: dict[str, int] = field(default_factory=dict)
    """Multiply-accumulates for one image: `macs_once`, and `macs_per_pass` that every pass adds; `bytes_per_pass`."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Scores on test images: value, interval, and the value of a perfectly calibrated twin."""
    card: dict[str, Any] = field(default_factory=dict)
    """What a user should know before using the model: data, commands, limits, licence."""
    trained_on: dict[str, Any] = field(default_factory=dict)
    """Fingerprints of the training images, so that nobody calibrates on them."""
    hashes: dict[str, Any] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)

    REQUIRED: ClassVar[tuple[str, ...]] = ("contract", "classes", "image", "inference", "samples")

    @property
    def takes_seeds(self) -> bool:
        """Whether the graph has the input `seeds`."""
        return self.inference is not Inference.DETERMINISTIC and not self.baked

    def to_json(self, indent: int | None = None) -> str:
        """The document, stable in key order, so that equal models give equal bytes."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, allow_nan=False, indent=indent)

    def to_properties(self) -> dict[str, str]:
        """All key/value pairs written into the ONNX file, with the plain keys other tools read."""
        properties = {
            KEY: self.to_json(),
            "names": json.dumps({str(i): name for i, name in enumerate(self.classes)}),
            "imgsz": json.dumps([self.image.height, self.image.width]),
        }
        if self.reject is not None:
            properties["reject_threshold"] = json.dumps(self.reject["threshold"])
        return properties

    @classmethod
    def from_properties(cls, properties: dict[str, str], source: str) -> "Metadata":
        """Read the metadata of a model file, or say why it is not one of ours.

        Args:
            properties: The custom metadata of the ONNX file.
            source: The file's name, for the message.
        """
        if KEY not in properties:
            raise ModelFileError(
                f"{source} is an ONNX file, but not a uce-edge model (it has no metadata under {KEY!r}). "
                f"Make one of it with: uce-edge export --from {source}"
            )
        try:
            document = json.loads(properties[KEY])
        except json.JSONDecodeError as error:
            raise ModelFileError(f"{source} has damaged metadata ({error}). Export it again: uce-edge export") from None
        found = document.get("contract") if isinstance(document, dict) else None
        if found != VERSION:
            raise ModelFileError(
                f"{source} follows model contract {found!r}, and this version of uce-edge reads contract {VERSION}. "
                "Export the model again, or install the uce-edge that wrote it."
            )
        missing = [key for key in cls.REQUIRED if key not in document]
        if missing:
            raise ModelFileError(f"{source} lacks the metadata {', '.join(missing)}. Export it again: uce-edge export")
        try:
            return cls._from_document(document)
        except (TypeError, ValueError, KeyError) as error:
            raise ModelFileError(
                f"{source} has metadata this version cannot read ({error}). Export it again: uce-edge export"
            ) from None

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> "Metadata":
        known = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in document.items() if key in known}
        values["image"] = ImageSpec.from_document(values["image"])
        values["classes"] = tuple(values["classes"])
        values["inference"] = Inference(values["inference"])
        values["noise"] = NoiseKind(values.get("noise", "table"))
        values["precision"] = Precision(values.get("precision", "fp32"))
        values["layers"] = tuple(NoisyLayer(**layer) for layer in values.get("layers", ()))
        values["calibration"] = Calibration.from_document(values.get("calibration", {}))
        if not isinstance(values["samples"], int) or not 1 <= values["samples"] <= MAX_SAMPLES:
            raise ValueError(f"samples is {values['samples']!r}")
        return cls(**values)
