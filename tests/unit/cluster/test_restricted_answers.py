"""What comes from a Ray cluster is values: objects of known kinds are made, and nothing runs."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import ray.cloudpickle
import ray.exceptions

from cluster.ray.restricted_answers import CodeRefused, loads
from remora.states import EndReason
from trainers.driver.driver import DriverTaken
from trainers.plan import DriverGone, Record
from trainers.storage_grants import StorageRequest


class Calls:
    """Pickled, it is a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, 2.5, "text", b"bytes", True, {"a": (1, 2)}, {3}, frozenset({4}), bytearray(b"x")],
        [Record(seq=1, at=2.0, kind="log", body={"line": "x"})],
        DriverGone(EndReason.DRIVER_LOST, "it died"),
        [(7, StorageRequest(url="abfs://c/p", action="read", names=("jobs/1/a",)))],
        EndReason.COMPLETED,
        datetime(2026, 1, 1, tzinfo=UTC),
        PurePosixPath("/a"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("dumps", [pickle.dumps, ray.cloudpickle.dumps])
def test_what_drivers_answer_arrives(value: object, dumps: Callable[[Any], bytes]) -> None:
    assert loads(dumps(value)) == value


def test_what_drivers_raise_arrives_with_its_cause() -> None:
    error = ray.exceptions.RayTaskError("start", "a traceback", DriverTaken("another attempt"))
    arrived = loads(ray.cloudpickle.dumps(error))
    assert isinstance(arrived.cause, DriverTaken)


def test_buffers_of_large_values_are_taken() -> None:
    kept: list[pickle.PickleBuffer] = []
    data = pickle.dumps(pickle.PickleBuffer(b"x" * 100), protocol=5, buffer_callback=kept.append)
    assert bytes(loads(data, buffers=kept)) == b"x" * 100


def made(folder: Path) -> dict[str, bytes]:
    """Pickles that would make the file `canary` of a folder, or reach what could."""
    canary = str(folder / "canary")
    nested = {"value": [1, Calls(os.mkdir, canary)]}
    return {
        "a call": pickle.dumps(Calls(os.mkdir, canary)),
        "a call in a value": pickle.dumps(nested),
        "a shell": pickle.dumps(Calls(os.system, f"touch {canary}")),
        "a process": pickle.dumps(Calls(subprocess.call, ["touch", canary])),
        "eval": pickle.dumps(Calls(eval, f"open({canary!r}, 'w')")),
        "a function by value": ray.cloudpickle.dumps(Calls(lambda: Path(canary).touch())),
        # A module of ours, and through it what it has imported.
        "through an import of ours": b"ctrainers.launch\ntime\n.",
        "through a dotted name": b"ctrainers.plan\nRecord.__init__\n.",
        "a function of ours": b"ctrainers.secret_values\npieces_of\n.",
        "a class of ours that is no value": b"ctrainers.launch\nRayLauncher\n.",
        "a module that was not imported": b"cantigravity\nfly\n.",
        "what would end the process": b"cbuiltins\nSystemExit\n.",
        "getattr": pickle.dumps(Calls(getattr, "a", "b")),
        "getattr of a class of ours": pickle.dumps(Calls(getattr, Record, "__init__")),
        "getattr of an enumeration": pickle.dumps(Calls(getattr, EndReason, "__members__")),
    }


def built(what: bytes, state: bytes) -> bytes:
    """A pickle that gives an object this state."""
    return what + state + b"b."


#: What is there once in a process for all that ask for it, as a pickle puts it onto its stack.
SHARED = {
    "a class": b"ctrainers.plan\nRecord\n",
    "a class of the standard library": b"ccollections\nCounter\n",
    "an enumeration": b"cremora.states\nEndReason\n",
    "a member": b"cremora.states\nEndReason\n(S'completed'\ntR",
    "a member by its name": b"cbuiltins\ngetattr\n(cremora.states\nEndReason\nS'COMPLETED'\ntR",
    "getattr": b"cbuiltins\ngetattr\n",
}
#: As a dictionary, and as attributes.
STATES = {"fields": b"(dS'mark'\nI1\ns", "attributes": b"(N(dS'mark'\nI1\nst"}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("what", SHARED)
def test_nothing_that_stays_is_changed(what: str, state: str) -> None:
    loads(SHARED[what] + b".")
    with pytest.raises(CodeRefused) as caught:
        loads(built(SHARED[what], STATES[state]))
    assert "\n" not in str(caught.value)
    for one in (Record, Counter, EndReason, EndReason.COMPLETED):
        assert not hasattr(one, "mark")


def test_an_instance_has_the_state_that_came() -> None:
    record = Record(seq=1, at=2.0, kind="log", body={})
    arrived = loads(pickle.dumps([record, ValueError("no")]))
    assert arrived[0] == record
    assert [type(one) for one in arrived] == [Record, ValueError]


def test_a_member_of_an_enumeration_arrives_by_its_name() -> None:
    assert loads(SHARED["a member by its name"] + b".") is EndReason.COMPLETED


@pytest.mark.parametrize("name", sorted(made(Path("/"))))
def test_what_would_run_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(CodeRefused) as caught:
        loads(made(tmp_path)[name])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "canary").exists()


def test_the_same_runs_where_it_is_not_restricted(tmp_path: Path) -> None:
    pickle.loads(made(tmp_path)["a call"])  # noqa: S301  # its own
    assert (tmp_path / "canary").exists()


def test_what_is_no_pickle_is_an_error_of_pickle() -> None:
    for data in (b"", b"words", pickle.dumps(StorageRequest)[:-2]):
        with pytest.raises((pickle.UnpicklingError, EOFError)):
            loads(data)
