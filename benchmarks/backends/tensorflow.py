"""Steps of a TensorFlow script under Remora beside the same script in plain processes, two workers each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.backends import FrameworkMissing
from benchmarks.contest import ROOT, Contest, contest
from benchmarks.ratios import steady
from benchmarks.remora_cluster import remora_cluster
from remora.free_ports import free_port

SCRIPT = Path(__file__).with_name("tensorflow_train.py")
ENVIRONMENT = ROOT / ".venv-tensorflow"
PYTHON = ENVIRONMENT / "bin" / "python"
#: Rounds, and steps of each block.
ROUNDS, STEPS = 80, 20
#: No GPU of the machine is to be shared by both contestants.
_VARIABLES = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}


def run(rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, Any]:
    """Its part of the document."""
    if not (ENVIRONMENT / ".installed").exists():
        raise FrameworkMissing("TensorFlow's environment is not there; run `make tensorflow`")
    with remora_cluster(2) as cluster, contest(cluster, SCRIPT, rounds=rounds, steps=steps) as match:
        start_plain(match)
        command = [str(PYTHON), SCRIPT.name, "remora"]
        match.remora("remora", command, backend="tensorflow", variables=_VARIABLES)
        match.hold()
        return steady(tensorflow=match.ratio("remora", "plain"))


def start_plain(match: Contest) -> None:
    """Two processes with TF_CONFIG."""
    cluster = {"worker": [f"127.0.0.1:{free_port()}" for _ in range(2)]}
    for index in range(2):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        match.peer("plain", [str(PYTHON), SCRIPT.name, "plain"], TF_CONFIG=config, **_VARIABLES)


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
