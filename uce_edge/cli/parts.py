"""The parts of the installation that a command needs."""

from importlib import import_module

from uce_edge.errors import MissingPartError


def need_torch(what: str) -> None:
    """Say how to install the training part when it is not there."""
    for package in ("torch", "safetensors"):
        try:
            import_module(package)
        except ImportError:
            raise MissingPartError(what, package, "train,export") from None
