"""What `/metrics` tells Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_METHODS = {"GET", "HEAD", "POST"}


class Metrics:
    """The metrics of one server.

    Attributes:
        uploads: uploads by outcome: `published`, `already published`, or `refused` with the status.
        uploads_running: uploads that are received now.

    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "buildfarm_requests", "Requests by method and status.", ["method", "status"], registry=self._registry
        )
        self._bytes = Counter("buildfarm_response_bytes", "Bytes of response bodies.", registry=self._registry)
        self._seconds = Histogram(
            "buildfarm_request_seconds", "Seconds from a request to its last byte.", registry=self._registry
        )
        self.uploads = Counter("buildfarm_uploads", "Uploads by outcome.", ["outcome"], registry=self._registry)
        self.uploads_running = Gauge("buildfarm_uploads_running", "Uploads now.", registry=self._registry)

    def count(self, method: str, status: int, size: int, seconds: float) -> None:
        """Count a request; `size` is the bytes of its answer."""
        self._requests.labels(method if method in _METHODS else "other", str(status)).inc()
        self._bytes.inc(size)
        self._seconds.observe(seconds)

    def text(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
