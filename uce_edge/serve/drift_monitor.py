"""The monitor beside a server: it bets on the answers, and its evidence is among what Prometheus gets."""

from collections.abc import Callable
from pathlib import Path

from uce_edge.monitor.state_file import KeptMonitor
from uce_edge.runtime.answers import Answer
from uce_edge.serve.model_host import Hosted
from uce_edge.serve.prometheus_metrics import Gauges


class Watching:
    """A monitor of one model's answers."""

    def __init__(self, path: Path, hosted: Hosted, gauges: Gauges, tell: Callable[[str], None]) -> None:
        """Go on from a state, or begin one.

        Args:
            path: The state.
            hosted: The model.
            gauges: What Prometheus reads.
            tell: Is told the sentence of an alarm.
        """
        self._kept, self._model, self._gauges, self._tell = KeptMonitor(path, hosted.model), hosted, gauges, tell
        state = self._kept.monitor.state
        self._passes = (state.samples, state.pass_seed)
        self._show()
        if self._kept.monitor.alarm is not None:
            tell(self._kept.monitor.report().sentence)

    def add(self, answer: Answer) -> None:
        """Bet on an answer; one of other passes than those of the reference says nothing and is counted apart."""
        found = answer.prediction
        if found is None:
            return
        if (found.passes, found.seed) != self._passes:
            self._gauges.other_passes(self._model.named.name)
            return
        if self._kept.add(answer):
            self._tell(self._kept.monitor.report().sentence)
        self._show()

    def close(self) -> None:
        """Keep what is known."""
        self._kept.close()

    def _show(self) -> None:
        self._gauges.monitor(self._model.named.name, self._kept.monitor.report())
