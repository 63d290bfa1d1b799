"""Checks that the optional packages of a command are installed."""

from importlib import import_module

from uce_edge.errors import MissingPartError

_ONNX = ("onnx", "onnx_ir")


def need_torch(what: str) -> None:
    """Require the packages for training."""
    _need(what, ("torch", "safetensors"), "train,export")


def need_torch_export(what: str) -> None:
    """Require the packages to export a torch network."""
    _need(what, ("torch", "safetensors", "onnxscript", *_ONNX), "train,export")


def need_onnx(what: str) -> None:
    """Require the packages that edit model files, without torch."""
    _need(what, _ONNX, "recalibrate")


def need_server() -> None:
    """Require the packages of the HTTP server."""
    _need("Serving", ("starlette", "uvicorn", "prometheus_client"), "serve")


def need_ray() -> None:
    """Require the packages for scoring on many machines."""
    _need("Scoring", ("ray", "pyarrow"), "ray")


def _need(what: str, packages: tuple[str, ...], extra: str) -> None:
    for package in packages:
        try:
            import_module(package)
        except ImportError:
            raise MissingPartError(what, package.replace("_", "-"), extra) from None
