"""A command that is one text means what it means in bash, and gets a shell only where it needs one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import JobSpec
from remora.job_commands.command_texts import argument_list, needs_shell


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python train.py --lr 0.1", ["python", "train.py", "--lr", "0.1"]),
        ("python train.py 'a b' \"c d\"", ["python", "train.py", "a b", "c d"]),
        ("python train.py --filter '*.txt && $HOME | ~'", ["python", "train.py", "--filter", "*.txt && $HOME | ~"]),
        ("python a.py layers=[64,32] +a={b:1,c:2}", ["python", "a.py", "layers=[64,32]", "+a={b:1,c:2}"]),
        ("python train.py --filter=*.txt --dir=~/x", ["python", "train.py", "--filter=*.txt", "--dir=~/x"]),
        ("python train.py --color #1", None),
        ("python train.py --color=#fff a#b {} {0}", ["python", "train.py", "--color=#fff", "a#b", "{}", "{0}"]),
        ("python train.py --out ${{outputs.final}}", ["python", "train.py", "--out", "${{outputs.final}}"]),
        ('python -c "print(1); print(2)"', ["python", "-c", "print(1); print(2)"]),
        ("python a\\ b.py", ["python", "a b.py"]),
        ("python train.py\n", ["python", "train.py"]),
        ("cd src && python train.py > log", None),
        ("python train.py; true", None),
        ("python train.py || true", None),
        ("python train.py | tee log", None),
        ("python train.py 2>&1", None),
        ("python train.py < data", None),
        ("python train.py &", None),
        ("python train.py $HOME", None),
        ('python train.py "$HOME"', None),
        ('python train.py "a\\$b"', None),
        ("python train.py `hostname`", None),
        ("python train.py data/*.txt", None),
        ("python train.py data[01].txt", None),
        ("python train.py part{1,2}.txt", None),
        ("python train.py {1..4}", None),
        ("python train.py ~/data", None),
        ("python a.py\npython b.py", None),
        ("python train.py \\\n  --lr 0.1", None),
        ("python train.py # don't", None),
        ("LR=0.1 python train.py", None),
        ("source env/bin/activate", None),
        ("cd src", None),
        ("exec python train.py", None),
        ("(python train.py)", None),
    ],
)  # fmt: skip
def test_a_shell_is_started_where_only_a_shell_understands_it(command: str, words: list[str] | None) -> None:
    job = JobSpec(command=command, outputs={"final": {}})  # type: ignore[arg-type]
    assert job.command == (["bash", "-c", command.strip()] if words is None else words)


def test_an_expression_in_a_script_stands_in_quotes() -> None:
    job = JobSpec(
        command="cd src && python train.py ${{outputs.final}} '${{outputs.final}}'", outputs={"final": {}}
    )  # type: ignore[arg-type]
    assert job.command[2] == "cd src && python train.py \"${{outputs.final}}\" ''\"${{outputs.final}}\"''"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("cd src && python train.py > log", "train"),
        ("(cd src; python -m pkg.train)", "pkg.train"),
        ("cd build && ./solver", "job"),
        ("python a.py # don't", "a"),
    ],
)
def test_a_script_for_a_shell_gives_its_job_a_name(command: str, name: str) -> None:
    assert JobSpec(command=command).name == name  # type: ignore[arg-type, call-arg]


@given(st.text(alphabet="ab '\"\\=-[]{}~#*?,.$x|", min_size=1, max_size=12))
def test_without_a_shell_the_words_are_those_of_bash(tail: str) -> None:
    command = f"printf %s\\\\0 x {tail}"
    try:
        if needs_shell(command):
            return
    except ValueError:
        return
    words = argument_list(command)
    by_bash = subprocess.run(
        ["bash", "-c", command], capture_output=True, cwd=Path("/proc/self/fdinfo"), check=True
    )
    assert by_bash.stdout.decode() == "".join(f"{word}\0" for word in words[2:])
