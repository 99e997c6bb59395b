"""Traces drawn from published distributions: equal seeds give equal traces.

Run times are log-normal with the median and the mean that the Acme data set publishes for five clusters (Hu et al.,
NSDI 2024, `cluster_summary.csv`); numbers of GPUs are powers of two with a geometric tail of the published mean, longer
jobs being larger; users and projects follow Zipf's law, arrivals a daily wave with batches of one user.  Spot capacity
comes and goes by itself in each zone, with Weibull times of a heavy tail, and now and then everywhere at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from statistics import NormalDist

from cluster.policies.offerings import CapacityType, Offering
from cluster.traces.trace import MarketChange, Trace, TraceJob
from remora.spec.worker_sizes import WorkerSizes

DAY_S = 86_400.0
#: Jobs of one user that come at once, after every one that comes by itself, on average.
BATCH = 0.5
#: How far the daily wave of arrivals goes up and down, as a part of its mean.
WAVE = 0.6
#: Correlation of the size of a job with its run time.
SIZE_WITH_TIME = 0.3
#: Shape of the times for which spot is there, and its means there and away, in seconds.
UP_SHAPE, UP_MEAN_S, AWAY_MEAN_S = 0.6, 4 * 3600.0, 1800.0
#: Mean seconds between two preemptions everywhere at once.
SHOCK_MEAN_S = 2 * DAY_S


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Jobs of one published cluster."""

    median_s: float
    mean_s: float
    mean_gpus: float
    longest_s: float = 30 * DAY_S
    most_gpus: int = 64

    @property
    def sigma(self) -> float:
        """Of the logarithm of run times."""
        return math.sqrt(2 * math.log(self.mean_s / self.median_s))


CLUSTERS = {
    "philly": Cluster(median_s=874, mean_s=18_006, mean_gpus=1.93),
    "helios": Cluster(median_s=206, mean_s=6_652, mean_gpus=3.72),
    "pai": Cluster(median_s=481, mean_s=4_787, mean_gpus=1.0),
    "seren": Cluster(median_s=122, mean_s=1_414, mean_gpus=5.68, most_gpus=1024),
    "kalos": Cluster(median_s=124, mean_s=1_260, mean_gpus=26.8, most_gpus=2048),
}


@dataclass(frozen=True, kw_only=True)
class GeneratorOptions:
    """What to generate: number of jobs, time span in seconds, and their distribution."""

    seed: int
    jobs: int
    #: Seconds in which the jobs arrive.
    span_s: float
    cluster: Cluster = CLUSTERS["philly"]
    #: Part of the jobs with several GPUs that go on with a quarter of them.
    elastic: float = 0.5
    most_gpus: int = 64
    projects: int = 8
    users: int = 100


def generate_jobs(options: GeneratorOptions) -> tuple[TraceJob, ...]:
    """Jobs in order of arrival."""
    random = Random(options.seed)  # noqa: S311 - chance, no secret
    sizes = size_chances(options.cluster.mean_gpus, min(options.most_gpus, options.cluster.most_gpus))
    owners = list(accumulate(1 / rank for rank in range(1, options.users + 1)))
    arrivals = _arrivals(random, options, owners)
    return tuple(
        _job(random, options, sizes, number, at_s, owner)
        for number, (at_s, owner) in enumerate(sorted(_first(arrivals, options.jobs)))
    )


def _first(arrivals: Iterator[tuple[float, int]], count: int) -> list[tuple[float, int]]:
    return [pair for _, pair in zip(range(count), arrivals, strict=False)]


def _arrivals(
    random: Random, options: GeneratorOptions, owners: Sequence[float]
) -> Iterator[tuple[float, int]]:
    """Times and users without end: more by day than by night, some of them in batches."""
    rate = options.jobs / options.span_s / (1 + BATCH)
    at_s = 0.0
    while True:
        at_s += random.expovariate(rate * (1 + WAVE))
        now = 1 + WAVE * math.sin(2 * math.pi * at_s / DAY_S)
        if random.random() * (1 + WAVE) > now:
            continue
        (owner,) = random.choices(range(len(owners)), cum_weights=owners)
        yield at_s, owner
        while random.random() < BATCH / (1 + BATCH):
            yield at_s, owner


