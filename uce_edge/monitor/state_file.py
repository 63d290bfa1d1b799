"""A monitor with a state file, from which a new process continues."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from uce_edge._util.atomic_files import sole_writer
from uce_edge.errors import UsageError
from uce_edge.monitor.monitor import Monitor

if TYPE_CHECKING:
    from uce_edge.runtime.answers import Answer, Request
    from uce_edge.runtime.model import Model

_INTERVAL = 1.0
"""The shortest time between two writes, in seconds. A killed process loses the answers since the last write."""


class KeptMonitor:
    """A monitor and its state file, locked until it is closed."""

    def __init__(self, path: Path, model: "Model", request: "Request | None" = None) -> None:
        """Continue from a state file, or create one.

        The state is written at once, so that a full disk raises an error now.

        Args:
            path: The state file.
            model: The monitored model.
            request: The request of all answers; None if requests differ.
        """
        with ExitStack() as stack:
            self._path = stack.enter_context(sole_writer(path, "--monitor"))
            self.monitor = self._begin(model, request)
            self.save()
            self._lock = stack.pop_all()

    def add(self, answer: "Answer") -> bool:
        """Add an answer; return whether it raised the alarm."""
        raised = self.monitor.add(answer)
        if raised or time.monotonic() - self._saved > _INTERVAL:
            self.save()
        return raised

    def save(self) -> None:
        """Write the state."""
        self.monitor.save(self._path, "--monitor")
        self._saved = time.monotonic()

    def close(self) -> None:
        """Write the state, and release the lock."""
        with self._lock:
            self.save()

    def _begin(self, model: "Model", request: "Request | None") -> Monitor:
        path = self._path
        if path.exists():
            monitor = Monitor.load(path)
            if monitor.state.model != model.sha256:
                raise UsageError(
                    f"{path} belongs to another model file than {model.path}. Use another state file with --monitor.",
                    "monitor.another-model",
                    path=path,
                )
        else:
            monitor = Monitor.of(model)
        state = monitor.state
        if request is not None:
            samples = model.metadata.samples if request.samples is None else request.samples
            if (samples, request.seed, request.adaptive) != (state.samples, state.pass_seed, None):
                raise UsageError(
                    f"The monitor compares with answers of {state.samples} passes and seed {state.pass_seed}: leave "
                    "--samples, --seed and --adaptive out, or leave --monitor out.",
                    "monitor.another-request",
                )
        return monitor
