"""The document of `make bench-backends` is put together from its parts."""

from __future__ import annotations

from typing import Any

from benchmarks.backends import FrameworkMissing, collect


def test_parts_are_put_together_and_what_is_missing_is_named() -> None:
    def first() -> dict[str, Any]:
        return {"steady_ratio": {"ddp": 1.0, "fsdp": 1.01}, "sharded_loop_ratio": 1.1}

    def second() -> dict[str, Any]:
        return {"steady_ratio": {"mpi": 1.02}, "resize": {"0": {"seconds": 2.0, "equal": True}}}

    def third() -> dict[str, Any]:
        raise FrameworkMissing("install tensorflow")

    assert collect({"fsdp": first, "mpi": second, "tensorflow": third}) == {
        "steady_ratio": {"ddp": 1.0, "fsdp": 1.01, "mpi": 1.02},
        "sharded_loop_ratio": 1.1,
        "resize": {"0": {"seconds": 2.0, "equal": True}},
        "missing": {
            "tensorflow": "install tensorflow; or leave it out: make bench-backends LEAVE_OUT=tensorflow"
        },
    }


def test_a_part_that_fails_is_named_and_the_others_are_kept() -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("a rank ended with -6")

    assert collect({"zero": broken, "mpi": lambda: {"steady_ratio": {"mpi": 1.0}}}) == {
        "failed": {"zero": "RuntimeError: a rank ended with -6"},
        "steady_ratio": {"mpi": 1.0},
    }
