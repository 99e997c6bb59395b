"""How the API may be reached by its settings, and who may connect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.listening import Listening, ListeningProblem, isolation_of, listening
from service.settings import Settings

CERTIFICATE = {"tls_certificate": Path("service.pem"), "tls_key": Path("service.key")}
REQUIRED = {"authentication": "required"}


def reached(**given: Any) -> Listening:
    return listening(Settings(home=Path("home"), **given))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_loopback_needs_nothing(host: str) -> None:
    assert not reached(host=host).is_public


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "set REMORA_AUTHENTICATION=required, or REMORA_HOST=127.0.0.1"),
        (CERTIFICATE, "set REMORA_AUTHENTICATION=required"),
        (REQUIRED, "set REMORA_TLS_CERTIFICATE and REMORA_TLS_KEY, or REMORA_TRUSTED_PROXIES"),
        (REQUIRED | {"tls_key": Path("service.key")}, "set REMORA_TLS_CERTIFICATE too"),
        (REQUIRED | {"tls_certificate": Path("service.pem")}, "set REMORA_TLS_KEY too"),
        (REQUIRED | {"trusted_proxies": "10.0.0.1/24"}, "no address and no network such as 10.0.0.0/24"),
        (
            REQUIRED | CERTIFICATE | {"public_url": "remora.example.com"},
            "write it like https://remora.example.com",
        ),
    ],
)
def test_other_machines_are_let_in_only_with_authentication_and_tls(
    given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ListeningProblem, match=sentence):
        reached(host="10.0.0.5", **given)


def test_with_a_certificate_everyone_may_connect() -> None:
    found = reached(host="0.0.0.0", public_url="https://remora.example.com:8443", **REQUIRED, **CERTIFICATE)
    assert (found.scheme, found.names) == ("https", {"remora.example.com"})
    assert found.may_connect("192.0.2.7")


def test_without_one_only_proxies_and_this_machine_may() -> None:
    found = reached(host="10.0.0.5", trusted_proxies="10.0.0.1, 10.1.0.0/16", **REQUIRED)
    assert found.names == {"10.0.0.5"}
    allowed = ["10.0.0.1", "10.1.200.3", "::ffff:10.1.0.9", "127.0.0.1", "::1"]
    assert [one for one in allowed if not found.may_connect(one)] == []
    refused = ["10.0.0.2", "10.2.0.1", "192.0.2.7", "fe80::1%eth0", "not an address", "", None]
    assert [one for one in refused if found.may_connect(one)] == []


@pytest.mark.parametrize(
    ("host", "isolation", "expected"),
    [
        ("127.0.0.1", "auto", "auto"),
        ("10.0.0.5", "auto", "users"),
        ("10.0.0.5", "none", "none"),
        ("127.0.0.1", "users", "users"),
        ("127.0.0.1", "namespaces", "namespaces"),
    ],
)
def test_jobs_of_a_shared_service_run_only_where_they_are_kept_apart(
    host: str, isolation: Any, expected: str
) -> None:
    assert isolation_of(Settings(home=Path("home"), host=host, isolation=isolation)) == expected


def test_namespaces_are_not_enough_for_a_service_that_others_reach() -> None:
    certified = {"tls_certificate": Path("own.pem"), "tls_key": Path("own.key")}
    assert reached(host="127.0.0.1", isolation="namespaces", **REQUIRED).host == "127.0.0.1"
    with pytest.raises(
        ListeningProblem, match=r"REMORA_ISOLATION is namespaces.*set it to users, or to none"
    ):
        reached(host="10.0.0.5", isolation="namespaces", **REQUIRED, **certified)
