"""Requests to this machine: no proxy stands before it, and the certificates of the machine count where there is TLS."""

from __future__ import annotations

import ssl

import pytest

from remora.client.proxies import options_for


@pytest.mark.parametrize("url", ["http://127.0.0.1:8265", "http://localhost", "http://[::1]:1"])
def test_for_an_address_without_tls_no_certificate_is_read_and_none_is_trusted(url: str) -> None:
    options = options_for(url)
    assert options["trust_env"] is False
    assert options["verify"].get_ca_certs() == []
    assert options["verify"].verify_mode is ssl.CERT_REQUIRED
    assert options["verify"].check_hostname


def test_for_an_address_with_tls_those_of_the_environment_count() -> None:
    verify = options_for("https://127.0.0.1")["verify"]
    assert verify.verify_mode is ssl.CERT_REQUIRED
    assert verify.cert_store_stats()["x509_ca"] > 0


def test_another_machine_is_asked_as_the_environment_says() -> None:
    assert options_for("https://remora.example") == {}
