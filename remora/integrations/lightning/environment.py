"""Where a worker stands, for strategies of Lightning that form process groups of their own."""

from __future__ import annotations

import os

from lightning.fabric.plugins.environments import ClusterEnvironment

from remora import training


class RemoraEnvironment(ClusterEnvironment):  # type: ignore[misc]  # lightning is not checked
    """The workers of a job, for `Trainer(strategy="ddp", plugins=[RemoraEnvironment()])` and the like.

    Such scripts start again from their newest checkpoint after a loss; `RemoraStrategy` needs none of this.
    """

    @property
    def creates_processes_externally(self) -> bool:
        """Remora starts one process for each worker."""
        return True

    @property
    def main_address(self) -> str:
        """Host of rank 0."""
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        """Port of rank 0 for the process group."""
        return int(os.environ.get("MASTER_PORT", "12910"))

    @staticmethod
    def detect() -> bool:
        """Whether this process is a worker of a job."""
        return "REMORA_JOB_ID" in os.environ

    def world_size(self) -> int:
        """Number of workers."""
        return training.world().world_size

    def set_world_size(self, size: int) -> None:
        """Nothing: the job says it."""

    def global_rank(self) -> int:
        """Rank among all workers."""
        return training.world().rank

    def set_global_rank(self, rank: int) -> None:
        """Nothing: the job says it."""

    def local_rank(self) -> int:
        """Rank among the workers of this node."""
        return training.world().local_rank

    def node_rank(self) -> int:
        """Number of this node."""
        return int(os.environ.get("NODE_RANK", "0"))

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Raise ValueError where the Trainer was given another number of workers than there are."""
        if num_devices * num_nodes != self.world_size():
            raise ValueError(
                f"Trainer has devices={num_devices} and num_nodes={num_nodes}, and the job has"
                f" {self.world_size()} workers: take devices from LOCAL_WORLD_SIZE and num_nodes from the rest"
            )
