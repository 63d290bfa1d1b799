"""A drift monitor of a server's answers, with its evidence in the metrics."""

from collections.abc import Callable
from pathlib import Path

from uce_edge.monitor.state_file import KeptMonitor
from uce_edge.runtime.answers import Answer
from uce_edge.serve.model_host import Hosted
from uce_edge.serve.prometheus_metrics import Gauges


class DriftMonitor:
    """A monitor of one model's answers."""

    def __init__(self, path: Path, hosted: Hosted, gauges: Gauges, alarm: Callable[[str], None]) -> None:
        """Continue from a state file, or start one.

        Args:
            path: The state file.
            hosted: The model.
            gauges: The metrics for Prometheus.
            alarm: Called with the message of an alarm.
        """
        self._kept, self._name, self._gauges = KeptMonitor(path, hosted.model), hosted.named.name, gauges
        self._alarm = alarm
        state = self._kept.monitor.state
        self._passes = (state.samples, state.pass_seed)
        self._show()
        if self._kept.monitor.alarm is not None:
            alarm(self._kept.monitor.report().sentence)

    def add(self, answer: Answer) -> None:
        """Add an answer; one with other passes than the reference is only counted."""
        prediction = answer.prediction
        if prediction is None:
            return
        if (prediction.passes, prediction.seed) != self._passes:
            self._gauges.other_passes(self._name)
            return
        if self._kept.add(answer):
            self._alarm(self._kept.monitor.report().sentence)
        self._show()

    def close(self) -> None:
        """Write the state."""
        self._kept.close()

    def _show(self) -> None:
        self._gauges.monitor(self._name, self._kept.monitor.report())
