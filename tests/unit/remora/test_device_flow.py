"""Signing in from a terminal, against an issuer that really answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.openid_issuer import Issuer, make_certificate, serve_issuer
from remora.client.device_flow import DeviceFlow, Prompt, SignInFailed
from remora.views import SignInIssuer


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with serve_issuer() as serving:
        yield serving


def flow_of(issuer: Issuer, **given: str) -> DeviceFlow:
    return DeviceFlow(SignInIssuer(name="corp", issuer=issuer.url, client_id="cli", **given))


def without_pause(_: float) -> None:
    pass


def test_a_person_enters_the_code_and_the_program_has_a_token(issuer: Issuer) -> None:
    def enter(prompt: Prompt) -> None:
        assert prompt.page == f"{issuer.url}/authorize"
        issuer.approve(prompt.code, "alice", "ml")

    with flow_of(issuer) as flow:
        signed_in = flow.sign_in(enter, without_pause)
    assert signed_in.token.count(".") == 2
    assert signed_in.refresh_token is not None
    assert signed_in.expires_at == pytest.approx(time.time() + 3600, abs=60)


def test_it_waits_until_the_code_is_entered(issuer: Issuer) -> None:
    pauses: list[float] = []
    codes: list[str] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            issuer.approve(codes[0], "alice")

    with flow_of(issuer) as flow:
        flow.sign_in(lambda prompt: codes.append(prompt.code), pause)
    assert pauses == [1.0, 1.0, 1.0]


def test_a_token_is_renewed_without_a_person(issuer: Issuer) -> None:
    with flow_of(issuer, accepts="id_token") as flow:
        first = flow.sign_in(lambda prompt: issuer.approve(prompt.code, "alice"), without_pause)
        assert first.refresh_token is not None
        second = flow.refresh(first.refresh_token)
    assert second.token.count(".") == 2
    assert second.refresh_token not in (None, first.refresh_token)


def test_a_withdrawn_refresh_token_needs_a_new_sign_in(issuer: Issuer) -> None:
    with flow_of(issuer) as flow, pytest.raises(SignInFailed, match="refuses the sign-in: invalid_grant"):
        flow.refresh("withdrawn")


def test_an_issuer_that_is_not_there_is_named() -> None:
    absent = Issuer("http://127.0.0.1:1")
    with (
        flow_of(absent) as flow,
        pytest.raises(SignInFailed, match=r"http://127\.0\.0\.1:1/.* cannot be reached"),
    ):
        flow.sign_in(lambda _: None, without_pause)


def test_a_configuration_of_another_issuer_is_refused(issuer: Issuer) -> None:
    moved = Issuer(issuer.url.replace("127.0.0.1", "localhost"))
    with flow_of(moved) as flow, pytest.raises(SignInFailed, match="is the configuration of another issuer"):
        flow.sign_in(lambda _: None, without_pause)


def test_a_password_never_crosses_the_network_in_clear() -> None:
    with pytest.raises(SignInFailed, match="is not reached over https"):
        flow_of(Issuer("http://login.example"))


def test_over_tls_with_a_certificate_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path)
    with serve_issuer(certificate=certificate) as secure:
        with flow_of(secure) as flow, pytest.raises(SignInFailed, match="certificate verify failed"):
            flow.sign_in(lambda _: None, without_pause)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        with flow_of(secure) as flow:
            assert flow.sign_in(lambda prompt: secure.approve(prompt.code, "bob"), without_pause).token
