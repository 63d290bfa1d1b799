"""Open ONNX Runtime sessions on a device."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from uce_edge._util.field_rules import between, checked
from uce_edge.errors import (
    DeviceWarning,
    MissingPartError,
    ModelFileError,
    UceEdgeError,
    argument,
)
from uce_edge.runtime import device_choice, telemetry
from uce_edge.runtime.device_choice import Device

CPU = "CPUExecutionProvider"
CARDS = ("CUDAExecutionProvider", "TensorrtExecutionProvider")
"""The providers that run on a graphics card."""
CARD_MEMORY = 4096
"""Default megabytes for the values of one call on a card, which has no small cache and likes all passes at once."""
_Threads = Annotated[int, between(1, 1024)] | None
_log_is_silent = False


@dataclass(frozen=True)
class _Accelerator:
    """An execution provider besides the CPU, and its installation."""

    name: str
    providers: tuple[str, ...]
    """The first must be obtained; the others take what it leaves."""
    wheel: str
    missing: str
    libraries: str


_ACCELERATORS = {
    Device.CUDA: _Accelerator(
        "CUDA",
        ("CUDAExecutionProvider",),
        '"uce-edge[gpu]"',
        "driver, CUDA or cuDNN missing",
        "install the CUDA libraries: pip install 'onnxruntime-gpu[cuda,cudnn]'",
    ),
    Device.TENSORRT: _Accelerator(
        "TensorRT",
        ("TensorrtExecutionProvider", "CUDAExecutionProvider"),
        '"uce-edge[gpu]"',
        "driver, CUDA or TensorRT missing",
        "install its libraries: pip install tensorrt 'onnxruntime-gpu[cuda,cudnn]'",
    ),
    Device.OPENVINO: _Accelerator(
        "OpenVINO",
        ("OpenVINOExecutionProvider",),
        "onnxruntime-openvino",
        "its libraries are missing",
        "install them: pip install openvino",
    ),
}


def onnxruntime() -> ModuleType:
    """Import ONNX Runtime with its telemetry off."""
    telemetry.switch_off()
    try:
        import onnxruntime
    except ImportError:
        raise MissingPartError("Running a model", "onnxruntime", "cpu") from None
    module: ModuleType = onnxruntime
    return module


def silence_log() -> None:
    """Silence ONNX Runtime's own log for this process.

    For a program that reports all failures itself. A library leaves the log as it is: ONNX Runtime does not report
    the level that its user chose.
    """
    global _log_is_silent  # noqa: PLW0603 - decided before ONNX Runtime is imported, which takes a while
    _log_is_silent = True


def check_threads(threads: int | None) -> None:
    """Reject a number of threads outside 1 to 1024."""
    checked("threads", _Threads, threads, "Leave it out to use all cores")


def open_session(
    model: str | bytes,
    device: Device | str = Device.AUTO,
    threads: int | None = None,
    *,
    spin: bool = True,
    name: str = "The model",
) -> Any:
    """Load a model on a device.

    Args:
        model: The content of a file, or its path.
        device: Where to run it, as `device_choice.parse` reads it: `cuda:1`, or `cuda,gpu_mem_limit=2000000000`.
        threads: Intra-op threads; None leaves the choice to ONNX Runtime.
        spin: Whether these threads keep their cores busy while they wait for each other.
        name: The name of a content in messages.

    Returns:
        An `onnxruntime.InferenceSession`; `get_providers()` names the device that it really has.
    """
    choice = device_choice.parse(device)
    check_threads(threads)
    ort, device = onnxruntime(), choice.device
    options = _options(ort, threads, spin)
    name = model if isinstance(model, str) else name
    if device is Device.CPU:
        return _load(ort, model, name, [CPU], options)
    accelerator = _ACCELERATORS[Device.CUDA if device is Device.AUTO else device]
    if accelerator.providers[0] not in ort.get_available_providers():
        if device is Device.AUTO:
            return _load(ort, model, name, [CPU], options)
        raise UceEdgeError(
            f"{argument('device', device)} needs {'an' if accelerator.name[0] in 'AEIO' else 'a'} {accelerator.name} "
            f"build of ONNX Runtime, and {installed()} is installed. "
            f"Run: pip uninstall -y onnxruntime && pip install {accelerator.wheel}",
            "device.missing",
        )
    try:
        placed = [(provider, choice.of_provider(provider)) for provider in accelerator.providers]
        session = _load(ort, model, name, [*placed, CPU], options)
    except ModelFileError:
        session = _load(ort, model, name, [CPU], options)  # fails again unless the accelerator failed
    if accelerator.providers[0] in session.get_providers():
        return session
    # A GPU wheel always lists its providers and falls back silently; only the session knows.
    if device is not Device.AUTO:
        no_card = f", or there is no card {choice.card}" if choice.card else ""
        raise UceEdgeError(
            f"{argument('device', device)} is not usable: ONNX Runtime could not start {accelerator.name} "
            f"({accelerator.missing}{no_card}). Run with {argument('device', 'cpu')}, or {accelerator.libraries}",
            "device.unusable",
        )
    warnings.warn(f"{accelerator.name} is not usable here; running on the CPU", DeviceWarning, stacklevel=3)
    return session


def _options(ort: ModuleType, threads: int | None, spin: bool) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # failures are exceptions; fallbacks warn above
    if threads is not None:
        options.intra_op_num_threads = threads
    if not spin:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _load(
    ort: ModuleType, model: str | bytes, name: str, providers: Sequence[str | tuple[str, dict[str, str]]], options: Any
) -> Any:
    if _log_is_silent:
        # The process-wide log reports a failed CUDA start in a dozen lines.
        ort.set_default_logger_severity(4)
    try:
        # ONNX Runtime's own fallback prints a banner on stdout, which is for data.
        session = ort.InferenceSession(model, options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime raises its own unrelated classes per failure
        raise not_loadable(name, str(error).splitlines()[0]) from None
    session._model_bytes = None  # it keeps the content for a fallback that is switched off
    return session


def not_loadable(name: str, reason: str) -> ModelFileError:
    """The error about a file that is not a model."""
    weights = Path(name).suffix in (".pt", ".pth", ".ckpt", ".safetensors")
    remedy = "It looks like weights of PyTorch: export them, see docs/export.md" if weights else "Is it an .onnx file?"
    return ModelFileError(f"{name} is not a model ONNX Runtime can load ({reason}). {remedy}", "model.unloadable")


def installed() -> str:
    """The distributions that the module `onnxruntime` comes from."""
    import importlib.metadata  # slow, and only needed for this message

    names = importlib.metadata.packages_distributions().get("onnxruntime", [])
    return " and ".join(sorted(set(names))) or "no known distribution"
