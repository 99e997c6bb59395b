"""What a job specification accepts, what it refuses, and in which words."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import remora
from remora.errors import SpecError
from remora.spec.backends import BACKEND_WORDS
from remora.spec.sections import Best
from remora.spec.spec import MAX_SPEC_BYTES, JobSpec


def refusal(**fields: Any) -> str:
    """What is said about a specification that is right but for these fields."""
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping({"command": "python train.py", **fields})
    return str(caught.value)


def test_a_command_is_enough() -> None:
    assert JobSpec(command="python train.py --epochs '5 6'").to_mapping() == {
        "name": "train",
        "project": "default",
        "code": None,
        "command": ["python", "train.py", "--epochs", "5 6"],
        "entrypoint": None,
        "arguments": {},
        "backend": "ddp",
        "workers": {"min": 1, "max": 1, "multiple_of": 1},
        "workers_per_node": None,
        "resources": {
            "gpus": 0.0,
            "cpus": 1.0,
            "memory": None,
            "device": "auto",
            "precision": "full",
        },
        "environment": {
            "image": None,
            "python": None,
            "pip": [],
            "requirements": None,
            "setup": None,
            "inherit": None,
            "variables": {},
            "secrets": [],
        },
        "inputs": {},
        "outputs": {},
        "placement": {"pools": [], "capacity": None, "zones": [], "fabric": "any"},
        "elastic": {
            "exactness": "none",
            "global_batch": None,
            "shards": None,
            "nonfinite": "none",
            "verify": None,
        },
        "checkpoint": {"interval": 60.0, "keep": 3, "best": None, "store": None},
        "priority": 50,
        "retry": {"limit": 3, "backoff": 1.0, "on_exit_codes": [], "on_log_patterns": []},
        "array": None,
        "schedule": None,
        "labels": {},
        "after": [],
        "limits": {"run_time": None, "wait_time": None, "step_time": 600.0, "budget": None, "deadline": None},
    }


def test_every_field_is_read() -> None:
    digest = f"sha256:{'0' * 64}"
    spec = JobSpec.from_yaml(f"""
        name: digits
        project: vision
        code: {digest}
        command: [python, train.py]
        backend: command
        workers: {{min: 2, max: 8}}
        resources: {{gpus: 0.5, cpus: 2, memory: 32GiB}}
        environment: {{variables: {{LR: "0.1"}}}}
        elastic: {{exactness: bitwise, global_batch: 96, shards: 12}}
        checkpoint: {{interval: 5m, keep: 1, best: {{metric: acc, mode: max}}, store: models}}
        priority: 0
        retry: {{limit: 0, backoff: 1h30m}}
        limits: {{run_time: 24h, wait_time: 90}}
    """)

    assert (spec.min_workers, spec.max_workers) == (2, 8)
    assert spec.ray_resources() == {"CPU": 2.0, "GPU": 0.5, "memory": 32 * 2.0**30}
    assert (spec.bundle, spec.code_folder) == (digest, None)
    assert (spec.checkpoint.interval_s, spec.retry.backoff_s) == (300, 5400)
    assert (spec.limits.run_time_s, spec.limits.wait_time_s) == (86400, 90)
    assert spec.environment.variables == {"LR": "0.1"}
    assert spec.checkpoint.best == Best(metric="acc", mode="max")
    assert spec.elastic.variables() == {
        "REMORA_EXACTNESS": "bitwise",
        "REMORA_GLOBAL_BATCH": "96",
        "REMORA_SHARDS": "12",
    }
    assert JobSpec.from_mapping(json.loads(json.dumps(spec.to_mapping()))) == spec


def test_exit_codes_are_numbers_and_ranges_and_one_needs_no_list() -> None:
    retry = JobSpec(command="x", retry={"on_exit_codes": [1, " 3 - 9 ", "7-7"]}).retry
    assert retry.on_exit_codes == (1, "3-9", 7)
    assert JobSpec(command="x", retry={"on_exit_codes": 75}).retry.on_exit_codes == (75,)
    assert JobSpec(command="x", retry={"on_log_patterns": "a.*b"}).retry.on_log_patterns == ("a.*b",)


def test_an_interval_is_fixed_or_chosen_or_none() -> None:
    policies = [
        JobSpec(command="x", checkpoint={"interval": one}).checkpoint for one in ("5m", "auto", "none")
    ]
    assert [(one.interval_s, one.is_interval_auto) for one in policies] == [
        (300, False),
        (None, True),
        (None, False),
    ]
    spec = JobSpec(command="x", checkpoint={"interval": "auto"})
    assert JobSpec.from_mapping(json.loads(json.dumps(spec.to_mapping()))) == spec


def test_a_relative_folder_is_relative_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: x\ncode: src\n")
    assert JobSpec.from_yaml(tmp_path / "job.yaml").code_folder == tmp_path / "src"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -u Train_Digits.py", "train_digits"),
        ("python -m my.pkg", "my.pkg"),
        ("/usr/bin/env", "env"),
        ("bash run.sh 1", "run"),
        (["Ω"], "job"),
        (["x" * 100], "x" * 63),
    ],
)
def test_a_job_is_named_after_its_script(command: str | list[str], name: str) -> None:
    assert JobSpec(command=command).name == name


def test_all_problems_are_named_at_once_each_with_field_value_and_expectation() -> None:
    said = refusal(
        worker=3,
        gpus=1,
        workers=-1,
        resources={"gpu": 1, "cpus": "4"},
        priority=True,
        retry={"limit": 1.5},
        backend="horovod",
    )
    assert said.splitlines() == [
        "backend: this version has no horovod backend of its own; build Horovod with MPI in the environment of"
        " the command, and use mpi",
        "workers: -1 given, expected a whole number from 1 to 4096, or {min: .., max: .., multiple_of: ..}",
        "resources.cpus: '4' given, expected a number of CPUs above 0",
        "resources.gpu: unknown key; did you mean resources.gpus?",
        "priority: True given, expected a whole number from 0 to 100",
        "retry.limit: 1.5 given, expected a whole number from 0 to 100",
        "worker: unknown key; did you mean workers?",
        "gpus: unknown key; did you mean resources.gpus?",
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"command": []}, "command: [] given, expected a command line, or a list of texts"),
        ({"command": ["a", 1]}, "command.1: 1 given"),
        ({"command": "'"}, "command: the command line cannot be split into words: No closing quotation"),
        ({"command": ["", "x"]}, "command: the first word of the command is empty"),
        ({"command": ["a\0"]}, "command.0: a null character"),
        ({"command": ["a\ud800"]}, "command.0: half a character"),
        ({"name": "Big"}, "name: 'Big' given, expected 1 to 63 of"),
        ({"name": "a\n"}, "name: 'a\\n' given"),
        ({"project": "-x"}, "project: '-x' given"),
        ({"code": "sha256:12"}, "code: 'sha256:12' given"),
        ({"workers": {"min": 3, "max": 2}}, "workers: min is 3 and max is 2"),
        ({"workers": {"min": 3}}, "workers.max: missing"),
        ({"workers": 4097}, "workers: 4097 given"),
        ({"workers": "4"}, "workers: '4' given"),
        ({"workers": False}, "workers: False given"),
        ({"workers": None}, "workers: nothing given"),
        ({"resources": {"gpus": 1.5}}, "resources.gpus: 1.5 given"),
        ({"resources": {"device": "tpu"}}, "resources.device: 'tpu' given, expected auto, cpu, cuda or xpu"),
        ({"resources": {"device": "xpu"}}, "resources: device is xpu and gpus is 0"),
        ({"resources": {"device": "cpu", "gpus": 1}}, "resources: device is cpu and gpus is 1"),
        (
            {"resources": {"precision": "bf16", "gpus": 1}},
            "resources: precision is bf16, which is for processors",
        ),
        ({"resources": {"gpus": float("nan")}}, "resources.gpus: nan given"),
        ({"resources": {"gpus": -1}}, "resources.gpus: -1 given"),
        ({"resources": {"cpus": 0}}, "resources.cpus: 0 given"),
        ({"resources": {"memory": "32GX"}}, "resources.memory: '32GX' given, expected a size such as"),
        (
            {"environment": {"python": 3.12}},
            "environment.python: 3.12 given, expected a version of Python in quotes",
        ),
        ({"environment": {"python": "2.7"}}, "environment.python: '2.7' given"),
        (
            {"environment": {"pip": "numpy"}},
            "environment.pip: 'numpy' given, expected a list of requirements",
        ),
        (
            {"environment": {"requirements": "poetry.lock"}},
            "environment.requirements: 'poetry.lock' is no file of requirements below `code`; write the path of a",
        ),
        (
            {"environment": {"pip": ["-r x.txt"]}},
            "environment.pip: '-r x.txt' is no requirement; write packages",
        ),
        ({"environment": {"pip": ["a"] * 501}}, "environment.pip: "),
        ({"environment": {"requirements": "a.txt"}}, "environment.requirements names a file of the code"),
        ({"environment": {"requirements": "../a.txt"}}, "'../a.txt' is no file of requirements below `code`"),
        ({"environment": {"requirements": "/etc/passwd"}}, "'/etc/passwd' is no file of requirements"),
        ({"environment": {"inherit": "yes"}}, "environment.inherit: 'yes' given, expected true or false"),
        ({"environment": {"variables": {"RANK": "0"}}}, "environment.variables: RANK is set by Remora"),
        ({"environment": {"variables": {"REMORA_X": "0"}}}, "REMORA_X is set by Remora"),
        ({"environment": {"variables": {"A-B": "0"}}}, "'A-B' is not a variable's name"),
        ({"environment": {"variables": {"A": 1}}}, "put quotes around numbers"),
        ({"environment": {"variables": {1: "1"}}}, "environment.variables.1: 1 given"),
        (
            {"environment": {"image": "python:3.12"}},
            "environment.image: 'python:3.12' given, expected an image with its",
        ),
        (
            {"environment": {"image": "-v"}},
            "environment.image: '-v' given, expected an image with its registry",
        ),
        ({"environment": {"image": "localhost/x\n-v"}}, r"environment.image: 'localhost/x\n-v' given"),
        ({"environment": {"image": "localhost/" + "a" * 600}}, "environment.image: 'localhost/aaaaa"),
        ({"environment": {"image": "dir:/etc"}}, "environment.image: 'dir:/etc' given"),
        ({"environment": {"image": "dir:80/etc"}}, "environment.image: 'dir:80/etc' given"),
        ({"environment": {"image": "localhost/../x"}}, "environment.image: 'localhost/../x' given"),
        ({"environment": {"image": ["localhost/x"]}}, "environment.image: ['localhost/x'] given"),
        (
            {"environment": {"image": "localhost/x", "pip": ["a"], "inherit": True}},
            "environment: inherit: true and pip cannot be combined with image, whose own Python and packages",
        ),
        (
            {"environment": {"image": "localhost/x", "setup": "a"}},
            "environment: setup cannot be combined with image",
        ),
        (
            {"environment": {"image": "localhost/x"}, "backend": "mpi"},
            "backend is mpi, which needs programs of the nodes, and environment.image is given",
        ),
        ({"checkpoint": {"interval": 0}}, "checkpoint.interval: 0 given, expected more than 0 seconds"),
        (
            {"checkpoint": {"interval": "often"}},
            "checkpoint.interval: 'often' given, expected a duration such",
        ),
        (
            {"checkpoint": {"best": {"metric": "acc", "mode": "up"}}},
            "checkpoint.best.mode: 'up' given, expected min",
        ),
        (
            {"checkpoint": {"best": {"mode": "max"}}},
            "checkpoint.best.metric: missing; expected the name of a",
        ),
        ({"checkpoint": {"best": {"metrics": "a", "metric": "a"}}}, "did you mean checkpoint.best.metric?"),
        ({"checkpoint": {"best": "loss"}}, "checkpoint.best: 'loss' given, expected {metric: a name, mode"),
        ({"checkpoint": {"keep": 101}}, "checkpoint.keep: 101 given"),
        ({"checkpoint": {"store": ""}}, "checkpoint.store: '' given"),
        ({"retry": {"backoff": "fast"}}, "retry.backoff: 'fast' given, expected a duration such as"),
        ({"retry": {"on_exit_codes": [0]}}, "retry.on_exit_codes.0: 0 given, expected a list of exit codes"),
        ({"retry": {"on_exit_codes": ["9-3"]}}, "retry.on_exit_codes.0: '9-3' given, expected a list"),
        ({"retry": {"on_exit_codes": ["75"]}}, "expected a number without quotes: 75"),
        ({"retry": {"on_exit_codes": [True]}}, "retry.on_exit_codes.0: True given"),
        ({"retry": {"on_log_patterns": ["a\nb"]}}, "'a\\nb' is no text to look for in a line of the log"),
        ({"retry": {"on_log_patterns": [" "]}}, "' ' is no text to look for"),
        ({"retry": {"limit": 0, "on_exit_codes": [1]}}, "retry: limit is 0, so that nothing is retried"),
        ({"limits": {"run_time": -1}}, "limits.run_time: -1 given"),
        ({"limits": {"run_time": "11111111d"}}, "between 0 and ten years"),
        ({"schedule": "0 0 30 2 *"}, "schedule: '0 0 30 2 *' is no time that ever comes"),
        ({"schedule": {"cron": "0 3 * * *", "zone": "Mars/Olympus"}}, "schedule.zone: "),
        ({"limits": 3}, "limits: 3 given, expected keys run_time, wait_time"),
        ({"after": ["job_1"]}, "after.0.job: 'job_1' given, expected whole ids of jobs, job_ and 26"),
        ({"after": [f"job_{'0' * 26}"] * 2}, f"after: job_{'0' * 26} is there twice"),
        (
            {"after": {"job": f"job_{'0' * 26}", "when": "x"}},
            "after.0.when: 'x' given, expected whole ids",
        ),
        ({"after": 3}, "after: 3 given, expected whole ids of jobs"),
        ({"priority": 10**5000}, "priority: a value given"),
        ({"placement": {"pools": ["A b"]}}, "placement.pools.0: 'A b' given, expected a list of names"),
        ({"placement": {"pools": ["a", "a"]}}, "placement.pools: a is there twice"),
        (
            {"placement": {"capacity": "cheap"}},
            "capacity: 'cheap' given, expected spot, on-demand, prefer-spot",
        ),
        (
            {"placement": {"fabric": "ethernet"}},
            "placement.fabric: 'ethernet' given, expected any or infiniband",
        ),
        ({"placement": {"fabric": True}}, "placement.fabric: True given, expected any or infiniband"),
        ({"placement": {"zones": [True]}}, "placement.zones.0: True given, expected a list of zones"),
        ({"placement": {"pool": "a"}}, "placement.pool: unknown key; did you mean placement.pools?"),
        (
            {"elastic": {"exactness": "exact"}},
            "elastic.exactness: 'exact' given, expected none, sample-exact",
        ),
        ({"elastic": {"shards": 0}}, "elastic.shards: 0 given, expected a whole number from 1 to 2**31"),
        ({"elastic": {"global_batch": 4, "shards": 5}}, "elastic: shards is 5 and global_batch is 4; every"),
        ({"workers": 4, "elastic": {"shards": 3}}, "workers.max is 4 and elastic.shards is 3; every worker"),
        (
            {"backend": "fsdp", "elastic": {"exactness": "bitwise"}},
            "backend is fsdp and elastic.exactness is bitwise; the sums of sharded gradients",
        ),
        ({"backend": "spark"}, f"backend: 'spark' given, expected {BACKEND_WORDS}"),
        ({"zzz": 1}, "zzz: unknown key; known are name, project"),
        ({1: 2}, "1: keys must be texts"),
    ],
)
def test_one_bad_field_is_one_clear_line(fields: dict[Any, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping({"command": "x"} | fields)
    assert len(caught.value.problems) == 1
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "name",
    [
        "docker.io/library/python:3.12",
        "localhost/own",
        f"registry.example:5000/team/train-gpu_2:v1@sha256:{'0' * 64}",
        "41ecc6ea0853",
        f"sha256:{'0' * 64}",
    ],
)
def test_an_image_is_named_as_podman_names_it(name: str) -> None:
    environment = {"image": name, "inherit": False, "variables": {"A": "1"}}
    spec = JobSpec.from_mapping({"command": "python a.py", "environment": environment})
    assert (spec.environment.image, spec.environment.is_built) == (name, False)


def test_what_follows_a_loss_that_is_not_finite_may_be_said_of_sharded_models_too() -> None:
    asked = {"command": "python a.py", "backend": "fsdp", "elastic": {"nonfinite": "rollback"}}
    assert JobSpec.model_validate(asked).elastic.variables() == {"REMORA_NONFINITE": "rollback"}


def test_checks_of_shards_need_bits_that_are_the_same_everywhere() -> None:
    asked = {"command": "python a.py", "elastic": {"exactness": "bitwise", "verify": {"every": 500}}}
    assert JobSpec.from_mapping(asked).elastic.variables() == {
        "REMORA_EXACTNESS": "bitwise",
        "REMORA_VERIFY_EVERY": "500",
    }
    for elastic in ({"verify": {"every": 500}}, {"exactness": "sample-exact", "verify": {"every": 500}}):
        with pytest.raises(SpecError, match="verify compares bits; write exactness: bitwise beside it"):
            JobSpec.from_mapping({**asked, "elastic": elastic})
    with pytest.raises(SpecError, match=r"elastic.verify.every"):
        JobSpec.from_mapping({**asked, "elastic": {"exactness": "bitwise", "verify": {"every": 0}}})


def test_one_pool_or_zone_needs_no_list_and_numbers_of_zones_are_texts() -> None:
    asked = JobSpec.from_mapping({"command": "x", "placement": {"pools": "a100", "zones": 2}})
    assert (asked.placement.pools, asked.placement.zones) == (("a100",), ("2",))
    assert JobSpec.from_mapping(asked.to_mapping()) == asked


@pytest.mark.parametrize(("written", "read"), [(None, "any"), ("any", "any"), ("infiniband", "infiniband")])
def test_what_joins_the_machines_of_a_job_is_left_open_unless_it_says_so(written: object, read: str) -> None:
    asked = JobSpec.from_mapping({"command": "x", "placement": {"fabric": written}})
    assert asked.placement.fabric == read
    assert JobSpec.from_mapping(asked.to_mapping()) == asked


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: b: c", "is not YAML: mapping values are not allowed in this context (line 1, column 5)"),
        ("[", "is not YAML"),
        ("- x", "a job specification is a mapping"),
        ("", "a job specification is a mapping"),
        ("command: x\ncommand: y", "the key 'command' is there twice (line 2, column 1)"),
        ("command: &a [*a]", "the alias 'a' stands inside what it means (line 1, column 14)"),
        ("x: 2024-13-45", "a value that YAML cannot mean: month must be in 1..12"),
        ("priority: " + "1" * 5000, "a number of more than 400 characters (line 1, column 11)"),
        ("[" * 100_000, "nested too deeply"),
        ("!!python/object/apply:os.system [x]", "is not YAML: could not determine a constructor"),
        ("\x00", "is not YAML"),
        ("a: " + "x" * MAX_SPEC_BYTES, "bigger than 256 KiB"),
    ],
)
def test_bad_yaml_is_one_line(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_yaml(text)
    assert said in str(caught.value).replace("[[[...]]]", "[[...]]")
    assert "\n" not in str(caught.value)


def test_bad_files_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    for path, said in [
        (tmp_path / "latin.yaml", "UTF-8"),
        (tmp_path, "Is a directory"),
        (tmp_path / "no", "No such"),
    ]:
        with pytest.raises(SpecError, match=said):
            JobSpec.from_yaml(path)


def test_a_nested_bomb_costs_nothing() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{at}: &a{at} [*a{at - 1}, *a{at - 1}]" for at in range(1, 60)]
    with pytest.raises(SpecError) as caught:
        JobSpec.from_yaml("\n".join([*lines, "command: *a59"]))
    assert len(str(caught.value)) < 20_000


def test_a_specification_bigger_than_the_limit_is_refused() -> None:
    assert "more than 256 KiB" in refusal(environment={"variables": {"A": "x" * MAX_SPEC_BYTES}})


def test_specifications_and_their_errors_travel_between_processes() -> None:
    spec = JobSpec(command="x")
    assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301
    with pytest.raises(SpecError) as caught:
        JobSpec(command=3)
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems  # noqa: S301


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*JobSpec.model_fields, "after", "x"]), _json, max_size=5))
def test_any_data_is_either_a_specification_that_survives_json_or_a_spec_error(data: dict[str, Any]) -> None:
    with contextlib.suppress(SpecError):
        spec = JobSpec.from_mapping(data)
        assert JobSpec.from_mapping(json.loads(json.dumps(spec.to_mapping()))) == spec


@given(st.text(max_size=60))
def test_any_text_is_a_specification_or_a_spec_error(text: str) -> None:
    with pytest.raises(SpecError):
        JobSpec.from_yaml(text)


def test_every_field_is_documented() -> None:
    text = (Path(remora.__file__).parent.parent / "docs/job-spec.md").read_text()
    leaves = [
        re.sub(r"^(inputs|outputs)\.(?!\*)", r"\1.*.", name)
        for name in JobSpec.known_fields
        if not any(o.startswith(f"{name}.") for o in JobSpec.known_fields)
    ]
    assert [name for name in leaves if f"`{name}`" not in text] == []


@pytest.mark.parametrize("one", ["runs", "runs/", "./runs", "conf.d", "conf.d/", "a/b"])
@pytest.mark.parametrize("below", ["", "/", "/x", "/x/", "/x.pt", "//x/y"])
@pytest.mark.parametrize("is_first", [True, False])
def test_no_output_lies_in_another_one_however_their_paths_are_written(
    one: str, below: str, is_first: bool
) -> None:
    paths = [one, f"{one.rstrip('/')}{below}"]
    first, second = paths if is_first else reversed(paths)
    said = refusal(outputs={"a": {"path": first}, "b": {"path": second}})
    assert re.fullmatch(r"outputs: the folders \S+ and \S+ of two outputs lie in each other", said)


@pytest.mark.parametrize("other", ["runs2", "conf.d/", "a", "run/s", "x/runs"])
def test_outputs_beside_each_other_are_taken(other: str) -> None:
    JobSpec.from_mapping({"command": "x", "outputs": {"a": {"path": "runs"}, "b": {"path": other}}})


def test_a_schedule_is_a_time_of_cron_and_follows_the_latest_time_that_was_missed() -> None:
    short = JobSpec.from_mapping({"command": "x", "schedule": "0 3 29 feb *"})
    assert short.to_mapping()["schedule"] == {
        "cron": "0 3 29 feb *",
        "zone": "UTC",
        "missed": "latest",
        "overlap": "skip",
    }
    assert JobSpec.from_mapping(short.to_mapping()) == short


def test_outputs_are_folders_by_name_that_may_become_models() -> None:
    spec = JobSpec.from_mapping(
        {"command": "train --to ${{outputs.final}}", "outputs": {"final": {"model": "digits"}, "logs": None}}
    )
    assert spec.outputs["final"].model == "digits"
    assert spec.outputs["logs"].model is None
    assert JobSpec.from_mapping(spec.to_mapping()) == spec


@pytest.mark.parametrize(
    ("path", "kept", "is_file"),
    [
        ("snapshot.pt", "snapshot.pt", True),
        ("./saved//last.ckpt", "saved/last.ckpt", True),
        ("runs", "runs", False),
        ("runs/", "runs", False),
        ("v1.2", "v1.2", False),
        ("conf.d/", "conf.d/", False),
        (".cache", ".cache", False),
    ],
)
def test_a_path_that_ends_like_a_file_is_one(path: str, kept: str, is_file: bool) -> None:
    raw = {"command": "x", "outputs": {"a": {"path": path, "commit": "trainer_state.json"}}}
    output = JobSpec.from_mapping(raw).outputs["a"]
    assert (output.path, output.is_file, output.commit) == (kept, is_file, "trainer_state.json")
    assert JobSpec.from_mapping(JobSpec.from_mapping(raw).to_mapping()).outputs["a"] == output


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"outputs": {"a/b": {}}}, "outputs: 'a/b' is no name of an output"),
        ({"outputs": {"..": {}}}, "outputs: '..' is no name of an output"),
        ({"outputs": {"a": {"model": "x"}, "b": {"model": "x"}}}, "outputs: two outputs become the model x"),
        ({"outputs": {"a": {"modell": "x"}}}, "outputs.a.modell: unknown key"),
        ({"outputs": {"a": {"path": "../x"}}}, "outputs.a.path: '../x' is no file or folder below"),
        ({"outputs": {"a": {"path": "/x"}}}, "outputs.a.path: '/x' is no file or folder below"),
        (
            {"outputs": {"a": {"commit": "../x"}}},
            "outputs.a.commit: '../x' is no name of a file in the output",
        ),
        ({"outputs": {"a": {"commit": "x/"}}}, "outputs.a.commit: 'x/' is no name of a file in the output"),
        ({"outputs": {"a": {"path": "./"}}}, "outputs.a.path: './' is no file or folder below"),
        (
            {"outputs": {"a": {"path": "x"}, "b": {"path": "x/y"}}},
            "outputs: the folders x and x/y of two outputs",
        ),
        ({"outputs": {"a": "x"}}, "outputs.a: 'x' given, expected"),
        (
            {"environment": {"variables": {"A": "${{job.name}}"}}},
            "${{job.name}} stands for nothing; known are",
        ),
        ({"command": "x ${{outputs.a}}"}, "${{outputs.a}} is not among the job's outputs"),
    ],
)
def test_outputs_that_cannot_be_are_refused(raw: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.from_mapping({"command": "x", **raw})
    assert said in str(refused.value)
