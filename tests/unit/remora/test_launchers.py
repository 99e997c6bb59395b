"""A launcher in a command is taken apart: its script stays, its counts agree with the job, the rest is named."""

from __future__ import annotations

import shlex

import pytest

from remora import JobSpec
from remora.errors import SpecError
from remora.launchers import describe, unwrap


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --nnodes 3", "python train.py --nnodes 3"),
        ("torchrun train.py --lr 0.1", "python train.py --lr 0.1"),
        ("torchrun --nproc-per-node=2 --nnodes 1 train.py -n 4", "python train.py -n 4"),
        ("torchrun --nproc_per_node gpu --standalone -m pkg.train --lr 1", "python -m pkg.train --lr 1"),
        ("torchrun --no-python ./run.sh x", "./run.sh x"),
        ("torchrun -- train.py", "python train.py"),
        ("/opt/env/bin/torchrun train.py", "/opt/env/bin/python train.py"),
        ("python3 -u -m torch.distributed.run --rdzv-backend c10d train.py", "python3 -u train.py"),
        ("/opt/env/bin/python -m torch.distributed.run train.py", "/opt/env/bin/python train.py"),
        ("deepspeed --no_local_rank train.py --deepspeed ds.json", "python train.py --deepspeed ds.json"),
        ("accelerate launch --mixed_precision bf16 train.py", "python train.py"),
        ("python -m accelerate.commands.launch train.py", "python train.py"),
        ("mpirun -n 2 -x A=1 --mca btl tcp,self --bind-to none python train.py", "python train.py"),
        ("mpiexec -np 2 ./solver input.dat", "./solver input.dat"),
        ("horovodrun -np 2 -H a:1,b:1 python train.py", "python train.py"),
        ("python -m pkg.train", "python -m pkg.train"),
        ("accelerate config", "accelerate config"),
        ("bash -c 'python train.py --launcher torchrun'", "bash -c 'python train.py --launcher torchrun'"),
        ("bash -ec 'python a.py 2> torchrun'", "bash -ec 'python a.py 2> torchrun'"),
        ("bash run.sh -c torchrun", "bash run.sh -c torchrun"),
        ("env A=1 python train.py torchrun", "env A=1 python train.py torchrun"),
    ],
)
def test_the_script_is_taken_out(command: str, script: str) -> None:
    assert unwrap(shlex.split(command)).for_worker(1) == shlex.split(script)


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("deepspeed train.py --deepspeed ds.json", "python train.py --local_rank=1 --deepspeed ds.json"),
        ("deepspeed --module pkg.train x", "python -m pkg.train --local_rank=1 x"),
        ("python -m torch.distributed.launch train.py x", "python train.py --local-rank=1 x"),
        ("python -m torch.distributed.launch --use-env train.py x", "python train.py x"),
    ],
)
def test_a_script_gets_the_local_rank_where_its_launcher_would_give_it(command: str, script: str) -> None:
    assert unwrap(shlex.split(command)).for_worker(1) == shlex.split(script)


def test_options_become_variables_or_are_named() -> None:
    found = unwrap(shlex.split("mpirun --tag-output -x LR=0.1 --mca btl tcp,self python train.py"))
    assert dict(found.variables) == {"LR": "0.1", "OMPI_MCA_btl": "tcp,self"}
    assert describe(found) == (
        "mpirun is not started: every worker runs `python train.py`. These options mean nothing here: --tag-output."
    )
    accelerate = unwrap(shlex.split("accelerate launch --cpu --mixed_precision=bf16 train.py"))
    assert dict(accelerate.variables) == {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "bf16"}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("bash -xc 'torchrun a.py'", "the shell would start torchrun"),
        ("bash -e -c 'torchrun a.py'", "the shell would start torchrun"),
        ("bash -euo pipefail -c 'cd src; torchrun a.py'", "the shell would start torchrun"),
        ("bash -c 'if true; then torchrun a.py; fi'", "the shell would start torchrun"),
        ("bash -c 'A=\"b c\" exec torchrun a.py'", "the shell would start torchrun"),
        ("bash -c '# do not\norterun -n 2 a'", "the shell would start mpirun"),
        ('bash -c "# don\'t\ntorchrun a.py"', "the shell would start torchrun"),
        ("bash -c 'python3 -W ignore -m deepspeed.launcher.runner a.py'", "the shell would start deepspeed"),
        ("bash -c 'sh -c \"torchrun a.py\"'", "the shell would start torchrun"),
        ("env A=1 torchrun a.py", "env would start torchrun"),
        ("env -u B nohup accelerate launch a.py", "nohup would start accelerate launch"),
        ("env A=1 bash -c 'torchrun a.py'", "the shell would start torchrun"),
    ],
)
def test_a_launcher_that_something_else_starts_is_refused(command: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        unwrap(shlex.split(command))


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("torchrun --nproc-per-node 2 --nnodes 2 train.py", {"workers": 4}),
        ("torchrun --nnodes 1:3 --nproc-per-node 1 train.py", {"workers": {"min": 1, "max": 3}}),
        ("torchrun --nproc-per-node auto train.py", {"workers": 7}),
        ("deepspeed --num_gpus 2 train.py", {"workers": 2}),
        ("accelerate launch --num_processes 2 --num_machines 1 train.py", {"workers": 2}),
        ("mpirun -n 3 python train.py", {"workers": 3, "backend": "mpi"}),
    ],
)
def test_counts_that_agree_with_the_job_are_fine(command: str, fields: dict[str, object]) -> None:
    assert JobSpec.from_mapping({"command": command, **fields}).command == shlex.split(command)


@pytest.mark.parametrize(
    ("command", "fields", "said"),
    [
        (
            "torchrun --nproc-per-node 2 --nnodes 2 train.py",
            {"workers": 3},
            "torchrun asks for 4 processes (--nproc-per-node 2 --nnodes 2) and workers is 3; leave the options out",
        ),
        ("mpirun -n 4 python x.py", {"backend": "mpi", "workers": {"min": 1, "max": 4}}, "workers is 1 to 4"),
        ("mpirun -n 1 python x.py", {}, "it starts mpirun, and backend is ddp; write backend: mpi"),
        (
            "mpirun --hostfile h python x.py",
            {"backend": "mpi"},
            "--hostfile cannot be honoured; Remora chooses the",
        ),
        ("mpirun -n 1 a : -n 1 b", {"backend": "mpi"}, "one command runs on every worker"),
        ("mpirun -x PATH python x.py", {"backend": "mpi"}, "-x PATH names no value"),
        ("mpirun -x REMORA_JOIN=1 python x.py", {"backend": "mpi"}, "REMORA_JOIN is set by Remora"),
        ("torchrun --frobnicate train.py", {}, "torchrun's option --frobnicate is not known here"),
        ("torchrun --nproc-per-node", {}, "torchrun's option --nproc-per-node has no value"),
        ("torchrun", {}, "torchrun is given no script"),
        ("accelerate launch --config_file a.yaml train.py", {}, "--config_file cannot be honoured"),
        ("bash -c 'cd src && A=1 torchrun train.py'", {}, "the shell would start torchrun in every worker"),
    ],
)
def test_what_contradicts_the_job_is_refused_in_one_sentence(
    command: str, fields: dict[str, object], said: str
) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping({"command": command, **fields})
    (problem,) = caught.value.problems
    assert said in problem.message
