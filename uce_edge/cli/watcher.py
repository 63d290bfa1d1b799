"""The monitor beside `predict`: it bets on every answer, keeps its state on disk, and says when the world has moved."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from uce_edge.cli.words import alarm, quote, say
from uce_edge.errors import UsageError

if TYPE_CHECKING:
    from uce_edge.answers import Answer, Request
    from uce_edge.model import Model

_INTERVAL = 1.0
"""Seconds between two writes of the state, at least: a killed process forgets the answers of the last one."""


class Watcher:
    """A monitor and the file of its state."""

    def __init__(self, path: Path, model: "Model", asked: "Request") -> None:
        """Go on from a state, or begin one; either is written at once, so that a full disk is told now.

        Args:
            path: The state.
            model: What answers.
            asked: How it is asked.
        """
        from uce_edge.logged import sha256
        from uce_edge.monitor import Monitor

        self._path = path
        if path.exists():
            self._monitor = Monitor.load(path)
            if self._monitor.state.model != sha256(Path(model.path)):
                raise UsageError(
                    f"{path} is about another model file than {model.path}. Start with another --monitor state.json"
                )
        else:
            self._monitor = Monitor.of(model)
        kept = self._monitor.state
        samples = model.metadata.samples if asked.samples is None else asked.samples
        if (samples, asked.seed, asked.adaptive) != (kept.samples, kept.pass_seed, None):
            raise UsageError(
                f"The monitor compares with answers of {kept.samples} passes and seed {kept.pass_seed}: leave "
                "--samples, --seed and --adaptive out, or leave --monitor out."
            )
        self._save()
        if self._monitor.alarm is not None:
            alarm(self._monitor.report().sentence)

    def add(self, answer: "Answer") -> None:
        """Bet on an answer."""
        if self._monitor.add(answer):
            alarm(self._monitor.report().sentence)
            self._save()
        elif time.monotonic() - self._saved > _INTERVAL:
            self._save()

    def close(self) -> None:
        """Keep what is known."""
        self._save()

    def finish(self) -> None:
        """Say where it stands."""
        say(self._monitor.report().sentence)
        say(f"Next: uce-edge monitor --state {quote(self._path)} --plot evidence.svg")

    def _save(self) -> None:
        self._monitor.save(self._path, "--monitor")
        self._saved = time.monotonic()
