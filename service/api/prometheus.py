"""Numbers for the operator in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Scope

from remora.states import JobState, NodeState
from service.store.totals import Totals


class Telemetry:
    """Counts this process's requests; everything else comes from the database when it is asked for."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "remora_http_requests",
            "Requests answered by this process.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._duration = Histogram(
            "remora_http_request_duration_seconds",
            "Time from a request to the end of its answer; streams are not counted.",
            ["route"],
            registry=self._registry,
        )

    def count(self, scope: Scope, status: int, duration_s: float) -> None:
        """One request was answered; status 0 means that the client left before."""
        # The route, not the path: ids would make a series for every job.
        route = getattr(scope.get("route"), "path", "unknown")
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "PUT", "DELETE") else "other"
        self._requests.labels(method, route, str(status)).inc()
        if not scope.get("remora.is_stream"):
            self._duration.labels(route).observe(duration_s)

    def text(self, totals: Totals, controller_ages: Mapping[str, float]) -> bytes:
        """The whole exposition; with seconds since the lease of each cluster's controller was renewed."""
        registry = CollectorRegistry()
        registry.register(_Stored(totals, controller_ages))
        return generate_latest(self._registry) + generate_latest(registry)


class _Stored(Collector):
    def __init__(self, totals: Totals, controller_ages: Mapping[str, float]) -> None:
        self._totals = totals
        self._ages = controller_ages

    def collect(self) -> Iterable[Metric]:
        totals = self._totals
        states = {state.value: 0 for state in JobState} | totals.jobs_by_state
        yield _gauge("remora_jobs", "Jobs by state.", "state", states)
        yield _gauge(
            "remora_queue_depth", "Queued jobs by what they wait for.", "reason", totals.queued_by_reason
        )
        nodes = {state.value: 0 for state in NodeState} | totals.nodes_by_state
        yield _gauge("remora_nodes", "Nodes that have not ended, by state.", "state", nodes)
        ended = CounterMetricFamily("remora_attempts_ended", "Ended attempts by reason.", labels=["reason"])
        for reason, count in sorted(totals.attempts_by_end_reason.items()):
            ended.add_metric([reason], count)
        yield ended
        yield CounterMetricFamily(
            "remora_repeated_steps", "Steps done again after losses.", value=totals.repeated_steps
        )
        yield CounterMetricFamily(
            "remora_lost_seconds", "Seconds between losses and the next new step.", value=totals.lost_s
        )
        if self._ages:
            name, text = "remora_controller_lease_age_seconds", "Since the lease was renewed."
            yield _gauge(name, text, "cluster", self._ages)


def _gauge(name: str, documentation: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, documentation, labels=[label])
    for word, count in sorted(values.items()):
        family.add_metric([word], count)
    return family
