"""TensorFlow: every worker is told where all of them are, as `MultiWorkerMirroredStrategy` wants to hear it."""

from __future__ import annotations

import json
from typing import ClassVar

from trainers.backends.backend import Backend, Start


class TensorFlow(Backend):
    """TF_CONFIG with one task of type `worker` per worker; worker 0 is the chief.

    https://www.tensorflow.org/api_docs/python/tf/distribute/cluster_resolver/TFConfigClusterResolver

    AutoGraph writes a file into TMPDIR for each function that it compiles and removes it when the process ends well.
    What a killed one leaves goes with the worker's scratch folder.  For all backends this would be wrong: caches of
    compiled kernels lie in the node's TMPDIR, and names of sockets in it must be short.
    """

    needs_ports: ClassVar[bool] = True

    def prepare(self, start: Start) -> None:
        """Make the folder for temporary files."""
        (start.scratch / "tmp").mkdir()

    def variables(self, start: Start) -> dict[str, str]:
        """The cluster, which of its tasks this worker is, and where temporary files lie unless the job says it."""
        place, own = start.place, str(start.scratch / "tmp")
        cluster = {"worker": list(place.peers)}
        return {
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": place.rank}}),
            "TMPDIR": start.environment["TMPDIR"] if "TMPDIR" in start.plan.variables else own,
        }
