"""What a confined command sees: pure plans of mounts, its variables, and who has which number."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from remora.isolation import IsolationImpossible, UidRange
from remora.machine_isolation import offered
from tests.job_uids import own_uids
from trainers.isolation import users
from trainers.isolation.kernel_objects import objects_of, remove_objects
from trainers.isolation.mounts import MountStep, Shown, mount_steps
from trainers.isolation.node_view import device_groups, named_environment
from trainers.isolation.users import job_user, processes_of, sweep_users
from trainers.isolation.variables import machine_variables

#: As on a machine where the node's user is root and its interpreter lies in root's home.
CLOSED = {Path("/closed"), Path("/tmp/jobs"), Path("/srv/closed")}


def steps_of(*shown: Shown, hidden: tuple[str, ...] = ()) -> list[MountStep]:
    return list(mount_steps(shown, [Path(one) for one in hidden], lambda path: path in CLOSED))


def here(path: str, *, writable: bool = False) -> Shown:
    return Shown(source=Path(path), target=Path(path), is_read_only=not writable)


def test_what_others_may_look_at_needs_no_mount() -> None:
    assert steps_of(here("/usr/lib/python3"), here("/opt/inputs/a")) == []


def test_a_closed_folder_is_covered_and_shows_only_what_is_needed() -> None:
    assert steps_of(here("/closed/versions/3.11")) == [
        MountStep(source=None, target=Path("/closed")),
        MountStep(
            source=Path("/closed/versions/3.11"),
            target=Path("/closed/versions/3.11"),
            is_read_only=True,
        ),
    ]


def test_the_home_of_the_nodes_user_is_covered_although_others_may_look_into_it() -> None:
    assert steps_of(hidden=("/users/node",)) == [MountStep(source=None, target=Path("/users/node"))]
    needed = here("/users/node/venv")
    assert [one.target for one in steps_of(needed, hidden=("/users/node",))] == [
        Path("/users/node"),
        Path("/users/node/venv"),
    ]


def test_what_lies_in_a_shown_folder_is_there_with_it_and_what_may_be_written_to_stays_so() -> None:
    steps = steps_of(here("/srv/closed/a"), here("/srv/closed/a/b"), here("/srv/closed/a/c", writable=True))
    assert [(str(one.target), one.is_read_only) for one in steps if one.source] == [
        ("/srv/closed/a", True),
        ("/srv/closed/a/c", False),
    ]
    both = steps_of(here("/srv/closed/a", writable=True), here("/srv/closed/a"))
    assert [one.is_read_only for one in both] == [False, False]


def test_a_replaced_folder_shows_what_is_needed_in_the_one_that_takes_its_place() -> None:
    own = Shown(source=Path("/var/jobs/tmp"), target=Path("/tmp"), is_read_only=False)
    steps = steps_of(own, here("/tmp/jobs/job", writable=True))
    assert [str(one.target) for one in steps] == ["/tmp", "/tmp/jobs", "/tmp/jobs/job"]
    assert steps[1].source is None


def test_where_the_rest_is_read_only_what_may_be_written_to_is_mounted_although_nothing_covers_it() -> None:
    shown = [here("/opt/work", writable=True), here("/opt/python")]
    steps = mount_steps(shown, [Path("/home")], lambda _: False, rest_is_read_only=True)
    assert [str(one.target) for one in steps] == ["/home", "/opt/work"]


def test_parents_come_before_what_lies_in_them() -> None:
    steps = steps_of(here("/closed/z/y/x"), here("/srv/closed/q"), here("/closed/a"))
    places = [one.target for one in steps]
    assert all(above not in places[at:] for at, place in enumerate(places) for above in place.parents)


def program_in(folder: Path) -> str:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("#!/bin/sh\n")
    (folder / "bin" / "python").chmod(0o755)
    return str(folder / "bin" / "python")


def test_an_environment_that_a_command_names_by_its_path_is_shown_with_what_it_is_based_on(
    tmp_path: Path,
) -> None:
    own, conda, plain = (program_in(tmp_path / name) for name in ("own", "conda", "plain"))
    (tmp_path / "own" / "pyvenv.cfg").write_text("home = /opt/python/bin\nversion = 3.12\n")
    (tmp_path / "conda" / "conda-meta").mkdir()
    assert [one.source for one in named_environment(own)] == [tmp_path / "own", Path("/opt/python")]
    assert [one.source for one in named_environment(conda)] == [tmp_path / "conda"]
    for program in (plain, "python", "own/bin/python", str(tmp_path / "own" / "bin" / "none")):
        assert named_environment(program) == []


def test_the_home_of_the_nodes_user_is_not_shown_by_a_command_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "users" / "node"
    program = program_in(home)
    monkeypatch.setenv("HOME", str(home))
    for above in (home, tmp_path / "users", tmp_path):
        (home / "pyvenv.cfg").write_text(f"home = {above}/bin\n")
        assert named_environment(program) == []


@pytest.mark.parametrize(
    "name",
    ["AZURE_CLIENT_SECRET", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "RAY_AUTH_TOKEN_PATH", "REMORA_DATABASE_URL",
     "PGPASSWORD", "UV_INDEX_MAIN_PASSWORD", "PIP_EXTRA_TOKEN", "MSI_ENDPOINT", "SITE_CREDENTIALS"],
)  # fmt: skip
def test_credentials_of_a_node_stay_with_it(name: str) -> None:
    assert machine_variables({name: "x", "PATH": "/bin"}) == {"PATH": "/bin"}


def test_urls_with_credentials_stay_with_the_node_and_others_do_not() -> None:
    closed = [
        "https://me:word@pip.example/simple",
        "http://:word@proxy:80",
        "https://token@pip.example",
        "x a://b:c@d y",
    ]
    for value in closed:
        assert machine_variables({"PIP_INDEX_URL": value, "https_proxy": value, "PATH": "/bin"}) == {
            "PATH": "/bin"
        }
    for value in ("https://pip.example/simple/@scope/a:b", "http://[::1]:8080", "me@example", ""):
        assert machine_variables({"UV_INDEX_URL": value}) == {"UV_INDEX_URL": value}


def test_what_commands_need_of_a_node_they_have() -> None:
    names = ("PATH", "LC_ALL", "CUDA_VISIBLE_DEVICES", "NCCL_IB_HCA", "https_proxy", "REMORA_MACHINE")
    needed = dict.fromkeys(names, "x")
    assert machine_variables(needed) == needed


def test_groups_of_devices_are_those_that_not_everyone_may_use(tmp_path: Path) -> None:
    (tmp_path / "dev" / "dri").mkdir(parents=True)
    (tmp_path / "dev" / "dri" / "renderD128").touch()
    assert device_groups(tmp_path) == (), "it is no device"


@pytest.fixture
def numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UidRange:
    """Two numbers, whose locks lie in the folder of the test."""
    if offered().uids is None:
        pytest.skip(offered().why_not)
    monkeypatch.setattr(users, "_ROOT", tmp_path)
    return own_uids(2)


def test_two_jobs_have_two_users_and_workers_of_one_job_share_its_own(numbers: UidRange) -> None:
    with job_user("one", numbers) as first, job_user("two", numbers) as second:
        assert {first, second} == {numbers.first, numbers.last}
        with job_user("one", numbers) as again:
            assert again == first
        with (
            pytest.raises(IsolationImpossible, match=r"all users .* belong to jobs"),
            job_user("three", numbers),
        ):
            pass
    with job_user("three", numbers) as third:
        assert third == numbers.first


SLEEPS = "import os, sys, signal; os.setuid(int(sys.argv[1])); print('x', flush=True); signal.pause()"


def test_the_end_of_a_job_ends_all_processes_of_its_user(numbers: UidRange) -> None:
    with job_user("one", numbers) as uid:
        command = [sys.executable, "-c", SLEEPS, str(uid)]
        daemon = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"x\n"
        assert processes_of(uid) == [daemon.pid]
    assert processes_of(uid) == []
    assert daemon.wait() == -9
    daemon.stdout.close()


def test_what_a_killed_supervisor_left_is_swept_before_its_number_is_given_again(
    numbers: UidRange, tmp_path: Path
) -> None:
    with job_user("lives", numbers) as kept:
        root = next(tmp_path.iterdir())
        (root / f"{numbers.last}.lock").write_text("its supervisor was killed")
        sweep_users()
        assert sorted(path.name for path in root.glob("2*.lock")) == [f"{kept}.lock"]


def test_the_next_job_has_another_number_although_the_last_one_is_free(
    numbers: UidRange, tmp_path: Path
) -> None:
    given = []
    for name in ("one", "two", "three"):
        with job_user(name, numbers) as uid:
            given.append(uid)
    assert given == [numbers.first, numbers.last, numbers.first]
    for text in ("", "x", "1", str(numbers.last + 9)):
        (next(tmp_path.iterdir()) / "next").write_text(text)
        with job_user("four", numbers) as uid:
            assert uid == numbers.first, text


LEAVES = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.setuid(int(sys.argv[1]))
assert min(libc.shmget(0, 4096, 0o1600), libc.semget(0, 1, 0o1600), libc.msgget(0, 0o1600)) >= 0
"""


def test_what_a_job_leaves_in_the_kernel_goes_with_it_and_what_others_have_there_stays(
    numbers: UidRange,
) -> None:
    def left_by(uid: int) -> list[int]:
        kinds = {"shm": "shmid", "sem": "semid", "msg": "msqid"}
        return [len(objects_of(uid, name, column)) for name, column in kinds.items()]

    other = numbers.last + 1
    try:
        with job_user("one", numbers) as uid:
            for one in (uid, other):
                subprocess.run([sys.executable, "-c", LEAVES, str(one)], check=True)
            assert left_by(uid) == [1, 1, 1]
        assert left_by(uid) == [0, 0, 0]
        assert left_by(other) == [1, 1, 1]
    finally:
        assert remove_objects(other) == 3
