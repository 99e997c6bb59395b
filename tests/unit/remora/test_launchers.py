"""A launcher in a command is taken apart: its script stays, its counts agree with the job, the rest is named."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import JobSpec
from remora.code.bundle import pack
from remora.code.checks import check_code
from remora.errors import SpecError
from remora.job_commands.launchers import describe, may_start_a_launcher, unwrap
from remora.job_commands.nested_launchers import put_on_path
from remora.job_commands.started_commands import started_by
from trainers.public_package import public_folder


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
        ("bash -c 'cd src; torchrun a.py'", "bash -c 'cd src; torchrun a.py'"),
        ("env A=1 torchrun a.py", "env A=1 torchrun a.py"),
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
        ("bash -xc 'mpirun -n 2 a'", "the shell would start mpirun"),
        (
            "bash -e -c 'python -m torch.distributed.run a.py'",
            "the shell would start torchrun .*; write `torchrun` there",
        ),
        ("bash -euo pipefail -c 'cd src; /opt/env/bin/torchrun a.py'", "the shell would start torchrun"),
        ("bash -c 'if true; then /opt/bin/deepspeed a.py; fi'", "the shell would start deepspeed"),
        ("bash -c 'A=\"b c\" exec mpirun a'", "the shell would start mpirun"),
        ("bash -c '# do not\norterun -n 2 a'", "the shell would start mpirun"),
        ('bash -c "# don\'t\nmpirun a"', "the shell would start mpirun"),
        ("bash -c 'python3 -W ignore -m deepspeed.launcher.runner a.py'", "the shell would start deepspeed"),
        ("bash -c 'sh -c \"horovodrun a\"'", "the shell would start horovodrun .* backend: mpi"),
        ("env A=1 mpirun a", "env would start mpirun"),
        ("env -u B nohup ./accelerate launch a.py", "nohup would start accelerate launch"),
        ("env A=1 bash -c 'mpirun a'", "the shell would start mpirun"),
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
        ("bash -c 'cd src; torchrun --nproc_per_node 2 a.py'", {"workers": 2}),
        ("bash -c 'torchrun --nproc_per_node=$GPUS $OPTIONS a.py'", {"workers": 2}),
    ],
)
def test_counts_that_agree_with_the_job_are_fine(command: str, fields: dict[str, object]) -> None:
    assert JobSpec.from_mapping({"command": command, **fields}).command == shlex.split(command)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('set -e\ncd src\ntorchrun --nproc_per_node=$N train.py "$@"\n', None),
        ("#!/bin/sh\npip list\npython train.py\n", None),
        ("if true; then\n  exec python -m torch.distributed.launch a.py\nfi\n", "write `torchrun` there"),
        ("nohup mpirun -n 2 python a.py\n", "backend: mpi"),
    ],
)
@pytest.mark.parametrize(
    "command", ["bash -x jobs/run.sh 3", "./jobs/run.sh", "cd . && sh jobs/run.sh > log"]
)
def test_a_script_in_the_code_is_judged_with_the_command(
    tmp_path: Path, command: str, script: str, said: str | None
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "run.sh").write_text(script)
    file = tmp_path / "bundle.zip"
    pack(tmp_path, file)
    with file.open("rb") as bundle:
        spec = JobSpec.from_mapping({"command": command})
        if said is None:
            check_code(spec, bundle)
            return
        with pytest.raises(SpecError, match=said) as caught:
            check_code(spec, bundle)
    assert "jobs/run.sh in the code would start" in str(caught.value)


@pytest.mark.parametrize(
    ("script", "environment", "said"),
    [
        ('torchrun --nproc_per_node=4 train.py "$@"', {}, "3 of 4 a b\n"),
        ('exec torchrun --nnodes 1 --nproc-per-node $N -m train "$@"', {"N": "4"}, "3 of 4 a b\n"),
        ("python -c 'print(1)'; deepspeed --num_gpus 4 train.py x", {}, "1\n3 of 4 --local_rank=1 x\n"),
        ("accelerate launch --mixed_precision bf16 train.py", {}, "3 of 4 bf16\n"),
        ("accelerate env", {}, "the real one env\n"),
        # As when a script activates an environment of its own.
        ('PATH="$PWD/other:$PATH"; torchrun train.py', {}, "3 of 4\n"),
        ("torchrun --nproc_per_node=$N train.py", {"N": "2"}, "torchrun asks for 2 processes"),
        ("torchrun --frobnicate train.py", {}, "torchrun's option --frobnicate is not known here"),
        ("torchrun --no-python nothing-there", {}, "nothing-there: no such program"),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_launcher_in_a_script_becomes_the_process_of_this_rank(
    tmp_path: Path, shell: str, script: str, environment: dict[str, str], said: str
) -> None:
    if shell == "sh" and "PATH=" in script:
        return
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "words = [*sys.argv[1:], *filter(None, [os.environ.get('ACCELERATE_MIXED_PRECISION')])]\n"
        "print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], *words)\n"
    )
    (tmp_path / "run.sh").write_text(script)
    for folder, name in (("other", "torchrun"), ("installed", "accelerate")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text('#!/bin/sh\necho the real one "$@"\n')
        (tmp_path / folder / name).chmod(0o755)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    ours = put_on_path(tmp_path / "launchers", sys.executable, 4, 4, f"{tmp_path / 'installed'}:{path}")
    rank = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
    arguments = ["a", "b"] if "$@" in script else []
    ran = subprocess.run(
        [shell, "run.sh", *arguments],
        cwd=tmp_path,
        env=rank | environment | ours,
        capture_output=True,
        text=True,
    )
    if ran.returncode == 0:
        assert ran.stdout == said
    else:
        assert ran.returncode in (2, 127)
        assert said in ran.stderr


def test_an_interpreter_without_remora_finds_it_in_the_folder_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:], 'remora' in sys.modules)")
    public = public_folder(tmp_path)
    base = os.path.realpath(sys.executable)
    ours = put_on_path(tmp_path / "launchers", "python3", 2, 2, str(tmp_path / "bin"), public)
    (tmp_path / "bin").mkdir()
    for name in ("python", "python3"):
        (tmp_path / "bin" / name).symlink_to(base)
    ran = subprocess.run(
        ["/bin/bash", "-c", "torchrun --nproc_per_node=2 train.py a"],
        cwd=tmp_path,
        env={"RANK": "0", "WORLD_SIZE": "2", **ours},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout) == (0, "['a'] False\n"), ran.stderr


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
        (
            "cd src && A=1 python -m torch.distributed.run train.py",
            {},
            "the shell would start torchrun in every worker",
        ),
        (
            "cd src && torchrun --nproc-per-node 4 train.py",
            {},
            "torchrun asks for 4 processes (--nproc-per-node 4) and",
        ),
        ("env A=1 torchrun --nproc-per-node=4 a.py", {"workers": 2}, "torchrun asks for 4 processes"),
    ],
)
def test_what_contradicts_the_job_is_refused_in_one_sentence(
    command: str, fields: dict[str, object], said: str
) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping({"command": command, **fields})
    (problem,) = caught.value.problems
    assert said in problem.message


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        ("bash mpirun", []),
        ("bash -x mpirun -c torchrun", []),
        ("bash -o pipefail mpirun", []),
        ("bash -o pipefail -c mpirun", [["mpirun"]]),
        ("bash --rcfile c -c mpirun", [["mpirun"]]),
        ("bash -c -- mpirun", [["mpirun"]]),
        ("bash -c", []),
    ],
)
def test_a_shell_starts_what_it_is_given_by_c_and_a_script_says_nothing(
    words: str, commands: list[list[str]]
) -> None:
    assert list(started_by(words.split())) == [("the shell", command) for command in commands]


@given(
    st.lists(
        st.sampled_from(
            [
                "env",
                "sudo",
                "time",
                "nohup",
                "exec",
                "A=1",
                "-n",
                "--",
                "3",
                "bash",
                "-c",
                "-ec",
                "a | b",
                "x",
                "",
            ]
        ),
        max_size=70,
    )
)
def test_whatever_words_a_command_has_what_it_may_start_is_the_rest_of_them_or_of_its_shells(
    words: list[str],
) -> None:
    looked_at = list(started_by(words))
    assert len(looked_at) < 70
    for starter, started in looked_at:
        is_rest = any(words[place : place + len(started)] == started for place in range(len(words)))
        assert is_rest if starter != "the shell" else set(started) <= {"a", "b", *words}


def test_a_starter_with_nothing_behind_it_starts_nothing() -> None:
    assert [list(started_by(words)) for words in ([], ["env"], ["env", "-i"], ["bash"], ["bash", "-c"])] == [
        [],
        [],
        [("env", ["-i"])],
        [],
        [],
    ]
    assert len(list(started_by(["env"] * 1000))) < 100


@pytest.mark.parametrize(
    ("command", "may"),
    [
        ("python run.sh", False),
        ("/opt/env/bin/python3.11 -m pkg", False),
        ("bash python", True),
        ("./run.sh", True),
    ],
)
def test_all_but_python_may_start_a_launcher(command: str, may: bool) -> None:
    assert may_start_a_launcher(shlex.split(command)) is may
