"""Other engines that can run a model.

Imports nothing heavy: the command line reads it for its help.
"""

from dataclasses import dataclass

OWN_WORKER = "uce_edge.bench.onnxruntime_worker"
"""The module that measures a model file in ONNX Runtime."""


@dataclass(frozen=True)
class Engine:
    """An engine to compare with, and its worker."""

    name: str
    about: str
    """What it does, as a sentence."""
    needs: tuple[str, ...]
    """Packages it imports."""
    install: str
    """The command that installs them."""
    worker: str = OWN_WORKER
    """The module that measures: `python -m worker JSON` is given a `Job` and prints a `Timing`."""
    maker: str | None = None
    """A module that first writes the file to measure: `python -m maker JSON` is given a `Job` with the file's path."""
