"""The parts of the installation that a command needs."""

from importlib import import_module

from uce_edge.errors import MissingPartError

_ONNX = ("onnx", "onnx_ir")


def need_torch(what: str) -> None:
    """Say how to install the training part when it is not there."""
    _need(what, ("torch", "safetensors"), "train,export")


def need_torch_export(what: str) -> None:
    """Say how to install what turns a torch network into a file."""
    _need(what, ("torch", "safetensors", "onnxscript", *_ONNX), "train,export")


def need_onnx(what: str) -> None:
    """Say how to install what reads and writes model files, which needs no torch."""
    _need(what, _ONNX, "recalibrate")


def need_server() -> None:
    """Say how to install what serves model files over HTTP."""
    _need("Serving", ("starlette", "uvicorn", "prometheus_client"), "serve")


def need_ray() -> None:
    """Say how to install what scores on many machines."""
    _need("Scoring", ("ray", "pyarrow"), "ray")


def _need(what: str, packages: tuple[str, ...], extra: str) -> None:
    for package in packages:
        try:
            import_module(package)
        except ImportError:
            raise MissingPartError(what, package.replace("_", "-"), extra) from None
