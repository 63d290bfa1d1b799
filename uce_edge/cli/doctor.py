"""`uce-edge doctor`."""

import json
import platform
import sys
from dataclasses import dataclass, field

import typer

from uce_edge import __version__, models
from uce_edge.cli.messages import echo
from uce_edge.cli.shared_options import JsonOption
from uce_edge.errors import UceEdgeError
from uce_edge.runtime import telemetry
from uce_edge.runtime.providers import Device, onnxruntime

_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")
_PACKAGES = ("numpy", "pillow", "typer", "torch", "onnx", "matplotlib", "scikit-learn")


@dataclass
class _Diagnosis:
    """What is there, and what is wrong with it."""

    packages: dict[str, str]
    """Versions of what is installed."""
    problems: list[str]
    """Each with its remedy."""
    listed: list[str] = field(default_factory=list)
    """Execution providers that ONNX Runtime names."""
    obtained: dict[str, str | None] = field(default_factory=dict)
    """The provider that a session really gets, per device; None where it is refused."""
    telemetry: str = "unknown"
    model: str = "unknown"
    """Whether the bundled model is as published, and answers here as it should."""
    python: str = f"{platform.python_version()} ({sys.executable})"
    machine: str = f"{platform.system()} {platform.machine()}"

    def to_json(self) -> str:
        """As --json prints it."""
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


def doctor(as_json: JsonOption = False) -> None:
    """Show what is installed and where a model really runs, and how to repair what does not work.

    Also shows whether the bundled model is unchanged, and whether ONNX Runtime may send telemetry to its maker.
    uce-edge switches telemetry off, unless you set ORT_DISABLE_TELEMETRY=0.

    Exits with 1 when something is wrong.

    Example: uce-edge doctor
    """
    installed = {name: version for name in (*_RUNTIMES, *_PACKAGES) if (version := _version(name))}
    runtimes = [name for name in _RUNTIMES if name in installed]
    diagnosis = _Diagnosis(installed, _problems_of(runtimes))
    if runtimes:
        try:
            diagnosis.listed, diagnosis.obtained = _try_devices()
            diagnosis.telemetry = telemetry.state(onnxruntime())
            diagnosis.model = _try_model()
        except UceEdgeError as error:
            diagnosis.problems.append(str(error))
    if "CUDAExecutionProvider" in diagnosis.listed and diagnosis.obtained.get("cuda") is None:
        diagnosis.problems.append(_cuda_remedy())
    if as_json:
        typer.echo(diagnosis.to_json())
    else:
        _print(diagnosis)
    if diagnosis.problems:
        raise typer.Exit(1)


def _version(name: str) -> str | None:
    from importlib import metadata  # slow

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
    """What is listed, and the provider that the bundled model gets on every device; None where it is refused."""
    from uce_edge.runtime.model import Model

    obtained: dict[str, str | None] = {}
    for device in (Device.CPU, Device.CUDA, Device.TENSORRT, Device.OPENVINO):
        try:
            obtained[device] = Model(models.bundled(), device).provider
        except UceEdgeError:
            obtained[device] = None
    return list(onnxruntime().get_available_providers()), obtained


def _try_model() -> str:
    """How far the bundled model answers as published; raises when it was changed, or answers otherwise."""
    from uce_edge.runtime.model import Model

    path = models.bundled()
    tested = Model(path, Device.CPU).self_test()
    if tested is None:
        return "without probe images"
    if not tested.passed:
        raise UceEdgeError(f"{tested.sentence(str(path))} Install uce-edge and onnxruntime again.")
    return f"as published; its probe images are answered within {tested.difference:.1g}"


def _cuda_remedy() -> str:
    """What ONNX Runtime misses, from the versions it was built with."""
    ort = onnxruntime()
    wanted = getattr(ort, "cuda_version", "") or "12"
    cudnn = getattr(ort, "cudnn_version", "") or "9"
    return (
        f"CUDA is listed but does not start. It needs an NVIDIA driver (does `nvidia-smi` answer?), CUDA {wanted} and "
        f"cuDNN {cudnn}. Run: pip install 'onnxruntime-gpu[cuda,cudnn]'"
    )


def _print(diagnosis: _Diagnosis) -> None:
    obtained = ", ".join(f"{device}: {provider or 'no'}" for device, provider in diagnosis.obtained.items())
    rows = {
        "uce-edge": __version__,
        "Python": diagnosis.python,
        "machine": diagnosis.machine,
        "packages": ", ".join(f"{name} {version}" for name, version in diagnosis.packages.items()),
        "listed": ", ".join(diagnosis.listed) or "none",
        "obtained": obtained or "none",
        "telemetry": diagnosis.telemetry,
        "model": diagnosis.model,
    }
    for name, value in rows.items():
        echo(f"{name:<10}{value}")
    for problem in diagnosis.problems:
        echo(f"problem   {problem}", fg=typer.colors.RED)
    if not diagnosis.problems:
        echo("All is well.", fg=typer.colors.GREEN)
