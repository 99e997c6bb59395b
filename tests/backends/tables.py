"""The tables of the documentation that tests make, and the reasons for what is not there."""

from __future__ import annotations

from tests.backends.marks import DOCS, HERE, Table

BACKENDS = Table(
    mark="backend",
    # The same whether a version has them or not.
    names=("ddp", "fsdp", "deepspeed", "tensorflow", "jax", "mpi", "horovod", "command"),
    cases=("runs", "resumes same size", "resumes other size", "notice", "silent death", "unmodified script"),
    page=DOCS / "backends.md",
    begins="| | runs |",
    results=HERE / "results.json",
    reasons={
        "horovod": "no release builds against the PyTorch of today as it is; one that `make horovod` built runs with"
        " `mpi`",
    },
)

_RESTARTS = (
    "its process group ends with a worker, so that all processes start again from the newest checkpoint"
)
_ORDER = "the script decides which samples a worker reads"

FRAMEWORKS = Table(
    mark="framework",
    names=(
        "transformers",
        "TRL",
        "PyTorch with Loop",
        "PyTorch with Steps",
        "FSDP2 with ShardedLoop",
        "FSDP2 with ShardedSteps",
        "DDP",
        "DeepSpeed",
        "Trainer with DeepSpeed",
        "Keras",
        "MPI",
        "accelerate",
        "Lightning",
        "torchtitan",
        "Ray Train",
        "JAX",
    ),
    cases=("runs", "resumes", "in place", "exact samples", "metrics"),
    page=DOCS / "frameworks.md",
    begins="| | runs |",
    results=HERE / "frameworks.json",
    reasons={
        ("DDP", "in place"): _RESTARTS,
        ("DDP", "exact samples"): _ORDER,
        ("DeepSpeed", "in place"): _RESTARTS,
        ("DeepSpeed", "exact samples"): _ORDER,
        ("Trainer with DeepSpeed", "in place"): _RESTARTS,
        ("Keras", "in place"): "TensorFlow's strategies cannot lose a worker while they run",
        ("Keras", "exact samples"): _ORDER,
        ("MPI", "in place"): "MPI ends all ranks with one of them",
        ("MPI", "exact samples"): _ORDER,
        ("accelerate", "in place"): _RESTARTS,
        ("accelerate", "exact samples"): _ORDER,
        "torchtitan": "its trainer shards the model and forms process groups by itself; trainer classes of its kind"
        " train with `Steps`, and with `ShardedSteps` where the model is sharded",
        ("Ray Train", "in place"): _RESTARTS,
        ("Ray Train", "exact samples"): "`prepare_data_loader` divides the samples by the number of workers",
        ("JAX", "in place"): "a process of JAX cannot lose or gain others while it runs",
        ("JAX", "exact samples"): _ORDER,
    },
)

TABLES = (BACKENDS, FRAMEWORKS)