def _job(
    random: Random, options: GeneratorOptions, sizes: Sequence[float], number: int, at_s: float, owner: int
) -> TraceJob:
    cluster = options.cluster
    deviation = random.gauss(0, 1)
    run_s = min(cluster.longest_s, cluster.median_s * math.exp(cluster.sigma * deviation))
    rank = NormalDist().cdf(
        SIZE_WITH_TIME * deviation + math.sqrt(1 - SIZE_WITH_TIME**2) * random.gauss(0, 1)
    )
    gpus = 2 ** next((power for power, upto in enumerate(accumulate(sizes)) if rank <= upto), len(sizes) - 1)
    elastic = gpus > 1 and random.random() < options.elastic
    return TraceJob(
        id=f"j{number:06d}",
        at_s=round(at_s, 3),
        sizes=WorkerSizes(max(1, gpus // 4) if elastic else gpus, gpus),
        resources={"GPU": 1.0, "CPU": 4.0},
        work_s=round(run_s * gpus, 3),
        project=f"project-{owner % options.projects}",
    )


def size_chances(mean: float, most: int) -> list[float]:
    """Chances of 1, 2, 4, ... up to `most` GPUs: geometric, with this mean as far as `most` allows it."""
    powers = int(math.log2(most)) + 1

    def chances(ratio: float) -> list[float]:
        weights = [ratio**power for power in range(powers)]
        return [weight / sum(weights) for weight in weights]

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        reached = sum(chance * 2**power for power, chance in enumerate(chances(middle)))
        low, high = (middle, high) if reached < mean else (low, middle)
    return chances(low)


def generate_market(
    seed: int, offerings: Sequence[Offering], nodes: int, span_s: float
) -> tuple[MarketChange, ...]:
    """How many nodes of each spot offering there are, at most `nodes`, over time."""
    shocks = list(_times(Random(f"{seed} shocks"), SHOCK_MEAN_S, span_s))  # noqa: S311 - chance, no secret
    changes: list[MarketChange] = []
    for offering in offerings:
        if offering.capacity is CapacityType.SPOT:
            own = Random(f"{seed} {offering.id}")  # noqa: S311
            changes.extend(_market_of(own, offering.id, nodes, span_s, shocks))
    return tuple(sorted(changes, key=lambda change: (change.at_s, change.offering)))


def _times(random: Random, mean_s: float, span_s: float) -> Iterator[float]:
    at_s = random.expovariate(1 / mean_s)
    while at_s < span_s:
        yield at_s
        at_s += random.expovariate(1 / mean_s)


def _market_of(
    random: Random, offering: str, nodes: int, span_s: float, shocks: Sequence[float]
) -> Iterator[MarketChange]:
    scale = UP_MEAN_S / math.gamma(1 + 1 / UP_SHAPE)
    at_s = 0.0
    upcoming = iter(shocks)
    shock = next(upcoming, math.inf)
    while at_s < span_s:
        there = nodes if random.random() < 0.5 else random.randint(min(nodes, max(1, nodes // 4)), nodes)
        yield MarketChange(at_s=round(at_s, 3), offering=offering, nodes=there)
        until = at_s + random.weibullvariate(scale, UP_SHAPE)
        while shock <= at_s:
            shock = next(upcoming, math.inf)
        at_s = min(until, shock)
        # the cloud takes some of them or all
        left = 0 if random.random() < 0.5 else random.randint(0, there)
        yield MarketChange(at_s=round(at_s, 3), offering=offering, nodes=left)
        at_s += random.expovariate(1 / AWAY_MEAN_S)


def generated(options: GeneratorOptions, offerings: Sequence[Offering], spot_nodes: int) -> Trace:
    """Jobs and market of one seed."""
    market = generate_market(options.seed, offerings, spot_nodes, options.span_s * 1.5)
    return Trace(offerings=tuple(offerings), jobs=generate_jobs(options), changes=market)
