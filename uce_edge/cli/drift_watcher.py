"""The monitor beside `predict`: it bets on every answer, keeps its state on disk, and says when the world has moved."""

from pathlib import Path
from typing import TYPE_CHECKING

from uce_edge.cli.messages import alarm, quote, say

if TYPE_CHECKING:
    from uce_edge.runtime.answers import Answer, Request
    from uce_edge.runtime.model import Model


class Watcher:
    """A monitor that tells a person what it finds."""

    def __init__(self, path: Path, model: "Model", asked: "Request") -> None:
        """Go on from a state, or begin one.

        Args:
            path: The state.
            model: What answers.
            asked: How it is asked.
        """
        from uce_edge.monitor.state_file import KeptMonitor

        self._path, self._kept = path, KeptMonitor(path, model, asked)
        self._monitor = self._kept.monitor
        if self._monitor.alarm is not None:
            alarm(self._monitor.report().sentence)

    def add(self, answer: "Answer") -> None:
        """Bet on an answer."""
        if self._kept.add(answer):
            alarm(self._monitor.report().sentence)

    def close(self) -> None:
        """Keep what is known."""
        self._kept.close()

    def finish(self) -> None:
        """Say where it stands."""
        say(self._monitor.report().sentence)
        say(f"Next: uce-edge monitor --state {quote(self._path)} --plot evidence.svg")
