"""Keys of an issuer that really answers: fetched once, fetched again when they change, and used while it is silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import httpx2
import pytest

from examples.openid_issuer import Issuer as LoopbackIssuer
from examples.openid_issuer import SigningKey, serve_issuer
from service.openid import keys
from service.openid.bearers import Bearers
from service.openid.issuers import Issuer
from service.openid.keys import IssuerUnreachableError, KeyCache
from service.openid.verification import TokenRefusedError, UnknownKeyError

T = TypeVar("T")


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Service:
    """Bearers that trust one issuer, by the name `corp`."""

    issuer: LoopbackIssuer
    clock: Clock = field(default_factory=Clock)

    def run(self, work: Callable[[Bearers], Awaitable[T]]) -> T:
        async def within() -> T:
            async with httpx2.AsyncClient(trust_env=False) as client:
                issuers = {"corp": Issuer(issuer=self.issuer.url, audience="remora")}
                return await work(Bearers(issuers, KeyCache(client, self.clock), time.time))

        return asyncio.run(within())


def test_a_bearer_is_named_after_his_issuer() -> None:
    with serve_issuer() as issuer:
        bearer = Service(issuer).run(lambda bearers: bearers.bearer_of(issuer.token("alice", ("ml",))))
    assert (bearer.user, bearer.groups) == ("user:corp/alice", {"group:corp/ml"})


def test_many_tokens_at_once_fetch_the_keys_once() -> None:
    with serve_issuer() as issuer:
        tokens = [issuer.token(f"user-{number}") for number in range(50)]

        async def all_at_once(bearers: Bearers) -> list[str]:
            return [one.user for one in await asyncio.gather(*map(bearers.bearer_of, tokens))]

        assert len(set(Service(issuer).run(all_at_once))) == 50
        assert issuer.requests == {"configuration": 1, "keys": 1}


def test_a_new_key_is_fetched_and_the_withdrawn_one_is_refused() -> None:
    with serve_issuer() as issuer:
        service = Service(issuer)

        async def rotated(bearers: Bearers) -> str:
            old = issuer.token("alice")
            await bearers.bearer_of(old)
            issuer.rotate()
            service.clock.now += keys.RETRY_S
            bearer = await bearers.bearer_of(issuer.token("bob"))
            with pytest.raises(TokenRefusedError, match="does not publish"):
                await bearers.bearer_of(old)
            return bearer.user

        assert service.run(rotated) == "user:corp/bob"


def test_tokens_with_unknown_keys_do_not_make_the_service_ask_without_end() -> None:
    with serve_issuer() as issuer:

        async def attacked(bearers: Bearers) -> None:
            await bearers.bearer_of(issuer.token("alice"))
            for _ in range(20):
                with pytest.raises(UnknownKeyError):
                    await bearers.bearer_of(issuer.token("mallory", key=SigningKey(private=FORGED.private)))

        Service(issuer).run(attacked)
        assert issuer.requests["keys"] == 1


def test_keys_are_used_for_a_day_while_the_issuer_is_silent() -> None:
    with serve_issuer() as issuer:
        service = Service(issuer)
        token = issuer.token("alice")

        async def silent(bearers: Bearers) -> None:
            await bearers.bearer_of(token)
            issuer.url = "http://127.0.0.1:1"  # it now says that it is another one
            service.clock.now += keys.REFRESH_S
            assert (await bearers.bearer_of(token)).user == "user:corp/alice"
            service.clock.now += keys.STALE_S
            with pytest.raises(IssuerUnreachableError, match="configuration is that of another issuer"):
                await bearers.bearer_of(token)

        service.run(silent)


def test_an_issuer_that_is_not_there_is_named() -> None:
    issuer = LoopbackIssuer("http://127.0.0.1:1")
    with pytest.raises(IssuerUnreachableError, match=r"http://127\.0\.0\.1:1 gives no keys"):
        Service(issuer).run(lambda bearers: bearers.bearer_of(issuer.token("alice")))


def test_a_token_of_an_unknown_issuer_costs_no_request() -> None:
    with serve_issuer() as issuer:
        stranger = LoopbackIssuer("https://elsewhere.example")
        with pytest.raises(TokenRefusedError, match="does not trust"):
            Service(issuer).run(lambda bearers: bearers.bearer_of(stranger.token("alice")))
        assert issuer.requests == {}


FORGED = SigningKey()
