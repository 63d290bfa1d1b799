"""Choosing an ONNX Runtime execution provider, and being honest about the one obtained."""

import sys
from enum import StrEnum
from types import ModuleType
from typing import Any

from uce_edge.errors import MissingPartError, ModelFileError, UceEdgeError, UsageError, expected

_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"


class Device(StrEnum):
    """Where a model runs."""

    AUTO = "auto"
    """CUDA when it really works, otherwise the CPU; says which on stderr if CUDA was offered and failed."""
    CPU = "cpu"
    """The CPU."""
    CUDA = "cuda"
    """CUDA or an error, never a silent fallback."""


def onnxruntime() -> ModuleType:
    """The installed ONNX Runtime, or the command that installs it."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingPartError("Running a model", "onnxruntime", "cpu") from None
    module: ModuleType = onnxruntime
    return module


def check_threads(threads: int | None) -> None:
    """Refuse a number of threads that cannot be."""
    if threads is not None and threads < 1:
        raise UsageError(expected("`threads`", "at least 1", threads, "Leave it out to use all cores"))


def open_session(path: str | bytes, device: Device | str = Device.AUTO, threads: int | None = None) -> Any:
    """Load a model file on the wanted device.

    Args:
        path: An ONNX file, or its content.
        device: Where to run it.
        threads: Intra-op threads; None leaves the choice to ONNX Runtime.

    Returns:
        An `onnxruntime.InferenceSession`; `get_providers()` tells the truth about it.
    """
    if device not in list(Device):
        raise UsageError(expected("`device`", f"one of {', '.join(Device)}", device, "Use: --device auto"))
    check_threads(threads)
    ort, device = onnxruntime(), Device(device)
    listed = _CUDA in ort.get_available_providers()
    if device is Device.CUDA and not listed:
        raise UceEdgeError(
            f"`--device cuda` needs a CUDA build of ONNX Runtime, and {_installed()} is installed. "
            'Run: pip uninstall -y onnxruntime && pip install "uce-edge[gpu]"'
        )
    if device is not Device.CPU and listed:
        try:
            session = _load(ort, path, [_CUDA, _CPU], threads)
        except ModelFileError:
            session = _load(ort, path, [_CPU], threads)  # fails again unless CUDA was to blame
        if _CUDA in session.get_providers():
            return session
        # The GPU wheel lists CUDA everywhere and falls back in silence; only the session knows.
        if device is Device.CUDA:
            raise UceEdgeError(
                "`--device cuda` was asked for, but ONNX Runtime could not start CUDA (driver, CUDA or cuDNN missing). "
                "Run with --device cpu, or install the CUDA libraries: pip install 'onnxruntime-gpu[cuda,cudnn]'"
            )
        print("uce-edge: CUDA is not usable here; running on the CPU.", file=sys.stderr)
        return session
    return _load(ort, path, [_CPU], threads)


def _load(ort: ModuleType, path: str | bytes, providers: list[str], threads: int | None) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # failures come back as exceptions; warnings about fallbacks are said above
    if threads is not None:
        options.intra_op_num_threads = threads
    # The global logger reports a failed CUDA start on stderr in a dozen lines; one sentence says the same.
    ort.set_default_logger_severity(4)
    try:
        # ONNX Runtime's own fallback prints a banner on stdout, which is for data.
        return ort.InferenceSession(path, options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime raises its own unrelated classes per failure
        reason = str(error).splitlines()[0]
        name = path if isinstance(path, str) else "The model"
        raise ModelFileError(f"{name} is not a model ONNX Runtime can load ({reason}). Is it an .onnx file?") from None
    finally:
        ort.set_default_logger_severity(2)


def _installed() -> str:
    import importlib.metadata  # slow, and only needed for this message

    names = importlib.metadata.packages_distributions().get("onnxruntime", [])
    return " and ".join(sorted(set(names))) or "no known distribution"
