"""Signing in on the page at an issuer that really answers: a session at the end, and none for a forged answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from fastapi.testclient import TestClient

from examples.openid_issuer import SigningKey, serve
from service.api import authentication
from service.api.app import create_app
from service.api.rates import Rate, Rates
from service.openid import code_flow
from service.openid.issuers import Issuer as IssuerSettings
from service.settings import Settings
from service.store import signed_out
from tests.openid_pages import PageIssuer

BASE = "http://127.0.0.1:7265"


@pytest.fixture
def issuer() -> Iterator[PageIssuer]:
    with serve(PageIssuer) as serving:
        yield serving


@pytest.fixture
def trusted(issuer: PageIssuer) -> dict[str, Any]:
    """How the operator names the issuer."""
    return {"issuer": issuer.url, "audience": "remora", "client_id": "page", "pages": True}


@pytest.fixture
def client(tmp_path: Path, trusted: dict[str, Any]) -> Iterator[TestClient]:
    settings = Settings(
        home=tmp_path / "home",
        authentication="required",
        openid={
            "corp": IssuerSettings.model_validate(trusted),
            "ci": IssuerSettings(issuer="https://ci.example", audience="remora"),
        },
    )
    with TestClient(create_app(settings), base_url=BASE, follow_redirects=False) as opened:
        yield opened


def begin(client: TestClient, view: str = "jobs") -> str:
    """The address of the issuer to which the browser is led."""
    answer = client.get("/v1/sign-in/corp/page", params={"view": view})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def at_the_issuer(address: str) -> str:
    """The address of the service to which the issuer leads back."""
    answer = httpx2.get(address, follow_redirects=False)
    assert answer.status_code == 302, answer.text
    back = str(answer.headers["location"])
    assert back.startswith(f"{BASE}/v1/sign-in/corp/answer?")
    return back


def signed_in(client: TestClient, back: str) -> str:
    """Where the page goes on."""
    answer = client.get(back)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def is_signed_out(client: TestClient) -> bool:
    return client.get("/v1/whoami").status_code == 401


def test_a_person_comes_back_with_a_session_to_the_view_that_was_asked_for(
    client: TestClient, issuer: PageIssuer
) -> None:
    begun = client.get("/v1/sign-in/corp/page", params={"view": "jobs/job_01M7Y8NRHRW6ZK2C8GF7JR4CXR"})
    kept = begun.headers["set-cookie"]
    assert all(part in kept for part in ("HttpOnly", "SameSite=lax", "Path=/", "Max-Age=600"))
    assert begun.headers["cache-control"] == "no-store"
    back = client.get(at_the_issuer(begun.headers["location"]))
    assert back.headers["location"] == "/#/jobs/job_01M7Y8NRHRW6ZK2C8GF7JR4CXR"
    session, ended = back.headers.get_list("set-cookie")
    assert all(part in session for part in ("remora_session=", "HttpOnly", "SameSite=strict", "Path=/"))
    assert ended.startswith('remora_sign_in=""; ')
    assert client.get("/v1/whoami").json()["id"] == "user:corp/alice"
    # What the session writes still needs what only the page reads.
    assert client.delete("/v1/session").json()["code"] == "csrf_token_missing"


def test_a_copy_of_the_cookie_is_good_for_nothing_after_the_sign_out(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "REMEMBERED_S", 0.0)
    signed_in(client, at_the_issuer(begin(client)))
    copied, csrf = client.cookies["remora_session"], client.get("/v1/session").json()["csrf_token"]
    for _ in range(2):
        # A page that did not get the first answer asks once more.
        client.cookies.set("remora_session", copied)
        left = client.delete("/v1/session", headers={"X-CSRF-Token": csrf})
    assert (left.status_code, left.json()["code"]) == (401, "token_revoked")
    client.cookies.set("remora_session", copied)
    assert client.get("/v1/jobs").json()["code"] == "token_revoked"
    client.cookies.clear()
    as_header = client.get("/v1/jobs", headers={"Authorization": f"Bearer {copied}"})
    assert (as_header.status_code, as_header.json()["code"]) == (401, "token_revoked")


def test_who_has_signed_out_can_sign_in_again(client: TestClient) -> None:
    database = client.app.state.remora.database  # type: ignore[attr-defined]
    signed_in(client, at_the_issuer(begin(client)))
    database.transact(lambda connection: signed_out.put(connection, "an.other.token", 2000.0))
    database.transact(lambda connection: signed_out.put(connection, "an.other.token", 2000.0))
    assert not is_signed_out(client)
    assert database.query(lambda connection: signed_out.is_there(connection, "an.other.token"))
    database.transact(lambda connection: signed_out.forget(connection, 2000.0, 10))
    assert database.query(lambda connection: signed_out.is_there(connection, "an.other.token"))
    database.transact(lambda connection: signed_out.forget(connection, 2000.5, 10))
    assert not database.query(lambda connection: signed_out.is_there(connection, "an.other.token"))


def test_the_issuer_is_asked_for_a_code_with_proof_key_state_and_nonce(
    client: TestClient, issuer: PageIssuer
) -> None:
    asked = {name: values[0] for name, values in parse_qs(urlsplit(begin(client)).query).items()}
    again = {name: values[0] for name, values in parse_qs(urlsplit(begin(client)).query).items()}
    for name in ("state", "nonce", "code_challenge"):
        assert len(asked.pop(name)) == 43
        assert again.pop(name) not in asked.values()
    assert asked == again == {
        "response_type": "code",
        "client_id": "page",
        "redirect_uri": f"{BASE}/v1/sign-in/corp/answer",
        "scope": "openid profile",
        "code_challenge_method": "S256",
    }  # fmt: skip


@pytest.mark.parametrize(
    "view", ["//evil.example", "https://evil.example", "jobs/../../x", "jobs#x", "Jobs", "jobs/a b", ""]
)
def test_it_leads_back_to_no_place_but_a_view(client: TestClient, view: str) -> None:
    assert signed_in(client, at_the_issuer(begin(client, view))) == "/#/jobs"


def test_an_answer_of_another_browser_or_another_sign_in_gives_no_session(
    client: TestClient, issuer: PageIssuer
) -> None:
    # An attacker's own answer, which a victim's browser is made to open.
    attackers = at_the_issuer(begin(client))
    client.cookies.clear()
    assert signed_in(client, attackers) == "/#/sign-in/sign_in_expired"
    begin(client)
    assert signed_in(client, attackers) == "/#/sign-in/sign_in_expired", "of another sign-in"
    back = at_the_issuer(begin(client))
    client.cookies.clear()
    client.cookies.set("remora_sign_in", "bm8gc2lnbi1pbg")
    assert signed_in(client, back) == "/#/sign-in/sign_in_expired"
    assert is_signed_out(client)


def forged(state: str) -> str:
    """A cookie as the service writes it, but for who has signed it."""
    begun = code_flow.begin("corp", "jobs", time.time()).model_copy(update={"state": state})
    return code_flow.to_cookie(begun, b"of a stranger")


def test_forged_sign_ins_ask_nothing_of_the_issuer_and_leave_capacity_for_others(
    client: TestClient, issuer: PageIssuer
) -> None:
    back = at_the_issuer(begin(client))
    kept, asked, state = client.cookies["remora_sign_in"], dict(issuer.requests), "s" * 43
    client.cookies.clear()
    client.cookies.set("remora_sign_in", forged(state))
    for _ in range(100):
        answer = f"/v1/sign-in/corp/answer?state={state}&code=guessed"
        assert signed_in(client, answer) == "/#/sign-in/sign_in_expired"
    assert issuer.requests == asked
    client.cookies.clear()
    client.cookies.set("remora_sign_in", kept)
    assert signed_in(client, back) == "/#/jobs"


def test_codes_that_are_redeemed_are_limited_in_all(client: TestClient, issuer: PageIssuer) -> None:
    limited = replace(client.app.state.remora, redeem_rates=Rates(Rate(per_s=1e-3, burst=1.0)))  # type: ignore[attr-defined]
    client.app.state.remora = limited  # type: ignore[attr-defined]
    assert signed_in(client, at_the_issuer(begin(client))) == "/#/jobs"
    asked, refused = issuer.requests["token"], client.get(at_the_issuer(begin(client)))
    assert (refused.status_code, issuer.requests["token"]) == (429, asked)
    assert "remora_sign_in" in client.cookies, "the page can be loaded again"


def test_a_sign_in_is_taken_until_its_time_is_over_and_by_the_keys_in_force() -> None:
    begun = code_flow.begin("corp", "jobs", 1000.0)
    kept = code_flow.to_cookie(begun, b"old")
    for keys, now, expected in (
        ((b"new", b"old"), 1000.0 + code_flow.LIFETIME_S - 1, begun),
        ((b"new", b"old"), 1000.0 + code_flow.LIFETIME_S, None),
        ((b"new",), 1000.0, None),
        ((), 1000.0, None),
    ):
        assert code_flow.from_cookie(kept, keys, now) == expected
    assert code_flow.from_cookie(f"x{kept}", (b"old",), 1000.0) is None


def test_a_key_file_that_others_may_read_is_said_to_the_operator(
    client: TestClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin(client)
    (tmp_path / "home" / "secrets.key").chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert begin(client) == "/#/sign-in/sign_in_unavailable"
    assert "chmod 600" in caplog.text


def test_an_answer_is_good_once(client: TestClient, issuer: PageIssuer) -> None:
    back = at_the_issuer(begin(client))
    kept = client.cookies["remora_sign_in"]
    assert signed_in(client, back) == "/#/jobs"
    client.cookies.clear()
    assert signed_in(client, back) == "/#/sign-in/sign_in_expired"
    client.cookies.set("remora_sign_in", kept)
    assert signed_in(client, back) == "/#/sign-in/sign_in_refused", "the issuer takes a code once"
    assert is_signed_out(client)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nonce": "of-another-sign-in"}, "belongs to another sign-in"),
        ({"nonce": None}, "belongs to another sign-in"),
        ({"aud": "another"}, "is for another audience"),
        ({"azp": "another"}, "issued to another application"),
        ({"exp": 1000, "iat": 900}, "has expired"),
        ({"iss": "https://elsewhere.example"}, "is of another issuer"),
    ],
)
def test_an_id_token_that_does_not_prove_this_sign_in_gives_no_session(
    client: TestClient, issuer: PageIssuer, caplog: pytest.LogCaptureFixture, wrong: dict[str, Any], said: str
) -> None:
    issuer.wrong = wrong
    with caplog.at_level(logging.WARNING):
        assert signed_in(client, at_the_issuer(begin(client))) == "/#/sign-in/sign_in_refused"
    assert said in caplog.text
    assert is_signed_out(client)


def test_tokens_of_an_unknown_key_give_no_session(
    client: TestClient, issuer: PageIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stolen, made = SigningKey(), issuer.token
    monkeypatch.setattr(issuer, "token", lambda who, groups=(), **claims: made(who, groups, stolen, **claims))
    assert signed_in(client, at_the_issuer(begin(client))) == "/#/sign-in/sign_in_refused"
    assert is_signed_out(client)


def test_an_answer_of_another_issuer_or_a_refusal_is_no_session(
    client: TestClient, issuer: PageIssuer
) -> None:
    back = at_the_issuer(begin(client))
    mixed = f"{back.partition('&iss=')[0]}&iss=https%3A%2F%2Felsewhere.example"
    assert signed_in(client, mixed) == "/#/sign-in/sign_in_refused"
    issuer.person = None
    assert signed_in(client, at_the_issuer(begin(client))) == "/#/sign-in/sign_in_refused"
    assert is_signed_out(client)


def test_a_token_that_no_cookie_holds_is_said_to_be_too_long(client: TestClient, issuer: PageIssuer) -> None:
    issuer.groups = tuple(f"group-{number:04d}" for number in range(400))
    assert signed_in(client, at_the_issuer(begin(client))) == "/#/sign-in/token_too_long"
    assert is_signed_out(client)


def test_only_issuers_with_pages_are_asked_and_each_address_not_without_end(client: TestClient) -> None:
    for name in ("ci", "none", "corp%2f.."):
        answer = client.get(f"/v1/sign-in/{name}/page")
        assert answer.status_code == 404, name
    answers = [client.get("/v1/sign-in/corp/page") for _ in range(100)]
    assert {one.status_code for one in answers} == {303, 429}
    assert answers[-1].headers["content-type"].startswith("text/html"), "a person reads it"
    assert f"again in {answers[-1].headers['retry-after']} s" in answers[-1].text
    shown = {one["name"]: one["pages"] for one in client.get("/v1/sign-in").json()["issuers"]}
    assert shown == {"corp": True}, "how to sign in is still answered"


def test_an_issuer_that_is_away_is_said_to_be_and_asked_once(
    client: TestClient, issuer: PageIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer, "url", "https://moved.example")
    for _ in range(3):
        assert begin(client) == "/#/sign-in/issuer_unreachable"
    assert issuer.requests["configuration"] == 1


class TestWithASecret:
    @pytest.fixture
    def trusted(self, issuer: PageIssuer, tmp_path: Path) -> dict[str, Any]:
        issuer.client_secret = "s3cret/+ of:the application"
        (tmp_path / "secret").write_text(f"{issuer.client_secret}\n")
        named = {"issuer": issuer.url, "audience": "page", "client_id": "page", "pages": True}
        return named | {"client_secret_file": str(tmp_path / "secret"), "accepts": "id_token"}

    def test_the_service_proves_itself_by_its_secret_and_takes_the_id_token(
        self, client: TestClient, issuer: PageIssuer
    ) -> None:
        assert signed_in(client, at_the_issuer(begin(client))) == "/#/jobs"
        assert client.get("/v1/whoami").json()["id"] == "user:corp/alice"

    def test_a_secret_that_is_wrong_or_missing_is_no_session_and_not_shown(
        self, client: TestClient, issuer: PageIssuer, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            (tmp_path / "secret").write_text("another")
            assert signed_in(client, at_the_issuer(begin(client))) == "/#/sign-in/sign_in_refused"
            (tmp_path / "secret").unlink()
            assert signed_in(client, at_the_issuer(begin(client))) == "/#/sign-in/issuer_unreachable"
        assert "invalid_client" in caplog.text
        assert "another'" not in caplog.text
        assert is_signed_out(client)


def test_over_https_the_cookies_are_of_this_host_alone(tmp_path: Path, trusted: dict[str, Any]) -> None:
    settings = Settings(
        home=tmp_path / "home",
        authentication="required",
        openid={"corp": IssuerSettings.model_validate(trusted)},
    )
    with TestClient(
        create_app(settings), base_url="https://127.0.0.1:7265", follow_redirects=False
    ) as client:
        begun = client.get("/v1/sign-in/corp/page").headers["set-cookie"]
    assert begun.startswith("__Host-remora_sign_in=")
    assert all(part in begun for part in ("Secure", "Path=/", "HttpOnly", "SameSite=lax"))
    assert "Domain" not in begun


@pytest.mark.parametrize(
    "given", [{"pages": True, "client_id": None}, {"client_id": "page", "client_secret_file": "secret"}]
)
def test_settings_that_fit_no_sign_in_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"client_id|needs `pages`"):
        IssuerSettings.model_validate({"issuer": "https://a.example", "audience": "remora", **given})
