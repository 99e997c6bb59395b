"""Where alerts may be sent to: what users name must not reach the service's own network."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from remora.alert_kinds import Channel
from service.alerts import public_hosts
from service.alerts.destinations import AddressRefused, check_url, is_allowed, new_destination
from service.alerts.public_hosts import addresses_of, is_public, post
from tests.contracts.service.alert_receivers import receiver


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "168.63.129.16.evil", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b:1::a00:1",
        "2002:7f00:1::", "2001:0:1::1", "", "localhost", "1.1.1.1.1",
    ],
)  # fmt: skip
def test_no_address_of_an_own_network_is_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/x", "https://localhost/x", "https://[::1]/x", "https://2130706433/", "https://0x7f.1/",
        "https://127.1/", "https://[::ffff:127.0.0.1]/", "https://169.254.169.254/latest/meta-data", "https://0/",
        "https://127.0.0.1.:443/",
    ],
)  # fmt: skip
def test_what_resolves_to_this_machine_is_refused_when_it_is_sent(url: str) -> None:
    try:
        found = asyncio.run(addresses_of(url, ()))
    except (AddressRefused, OSError):
        return
    raise AssertionError(f"{url} would be sent to {found}")


@pytest.mark.parametrize(
    "url",
    [
        "", "example.com", "ftp://example.com/", "file:///etc/passwd", "http://example.com/", "https:///x",
        "https://", "https://user@example.com/", "https://user:pass@example.com/", "https://example.com/#x",
        "https://example.com:0/", "https://example.com:99999/", "https://exa mple.com/", "https://example.com/\r\nX: y",
        "https://example.com/\x00", "https://éxample.com/", "https://example.com\\@127.0.0.1/",
        "https://[::1/", "gopher://example.com/", "https://example.com/" + "x" * 2000,
    ],
)  # fmt: skip
def test_what_is_no_url_over_tls_is_refused_when_an_alert_is_created(url: str) -> None:
    with pytest.raises(AddressRefused):
        new_destination(Channel.WEBHOOK, url, ())


def test_operators_allow_hosts_by_name_and_port() -> None:
    allowed = {"hooks.corp", "127.0.0.1:8080", "::1"}
    for url in ("http://hooks.corp/x", "https://HOOKS.corp:99/x", "http://127.0.0.1:8080/"):
        assert is_allowed(url, allowed)
        check_url(url, allowed)
    for url in (
        "http://127.0.0.1/",
        "http://127.0.0.1:8081/",
        "http://hooks.corp.evil/",
        "http://evil-hooks.corp/",
    ):
        assert not is_allowed(url, allowed)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "ann",
        "@x",
        "ann@",
        "a@b\nBcc: c@d",
        "a@b,c@d",
        "a b@c",
        "<a@b>",
        "a@b c",
        "a..b@c",
        "a@b..c",
        "ann@x" * 60,
    ],
)
def test_what_is_no_mail_address_is_refused(address: str) -> None:
    with pytest.raises(AddressRefused):
        new_destination(Channel.EMAIL, address, ())


def test_a_destination_shows_nothing_of_what_may_be_secret() -> None:
    slack = new_destination(
        Channel.SLACK, "https://hooks.slack.com/services/T0/B0/sssssecret?q=sssssecret", ()
    )
    assert slack.shown == "https://hooks.slack.com"
    assert "sssssecret" not in repr(slack)
    hook = new_destination(Channel.WEBHOOK, "https://example.com:8443/p", ())
    assert hook.shown == "https://example.com:8443"
    assert hook.secret is not None
    assert hook.secret not in repr(hook)
    assert len(hook.secret) == len("whsec_") + 44
    assert new_destination(Channel.WEBHOOK, "https://example.com/", ()).secret != hook.secret


def test_a_name_is_sent_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is asked for once: a server of names that then says something else is not asked again."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def counted(host: str, *rest: object, **more: object) -> object:
        asked.append(str(host))
        return real(host, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", counted)
    with receiver() as made:
        port = made.url.rpartition(":")[2]
        status = asyncio.run(post(f"http://localhost:{port}/x", {}, b"{}", {"localhost"}))
        assert status == 204
        assert [host for host in asked if host == "localhost"] == ["localhost"]
        assert made.received[0].headers["host"] == f"localhost:{port}"


@pytest.fixture
def trickle() -> Iterator[str]:
    """A server that sends one byte of a header after the other, and never an end of it."""
    server = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not over.wait(0.05):
                    connection.sendall(b"x")
            except OSError:
                pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}/"
    over.set()
    server.close()
    thread.join()


def test_a_receiver_that_never_ends_its_answer_is_left(trickle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole try has a limit, and not only each byte of the answer."""
    monkeypatch.setattr(public_hosts, "TIMEOUT_S", 0.5)
    with pytest.raises(TimeoutError):
        asyncio.run(post(trickle, {}, b"{}", {"127.0.0.1"}))


def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as made, receiver() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        assert asyncio.run(post(f"{made.url}/x", {}, b"{}", {"127.0.0.1"})) == 204
        assert proxy.received == []
