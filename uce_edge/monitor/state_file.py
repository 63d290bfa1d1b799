"""A monitor beside a program that answers: its state is a file, and a process that is killed goes on from it."""

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
"""Seconds between two writes of the state, at least: a killed process forgets the answers of the last one."""


class KeptMonitor:
    """A monitor and the file of its state, which no other process writes until it is closed."""

    def __init__(self, path: Path, model: "Model", asked: "Request | None" = None) -> None:
        """Go on from a state, or begin one; either is written at once, so that a full disk is told now.

        Args:
            path: The state.
            model: What answers.
            asked: How it is always asked; None where that may differ.
        """
        with ExitStack() as stack:
            self._path = stack.enter_context(sole_writer(path, "--monitor"))
            self.monitor = self._begin(model, asked)
            self.save()
            self._lock = stack.pop_all()

    def add(self, answer: "Answer") -> bool:
        """Bet on an answer; gives whether it raised the alarm."""
        raised = self.monitor.add(answer)
        if raised or time.monotonic() - self._saved > _INTERVAL:
            self.save()
        return raised

    def save(self) -> None:
        """Keep what is known."""
        self.monitor.save(self._path, "--monitor")
        self._saved = time.monotonic()

    def close(self) -> None:
        """Keep what is known, and let other processes write the state."""
        with self._lock:
            self.save()

    def _begin(self, model: "Model", asked: "Request | None") -> Monitor:
        path = self._path
        if path.exists():
            monitor = Monitor.load(path)
            if monitor.state.model != model.sha256:
                raise UsageError(
                    f"{path} belongs to another model file than {model.path}. Use another state file with --monitor."
                )
        else:
            monitor = Monitor.of(model)
        state = monitor.state
        if asked is not None:
            samples = model.metadata.samples if asked.samples is None else asked.samples
            if (samples, asked.seed, asked.adaptive) != (state.samples, state.pass_seed, None):
                raise UsageError(
                    f"The monitor compares with answers of {state.samples} passes and seed {state.pass_seed}: leave "
                    "--samples, --seed and --adaptive out, or leave --monitor out."
                )
        return monitor
