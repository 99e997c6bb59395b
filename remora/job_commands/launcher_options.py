"""What the options of launchers mean to a job: counted, turned into a variable, ignored, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

_OWN_NODES = "Remora chooses the nodes"
_CONFIGURED = "set what it stands for in the script, or as environment.variables"


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a launcher."""

    #: Words that follow it.
    values: int = 0
    #: It says how many processes there are: `all` of them, `each` node's, or how many `nodes`.
    counts: str | None = None
    #: The environment variable that it becomes, by its words.
    variable: Callable[[list[str]], tuple[str, str]] | None = None
    #: What to do instead.
    refusal: str | None = None


def _ignored(flags: str = "", valued: str = "") -> dict[str, Option]:
    return {name: Option() for name in flags.split()} | {name: Option(values=1) for name in valued.split()}


def _refused(instead: str, flags: str = "", valued: str = "") -> dict[str, Option]:
    return {name: Option(refusal=instead) for name in flags.split()} | {
        name: Option(values=1, refusal=instead) for name in valued.split()
    }


def _counted(**names: str) -> dict[str, Option]:
    return {
        name: Option(values=1, counts=counts) for counts, group in names.items() for name in group.split()
    }


def _set(name: str, value: str) -> Option:
    return Option(variable=lambda _: (name, value))


def _passed(name: str) -> Option:
    return Option(values=1, variable=lambda words: (name, words[0]))


def _exported(words: list[str]) -> tuple[str, str]:
    name, equals, value = words[0].partition("=")
    if not equals or "," in name:
        raise ValueError(f"mpirun's option -x {words[0]} names no value; write it into environment.variables")
    return name, value


_TORCHRUN = _counted(each="nproc-per-node", nodes="nnodes") | _ignored(
    "standalone m module no-python run-path logs-specs",
    "rdzv-backend rdzv-endpoint rdzv-id rdzv-conf master-addr master-port node-rank local-addr max-restarts"
    " monitor-interval start-method role log-dir r redirects t tee local-ranks-filter signals-to-handle"
    " event-log-handler numa-binding",
)

OPTIONS: Mapping[str, Mapping[str, Option]] = {
    "torchrun": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN | {"use-env": Option(), "no-local-rank": Option()},
    "deepspeed": _counted(each="num-gpus num-accelerators", nodes="num-nodes")
    | _ignored(
        "m module no-python no-local-rank force-multi no-ssh no-ssh-check",
        "H hostfile master-addr master-port node-rank launcher launcher-args save-pid ssh-port venv-script",
    )
    | _refused(_OWN_NODES, valued="i include e exclude")
    | _refused("set OMP_NUM_THREADS as an environment variable", "bind-cores-to-rank", "bind-core-list")
    | _refused("run it by hand beforehand", valued="autotuning")
    | _refused(
        "give `workers` as {min: .., max: ..}", "elastic-training", "min-elastic-nodes max-elastic-nodes"
    ),
    "accelerate launch": _counted(all="num-processes n")
    | _ignored(
        "multi-gpu multi-cpu m module no-python q quiet same-network",
        "num-machines machine-rank main-process-ip main-process-port rdzv-backend rdzv-conf max-restarts"
        " monitor-interval role log-dir tee gpu-ids num-cpu-threads-per-process",
    )
    | {
        "cpu": _set("ACCELERATE_USE_CPU", "true"),
        "debug": _set("ACCELERATE_DEBUG_MODE", "true"),
        "mixed-precision": _passed("ACCELERATE_MIXED_PRECISION"),
        "gradient-accumulation-steps": _passed("ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
    }
    | _refused(_CONFIGURED, "use-deepspeed use-fsdp use-megatron-lm use-xpu tpu ipex", "config-file"),
    "mpirun": _counted(all="n np c")
    | _ignored(
        "allow-run-as-root q quiet v verbose oversubscribe nooversubscribe tag-output timestamp-output report-bindings",
    )
    | {
        "x": Option(values=1, variable=_exported),
        **{
            name: Option(values=2, variable=lambda words: (f"OMPI_MCA_{words[0]}", words[1]))
            for name in ("mca", "gmca")
        },
        "bind-to": _passed("OMPI_MCA_hwloc_base_binding_policy"),
    }
    | _refused(
        _OWN_NODES, valued="H host hostfile machinefile default-hostfile rankfile rf N npernode npersocket"
    )
    | _refused("workers are placed by their `resources`", "bynode byslot pernode", "map-by rank-by ppr")
    | _refused("the command runs in the folder of `code`", valued="wd wdir"),
    "horovodrun": _counted(all="np num-proc")
    | _ignored(
        "gloo mpi verbose disable-cache network-interface", "H hosts hostfile p ssh-port start-timeout"
    )
    | _refused("give `workers` as {min: .., max: ..}", valued="min-np max-np min-num-proc max-num-proc")
    | _refused("start it with a fixed number of processes", valued="host-discovery-script"),
}
