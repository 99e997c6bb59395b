"""The elastic script as an attempt on real nodes, and what a test does to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.util.placement_group import placement_group_table

from cluster.ray.membership import RayMembership
from tests.integration.trainers.elastic_script import ELASTIC
from tests.integration.trainers.lab import Lab, Running


class Training:
    """An attempt of the elastic script, which trains until `finish`."""

    def __init__(self, lab: Lab, folder: Path, **fields: Any) -> None:
        self._lab = lab
        self._finish = folder / "finish"
        self._lost_rank_0 = False
        #: When the last fault was injected, seconds since 1970.
        self.struck_at = 0.0
        command = ["python", "train.py", str(self._finish), "0.03"]
        self.run: Running = lab.run({"train.py": ELASTIC}, *command, **fields)

    def trains(self, workers: int, *, steps: int = 10) -> None:
        """Wait until that number of workers have done some steps together."""
        run = self.run
        run.until(lambda: self.size == workers, f"{workers} workers train")
        after = run.step
        run.until(lambda: run.step >= after + steps and self.size == workers, "they do steps")

    @property
    def size(self) -> int:
        """Workers that did the newest step."""
        metrics = self.run.bodies("metric")
        return metrics[-1]["world_size"] if metrics else 0

    def is_on(self, *nodes: str) -> None:
        """Wait until the driver has reported that the workers are on these nodes, one on each."""
        members = RayMembership().observe()
        wanted = {members[node].address: 1 for node in nodes}
        self.run.until(lambda: self.run.progress["workers"] == wanted, f"one worker each on {nodes}")

    def holds_no_more_than_its_workers(self, *nodes: str) -> None:
        """Wait until capacity is reserved on each of these nodes and nowhere else; Ray tries no placement again."""
        members = RayMembership().observe()
        wanted = sorted(members[node].ray_node_id for node in nodes)
        self.run.until(
            lambda: sorted(self._places()) == wanted, f"nothing but {nodes} is held: {self._places()}"
        )
        before = self._scheduling_attempts()
        after = self.run.step
        self.run.until(lambda: self.run.step >= after + 10, "the others do steps meanwhile")
        assert self._scheduling_attempts() == before, "no place that was lost is looked for again and again"

    def _groups(self) -> list[dict[str, Any]]:
        name = self.run.plan.attempt_id
        found = [one for one in placement_group_table().values() if one["name"].startswith(name)]
        return [one for one in found if one["state"] != "REMOVED"]

    def _places(self) -> list[str]:
        """Ray node id of each bundle, "" where it has none."""
        return [node for one in self._groups() for node in one["bundles_to_node_id"].values()]

    def _scheduling_attempts(self) -> int:
        return sum(one["stats"]["scheduling_attempt"] for one in self._groups())

    @property
    def leader(self) -> str:
        """The node of rank 0, as the driver reported last: it lists nodes in the order of ranks."""
        address = next(iter(self.run.progress["workers"]))
        return next(node for node, seen in RayMembership().observe().items() if seen.address == address)

    @property
    def regrouped(self) -> list[tuple[str, int]]:
        """Cause and size of every group that took over in place."""
        events = self.run.events("worker_group.regrouped")
        return [(one["data"]["cause"], one["data"]["world_size"]) for one in events]

    def seconds_until_new_step(self) -> float:
        """Seconds from the last fault to the first step of the group that takes over."""
        run, count = self.run, len(self.regrouped)
        run.until(lambda: len(self.regrouped) > count, "the others go on")
        (regrouped_at,) = [
            record.at for record in run.records if record.body == run.events("worker_group.regrouped")[-1]
        ]
        after = run.until(
            lambda: [one.at for one in run.records if one.kind == "metric" and one.at >= regrouped_at],
            "they do a step",
        )
        return float(after[0] - self.struck_at)

    def kill(self, *ranks: int) -> list[str]:
        """Take the nodes of these ranks away, at once; returns their names."""
        self._lost_rank_0 = self._lost_rank_0 or 0 in ranks
        victims = [self.run.node_of(rank) for rank in ranks]
        self.struck_at = time.time()
        for victim in victims:
            self._lab.provider.kill(victim)
        return victims

    def kill_script(self, rank: int) -> None:
        """Kill the user's own process of a rank, and nothing else on its node."""
        self._lost_rank_0 = self._lost_rank_0 or rank == 0
        self.struck_at = time.time()
        self.run.child(rank).kill()

    def cut(self, pull: Callable[[], None]) -> None:
        """Cut the node of rank 0 off by `pull`."""
        self._lost_rank_0 = True
        self.struck_at = time.time()
        pull()

    def finish(self) -> None:
        """Let it end; the result is that of an undisturbed run."""
        self._finish.touch()
        assert self.run.end()["end_reason"] == "completed"
        steps = [body["step"] for body in self.run.bodies("metric")]
        last = steps[-1]
        missing = set(range(1, last + 1)) - set(steps)
        # What rank 0 was about to report may be lost with it.
        assert len(missing) <= (10 if self._lost_rank_0 else 0), f"no step is missing: {missing}"
        assert self.run.bodies("metric")[-1]["values"] == {"total": last * (last + 1) / 2}
        assert len(steps) >= last - len(missing) + self.run.progress["repeated_steps"]

    def finish_without_repetition(self) -> None:
        """The same, in the processes that it began with and those that joined them: no step was done again."""
        self.finish()
        assert self.run.progress["repeated_steps"] == 0
        assert len(self.run.events("worker_group.started")) == 1
