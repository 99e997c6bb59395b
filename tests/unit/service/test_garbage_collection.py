"""The garbage collector pauses while a thread builds, and runs again when the last one has built."""

from __future__ import annotations

import gc
import threading

import pytest

from service.garbage_collection import without_collections


def test_it_comes_back_after_the_last_one() -> None:
    assert gc.isenabled()
    inside, leave = threading.Event(), threading.Event()

    def build() -> None:
        with without_collections():
            inside.set()
            leave.wait(30)

    other = threading.Thread(target=build)
    with without_collections():
        other.start()
        assert inside.wait(30)
        assert not gc.isenabled()
    assert not gc.isenabled()
    leave.set()
    other.join()
    assert gc.isenabled()


def test_it_comes_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="x"), without_collections():
        raise ValueError("x")
    assert gc.isenabled()
