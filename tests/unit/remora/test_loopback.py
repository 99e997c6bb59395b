"""Which hosts are this machine itself."""

from __future__ import annotations

import pytest

from remora.loopback import is_loopback, is_loopback_url


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]"])
def test_these_hosts_are_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "127.0.0.1.example.com",
        "127.example.com",
        "localhost.example.com",
        "10.0.0.1",
        "0.0.0.0",
        "::",
        "127.1",
    ],
)
def test_these_are_not(host: str) -> None:
    assert not is_loopback(host)


def test_a_url_is_judged_by_its_host_alone() -> None:
    assert is_loopback_url("http://127.0.0.1:8000/path")
    assert is_loopback_url("http://[::1]:8000")
    assert not is_loopback_url("http://127.0.0.1@example.com/")
    assert not is_loopback_url("http://127.example.com")
    assert not is_loopback_url("http://[::1")
