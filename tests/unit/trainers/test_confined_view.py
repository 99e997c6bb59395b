"""What a confined command sees: pure plans of mounts, its variables, and who has which number."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from remora.isolation import IsolationImpossible, UidRange
from remora.machine_isolation import offered
from tests.job_uids import own_uids
from trainers.isolation import node_view, users
from trainers.isolation.kernel_objects import objects_of, remove_objects
from trainers.isolation.mounts import MountStep, Shown, mount_steps
from trainers.isolation.node_view import device_groups
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


def test_where_rights_keep_nothing_what_may_only_be_read_is_mounted_in_what_may_be_written_to() -> None:
    shown = [here("/jobs/group", writable=True), here("/jobs/group/resume")]
    steps = mount_steps(shown, [Path("/jobs")], lambda _: False, rest_is_read_only=True)
    assert [(str(one.target), one.is_read_only) for one in steps if one.source] == [
        ("/jobs/group", False),
        ("/jobs/group/resume", True),
    ]


def test_what_is_hidden_in_a_shown_folder_is_covered_although_that_lies_below_another_cover() -> None:
    assert [str(one.target) for one in steps_of(here("/closed/python"), hidden=("/closed/python/own",))] == [
        "/closed",
        "/closed/python",
        "/closed/python/own",
    ]


def test_the_folders_of_the_platform_are_covered_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As below /opt, of which commands see all the rest."""
    monkeypatch.setattr(node_view, "SYSTEM", node_view.SYSTEM | {tmp_path.parts[1]})
    places = [tmp_path / name for name in ("home", "remora", "work", "token")]
    for place in places:
        place.mkdir()
    home, remora, work, token = map(str, places)
    named = {
        "HOME": home,
        "REMORA_HOME": remora,
        "REMORA_WORK_DIR": work,
        "RAY_AUTH_TOKEN_PATH": f"{token}/t",
    }
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    covered = {one.target for one in node_view.steps_for_namespaces([]) if one.source is None}
    assert covered >= set(places)


def test_a_token_in_a_folder_of_the_system_is_covered_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/etc/passwd")
    steps = node_view.steps_for_namespaces([])
    assert [one.source for one in steps if one.target == Path("/etc/passwd")] == [Path("/dev/null")]
    assert all(one.target != Path("/etc") for one in steps)


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
