"""Evaluations of a model that each worker holds as a whole, and how far a worker is in those of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from remora.torch.agreement import gathered
from remora.torch.evaluation import Held, PartSums, evaluated, names_of, rows_of, total
from remora.torch.group import PeerLost
from remora.torch.members import Membership
from remora.torch.order import shards_of


class Evaluations:
    """Those of the step under way."""

    def __init__(self, members: Membership, model: torch.nn.Module, device: torch.device) -> None:
        self._members = members
        self._model = model
        self._device = device
        #: Counted by two.
        self._begun = 0
        #: This worker has the result of the last one.
        self._has_result = True

    @property
    def reached(self) -> int:
        """How far this worker is in a step whose gradients are there; see `WorkerState`."""
        return 1 + self._begun - (not self._has_result)

    def run(self, held: Held, rejoin: Callable[[str], object]) -> dict[str, float]:
        """The result of an evaluation; `rejoin` joins the next group where a worker is lost meanwhile, or raises."""
        self._begun += 2
        self._has_result = False
        found = PartSums()
        while True:
            try:
                return self._together(held, found)
            except PeerLost as lost:
                rejoin(str(lost))
            # Others may still need this worker's part of it.
            if found.result is not None and self.reached - 1 not in self._members.evaluations:
                return found.result

    def end_step(self) -> None:
        """The next step begins with none."""
        self._members.evaluators, self._begun, self._has_result = None, 0, True

    def _together(self, held: Held, found: PartSums) -> dict[str, float]:
        """The result over all workers that take part; raises PeerLost."""
        ranks = self._members.evaluators or tuple(range(self._members.group.world_size))
        group = self._members.group
        if self._members.evaluators is not None:
            group = self._members.subgroup(ranks, f"evaluation-{self._begun}")
        own = shards_of(ranks.index(self._members.group.rank), len(ranks), held.parts)
        with contextlib.closing(evaluated(held, self._model, found.missing(own), found)) as batches:
            for _ in batches:
                group.check()
                self._members.check()
        names = names_of(held, self._model, found)
        rows = gathered(group, rows_of(found, own, held.parts).to(self._device).view(-1))
        found.result = total(rows.view(len(ranks), held.parts, -1).sum(0).tolist(), names)
        self._has_result = True
        # No worker goes on before all have it: one that is lost now is not needed any more.
        gathered(group, torch.zeros(1, device=self._device))
        return found.result
