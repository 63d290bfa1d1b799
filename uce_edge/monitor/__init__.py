"""Drift detection on a stream of answers, without labels."""

from typing import TYPE_CHECKING

from uce_edge._util import lazy_exports

if TYPE_CHECKING:
    from uce_edge.monitor.monitor import ALPHA, Monitor, Report
    from uce_edge.monitor.state import Alarm, LabelCheck, State, StoredReference

__all__ = ["ALPHA", "Alarm", "LabelCheck", "Monitor", "Report", "State", "StoredReference"]

__getattr__, __dir__ = lazy_exports.names(
    __name__,
    {
        "uce_edge.monitor.monitor": ("ALPHA", "Monitor", "Report"),
        "uce_edge.monitor.state": ("Alarm", "LabelCheck", "State", "StoredReference"),
    },
)
