"""Numbers for the operator in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Scope

from remora.states import JobState
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

        self._streams = Gauge(
            "remora_streams", "Streams of events and logs that are open.", registry=self._registry
        )

    def count(self, scope: Scope, status: int, duration_s: float) -> None:
        """One request was answered; status 0 means that the client left before."""
        # The route, not the path: ids would make a series for every job.
        route = getattr(scope.get("route"), "path", "unknown")
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "PUT", "DELETE") else "other"
        self._requests.labels(method, route, str(status)).inc()
        if not scope.get("remora.is_stream"):
            self._duration.labels(route).observe(duration_s)

    def text(self, totals: Totals, controller_ages: Mapping[str, float], streams: int, now: float) -> bytes:
        """The whole exposition; with seconds since the lease of each cluster's controller was renewed.

        `streams` are open at this process; `now` is in seconds since 1970.
        """
        self._streams.set(streams)
        registry = CollectorRegistry()
        registry.register(_Stored(totals, controller_ages, now))
        return generate_latest(self._registry) + generate_latest(registry)


class _Stored(Collector):
    def __init__(self, totals: Totals, controller_ages: Mapping[str, float], now: float) -> None:
        self._totals = totals
        self._now = now
        self._ages = controller_ages

    def collect(self) -> Iterable[Metric]:
        totals = self._totals
        states = {state.value: 0 for state in JobState} | totals.jobs_by_state
        yield _gauge("remora_jobs", "Jobs by state.", "state", states)
        yield _gauge(
            "remora_queue_depth", "Queued jobs by what they wait for.", "reason", totals.queued_by_reason
        )
        yield from _nodes(totals)
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
        taken = CounterMetricFamily(
            "remora_controller_leases_taken", "How often a controller took the lease.", labels=["lease"]
        )
        for lease, count in sorted(totals.leases_taken.items()):
            taken.add_metric([lease], count)
        yield taken
        waited_s = 0.0 if totals.waiting_since is None else max(0.0, self._now - totals.waiting_since)
        yield GaugeMetricFamily(
            "remora_queue_oldest_seconds",
            "For how long the job has waited that has waited longest for nodes.",
            value=waited_s,
        )


def _nodes(totals: Totals) -> Iterable[Metric]:
    labels = ["pool", "capacity", "state"]
    count = GaugeMetricFamily("remora_nodes", "Nodes that have not ended.", labels=labels)
    price = GaugeMetricFamily("remora_nodes_usd_per_hour", "What they cost.", labels=labels)
    for one in totals.nodes:
        count.add_metric([one.pool, one.capacity, one.state], one.count)
        price.add_metric([one.pool, one.capacity, one.state], one.price_per_hour)
    yield count
    yield price
    starts = HistogramMetricFamily(
        "remora_node_start_seconds",
        "From the request for a node until it is ready.",
        buckets=[(limit, count) for limit, count in totals.node_starts.items()],
        sum_value=totals.node_starts_s,
    )
    yield starts
    yield GaugeMetricFamily(
        "remora_refused_offerings", "Offerings that the cloud refuses now.", value=totals.refused_offerings
    )
    errors = CounterMetricFamily(
        "remora_cloud_errors", "Requests for machines that the cloud did not carry out.", labels=["reason"]
    )
    for reason, number in sorted(totals.cloud_errors.items()):
        errors.add_metric([reason], number)
    yield errors
    losses = CounterMetricFamily(
        "remora_node_losses",
        "Working nodes that were drained or ended by others than the controller.",
        labels=["capacity", "announced"],
    )
    for lost in totals.node_losses:
        losses.add_metric([lost.capacity, "yes" if lost.was_announced else "no"], lost.count)
    yield losses
    yield GaugeMetricFamily(
        "remora_sick_nodes", "Nodes found to be sick that have not ended.", value=totals.sick_nodes
    )


def _gauge(name: str, documentation: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, documentation, labels=[label])
    for word, count in sorted(values.items()):
        family.add_metric([word], count)
    return family
