"""The metrics of a server for Prometheus."""

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from uce_edge.monitor import Report
from uce_edge.runtime.prediction import ImagePrediction

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_MONITOR = {
    "images": "Answers that the monitor has counted.",
    "evidence": "Its evidence that the images have changed.",
    "largest_evidence": "The largest evidence so far.",
    "alarm_evidence": "The evidence that an alarm takes.",
    "alarm": "1 once an alarm was raised, else 0.",
}
_ESTIMATE = {
    "window_images": "Last answers that the accuracy is estimated for.",
    "doubt": "1 if the estimates must not be believed, else 0.",
}
_SHARES = {
    "accuracy": "Estimated share of right labels.",
    "accepted_error": "Estimated share of wrong labels among the accepted answers (at most, if the rule compares "
    "more than the uncertainty).",
    "coverage": "Estimated share of prediction sets with the true label.",
}
_BOUNDS = {"": "", "_low": " Lower end of the 95 % interval.", "_high": " Upper end of the 95 % interval."}
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Gauges:
    """Metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        """Start at zero."""
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "uce_edge_requests", "Requests by their outcome.", ("model", "endpoint", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "uce_edge_request_seconds",
            "Seconds from the first byte of a request to its answer.",
            ("model", "endpoint"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._images = Histogram(
            "uce_edge_batch_images", "Images of one call.", ("model",), buckets=_IMAGES, registry=self._registry
        )
        self._waiting = Gauge("uce_edge_queue_images", "Waiting images.", ("model",), registry=self._registry)
        self._decisions = Counter(
            "uce_edge_decisions", "Answers by their decision.", ("model", "decision", "reason"), registry=self._registry
        )

        shares = {f"{name}{end}": of + which for name, of in _SHARES.items() for end, which in _BOUNDS.items()}
        self._monitor = {
            name: Gauge(f"uce_edge_monitor_{name}", meaning, ("model",), registry=self._registry)
            for name, meaning in (_MONITOR | _ESTIMATE | shares).items()
        }
        self._others = Counter(
            "uce_edge_monitor_other_passes", "Answers that the monitor left out.", ("model",), registry=self._registry
        )

    def request(self, model: str, endpoint: str, status: int, seconds: float) -> None:
        """Count a request and its time."""
        self._requests.labels(model, endpoint, str(status)).inc()
        self._seconds.labels(model, endpoint).observe(seconds)

    def batch(self, model: str, images: int) -> None:
        """Count the images of a call."""
        self._images.labels(model).observe(images)

    def decision(self, model: str, prediction: ImagePrediction) -> None:
        """Count a decision, if there is one."""
        if prediction.decision is not None:
            self._decisions.labels(model, str(prediction.decision), str(prediction.reason or "")).inc()

    def monitor(self, model: str, report: Report) -> None:
        """Set the values of a drift monitor."""
        values: dict[str, float] = {
            "images": report.images,
            "evidence": report.evidence,
            "largest_evidence": report.peak,
            "alarm_evidence": 1 / report.alpha,
            "alarm": int(report.alarm is not None),
        }
        if report.estimate is not None:
            values |= {"window_images": report.estimate.images, "doubt": int(bool(report.estimate.doubts))}
            for name in _SHARES:
                share = getattr(report.estimate, name)
                ends = (math.nan,) * 3 if share is None else (share.value, share.low, share.high)
                values |= {f"{name}{end}": value for end, value in zip(_BOUNDS, ends, strict=True)}
        for name, value in values.items():
            self._monitor[name].labels(model).set(value)

    def other_passes(self, model: str) -> None:
        """Count an answer that the monitor cannot compare."""
        self._others.labels(model).inc()

    def text(self, waiting: dict[str, int]) -> bytes:
        """Write all metrics in the Prometheus format.

        Args:
            waiting: The number of waiting images, by model.
        """
        for model, images in waiting.items():
            self._waiting.labels(model).set(images)
        return generate_latest(self._registry)
