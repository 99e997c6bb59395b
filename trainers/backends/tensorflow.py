"""TensorFlow: every worker gets the addresses of all workers in TF_CONFIG, for `MultiWorkerMirroredStrategy`."""

from __future__ import annotations

import json
from typing import ClassVar

from trainers.backends.backend import Backend, LaunchContext


class TensorFlow(Backend):
    """TF_CONFIG with one task of type `worker` per worker; worker 0 is the chief.

    https://www.tensorflow.org/api_docs/python/tf/distribute/cluster_resolver/TFConfigClusterResolver
    """

    needs_ports: ClassVar[bool] = True

    def variables(self, launch: LaunchContext) -> dict[str, str]:
        """The cluster, and which of its tasks this worker is."""
        identity = launch.identity
        cluster = {"worker": list(identity.peers)}
        return {
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": identity.rank}})
        }
