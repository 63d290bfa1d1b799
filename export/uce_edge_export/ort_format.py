"""Write a second file in ONNX Runtime's own format."""

import warnings
from pathlib import Path

import numpy as np

from uce_edge._util.atomic_files import removable, replacing
from uce_edge.contract import Inference, NoiseKind, Precision
from uce_edge.errors import IntegrityWarning, UceEdgeError, UsageError, expected
from uce_edge.integrity.digests import of_model
from uce_edge.integrity.protobuf import fields
from uce_edge.runtime.model import Model
from uce_edge.runtime.providers import onnxruntime

SUFFIX = ".ort"
TOLERANCE = 1e-4  # on logits of unit scale, as at the parity gate
_PASSES = 2


def convert(path: str | Path) -> Path:
    """Write NAME.ort beside NAME.onnx, with the same answers.

    The description of both, NAME.json, gets the digest of the new file. As in `publish.draft`, there is never a wrong
    one.

    Args:
        path: A model file, as `uce-edge export` or `uce-edge calibrate` wrote it.

    Returns:
        The new file. It is written only if its logits are those of the model file.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise UsageError(expected("`path`", "a file name ending in .onnx", str(path), "Name the exported model"))
    original = Model(path, "cpu")
    target, description = path.with_suffix(SUFFIX), path.with_suffix(".json")
    with replacing(description) as described, removable(description) as remove_old, replacing(target) as temporary:
        content = original.content()
        _save(path, content, temporary, original.metadata.precision)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IntegrityWarning)  # its digest is not on disk yet
            converted = Model(temporary, "cpu")
            _check(original, converted, target)
        graph = of_model(fields(memoryview(content)))
        metadata = original.metadata.sealed(graph, ort=converted.sha256)
        described.write_text(metadata.to_json(indent=2) + "\n")
        remove_old()
    return target


def _save(path: Path, content: bytes, out: Path, precision: Precision) -> None:
    ort = onnxruntime()
    # Folded, weights of half precision would be stored in float32.
    left_out = ["ConstantFolding"] if precision is Precision.FP16_WEIGHTS else None
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # One level more would arrange weights for the vector units of this very processor.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(out)
    options.add_session_config_entry("session.save_model_format", "ORT")
    try:
        ort.InferenceSession(content, options, providers=["CPUExecutionProvider"], disabled_optimizers=left_out)
    except Exception as error:  # onnxruntime raises its own unrelated classes per failure
        raise UceEdgeError(
            f"ONNX Runtime {ort.__version__} cannot write {path} in its own format ({str(error).splitlines()[0]}). "
            f"{path} is complete: use it as it is.",
            "ort.unsupported",
        ) from None


def _check(original: Model, converted: Model, target: Path) -> None:
    """Compare both on random pixels; random noise must be finite."""
    metadata = original.metadata
    spec = metadata.image
    shape = (2, spec.height, spec.width, spec.channels)
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(spec.dtype)
    passes = _PASSES if metadata.takes_seeds else None
    theirs, ours = (model.logits(pixels, passes) for model in (original, converted))
    if metadata.noise is NoiseKind.RANDN and metadata.inference is not Inference.DETERMINISTIC:
        difference = 0.0 if np.isfinite(ours).all() else np.nan
    else:
        difference = float(np.abs(ours - theirs).max()) / max(float(theirs.std()), 1e-6)
    # Written so that NaN fails, too.
    if not difference <= TOLERANCE:
        raise UceEdgeError(
            f"{target} was not written: its logits differ from those of {original.path} by {difference:.2g} (allowed: "
            f"{TOLERANCE:g}). {original.path} is complete: use it as it is.",
            "ort.different",
        )
