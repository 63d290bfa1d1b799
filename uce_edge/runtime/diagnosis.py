"""Diagnosis of an installation: packages, devices, telemetry, bundled model."""

import json
import platform
import sys
from dataclasses import dataclass, field
from importlib import metadata

from uce_edge import __version__, models
from uce_edge.errors import UceEdgeError
from uce_edge.runtime import telemetry
from uce_edge.runtime.device_choice import Device
from uce_edge.runtime.model import Model
from uce_edge.runtime.providers import onnxruntime

_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")
_PACKAGES = ("numpy", "pillow", "typer", "torch", "onnx", "matplotlib", "scikit-learn")


@dataclass
class Diagnosis:
    """The installation and its problems."""

    packages: dict[str, str]
    """Versions of the installed packages."""
    problems: list[str]
    """One sentence each, with its remedy."""
    listed: list[str] = field(default_factory=list)
    """Execution providers that ONNX Runtime lists."""
    obtained: dict[str, str | None] = field(default_factory=dict)
    """The provider that a session gets, per device; None if the session fails."""
    telemetry: str = "unknown"
    model: str = "unknown"
    """The result of the self-test of the bundled model."""
    python: str = f"{platform.python_version()} ({sys.executable})"
    machine: str = f"{platform.system()} {platform.machine()}"

    def to_json(self) -> str:
        """Write the JSON document of `doctor --json`."""
        document = {
            "uce-edge": __version__,
            "python": self.python,
            "machine": self.machine,
            "packages": self.packages,
            "providers listed": self.listed,
            "sessions obtained": self.obtained,
            "telemetry": self.telemetry,
            "bundled model": self.model,
            "problems": self.problems,
        }
        return json.dumps(document, indent=2)


def diagnose() -> Diagnosis:
    """Inspect the installation; problems are in the result."""
    installed = {name: version for name in (*_RUNTIMES, *_PACKAGES) if (version := _version(name))}
    runtimes = [name for name in _RUNTIMES if name in installed]
    diagnosis = Diagnosis(installed, _problems_of(runtimes))
    if runtimes:
        try:
            diagnosis.listed, diagnosis.obtained = _try_devices()
            diagnosis.telemetry = telemetry.state(onnxruntime())
            diagnosis.model = _try_model()
        except UceEdgeError as error:
            diagnosis.problems.append(str(error))
    if "CUDAExecutionProvider" in diagnosis.listed and diagnosis.obtained.get("cuda") is None:
        diagnosis.problems.append(_cuda_remedy())
    return diagnosis


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _problems_of(runtimes: list[str]) -> list[str]:
    if not runtimes:
        return ['ONNX Runtime is not installed. Run: pip install "uce-edge[cpu]"   (or [gpu] with an NVIDIA card)']
    if len(runtimes) > 1:
        names = " and ".join(runtimes)
        both = " ".join(runtimes)
        return [
            f"{names} are installed together and overwrite each other's files, so it is random which one runs. "
            f'Run: pip uninstall -y {both} && pip install "uce-edge[cpu]"   (or [gpu])'
        ]
    return []


def _try_devices() -> tuple[list[str], dict[str, str | None]]:
    """List the providers, and try the bundled model on every device."""
    obtained: dict[str, str | None] = {}
    for device in (Device.CPU, Device.CUDA, Device.TENSORRT, Device.OPENVINO):
        try:
            obtained[device] = Model(models.bundled(), device).provider
        except UceEdgeError:
            obtained[device] = None
    return list(onnxruntime().get_available_providers()), obtained


def _try_model() -> str:
    """Run the self-test of the bundled model."""
    path = models.bundled()
    tested = Model(path, Device.CPU).self_test()
    if tested is None:
        return "without probe images"
    if not tested.passed:
        message = f"{tested.sentence(str(path))} Install uce-edge and onnxruntime again."
        raise UceEdgeError(message, "model.self-test-failed", path=path)
    return f"as published; its probe images are answered within {tested.difference:.1g}"


def _cuda_remedy() -> str:
    """The versions that ONNX Runtime was built with, and how to install them."""
    ort = onnxruntime()
    cuda = getattr(ort, "cuda_version", "") or "12"
    cudnn = getattr(ort, "cudnn_version", "") or "9"
    return (
        f"CUDA is listed but does not start. It needs an NVIDIA driver (does `nvidia-smi` answer?), CUDA {cuda} and "
        f"cuDNN {cudnn}. Run: pip install 'onnxruntime-gpu[cuda,cudnn]'"
    )
