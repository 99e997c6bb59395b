"""Where a client finds its token, and where that never stands."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import httpx2
import pytest

import remora
from remora.client.credentials import BearerToken, credentials_path, find_token, store_token, stored_tokens
from remora.errors import ConfigurationError
from remora.views import SignInWays
from tests.command_line import Cli

URL = "http://127.0.0.1:7265"
TOKEN = "rmr_tok_01M8ASHYGA38JVWW0THBS0ZS9C_" + "s" * 43


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No token and no service of the user who runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("REMORA_HOME", str(tmp_path / "home"))
    for name in ("REMORA_TOKEN", "REMORA_SERVER"):
        monkeypatch.delenv(name, raising=False)


def test_the_environment_goes_before_what_is_stored_and_that_before_the_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert find_token({}, URL, home) is None
    (home / "operator.token").write_text("of-the-home\n")
    assert find_token({}, URL, home) is None, "another service may be at that address"
    (home / "api.url").write_text(f"{URL}\n")
    assert find_token({}, URL, home) == "of-the-home"
    assert find_token({}, "http://127.0.0.1:7266", home) is None
    store_token(URL, "stored")
    assert find_token({}, URL, home) == "stored"
    assert find_token({"REMORA_TOKEN": " given "}, URL, home) == "given"


def test_only_this_user_reads_what_is_stored(tmp_path: Path) -> None:
    store_token(URL, TOKEN)
    store_token("https://other.example", "other")
    assert stat.S_IMODE(credentials_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(credentials_path().parent.stat().st_mode) == 0o700
    store_token(URL, None)
    assert stored_tokens() == {"https://other.example": "other"}
    credentials_path().write_text("[")
    with pytest.raises(ConfigurationError, match="cannot be understood"):
        find_token({}, URL, tmp_path)


@pytest.mark.parametrize("text", ["two words", "caf\u00e9", "a\nb", "x" * 20_000])
def test_what_is_no_token_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught, remora.Client(URL, token=text):
        pass
    assert text not in str(caught.value)


def test_an_empty_text_sends_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMORA_TOKEN", TOKEN)
    with remora.Client(URL, token="") as client:
        assert client._http.auth is None


def test_it_is_sent_to_this_machine_or_over_tls_only() -> None:
    with pytest.raises(ConfigurationError, match="another machine without TLS") as caught:
        remora.Client("http://gpu.example", token=TOKEN)
    assert TOKEN not in str(caught.value)
    for url in ("https://gpu.example", "http://localhost:1", "http://[::1]:1"):
        remora.Client(url, token=TOKEN).close()


def test_it_stands_in_no_text_of_the_client_and_in_each_request() -> None:
    sent: list[str | None] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers.get("authorization"))
        return httpx2.Response(401, json={})

    tokens = iter(["first", "second"])
    with remora.Client(URL, token=lambda: next(tokens), retry_s=0) as client:
        client._http = httpx2.Client(**{**client._http_options(), "transport": httpx2.MockTransport(answer)})
        assert "first" not in repr(vars(client))
        for _ in range(2):
            with pytest.raises(remora.Unauthenticated) as caught:
                client.whoami()
            assert "first" not in str(caught.value)
    assert sent == ["Bearer first", "Bearer second"]
    assert TOKEN not in repr(BearerToken(TOKEN))


class TestCommands:
    @pytest.fixture
    def cli(self, capsys: pytest.CaptureFixture[str]) -> Cli:
        return Cli(capsys)

    def test_a_token_is_no_argument(self, cli: Cli) -> None:
        assert cli("login", "--token", TOKEN) == 2
        assert TOKEN not in cli.err
        assert "--token -" in cli.err

    def test_without_a_terminal_it_has_to_be_piped_in(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
        monkeypatch.setattr(remora.Client, "sign_in_ways", lambda _: SignInWays(is_required=True))
        assert cli("login") == 2
        assert "--token -" in cli.err

    def test_logging_out_forgets_it(self, cli: Cli) -> None:
        store_token(URL, TOKEN)
        assert cli("logout", "--server", URL) == 0
        assert json.loads(credentials_path().read_text()) == {}

    @pytest.mark.parametrize(
        "words",
        [
            ("tokens", "create", "n", "--role", "boss", "--project", "red"),
            ("tokens", "create", "n", "--role", "viewer"),
            ("tokens", "create", "n", "--role", "operator", "--project", "red"),
            ("grants", "add", "user:ada", "--role", "admin"),
        ],
    )
    def test_roles_are_checked_before_anything_is_sent(self, cli: Cli, words: tuple[str, ...]) -> None:
        assert cli(*words) == 2
        assert "project" in cli.err or "expected" in cli.err
