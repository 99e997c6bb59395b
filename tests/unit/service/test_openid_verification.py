"""Which tokens prove an identity, and what is said of the others."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.openid_issuer import Issuer as LoopbackIssuer
from examples.openid_issuer import SigningKey
from service.openid.issuers import Issuer
from service.openid.verification import (
    LEEWAY_S,
    MAX_TOKEN_CHARACTERS,
    TokenRefusedError,
    UnknownKeyError,
    issuer_of,
    verify,
)

URL = "https://login.example/tenant/v2.0"
NOW = 1_790_000_000.0
SIGNER = LoopbackIssuer(URL, clock=lambda: NOW)
ISSUER = Issuer(issuer=URL, audience="remora")
KEYS = {SIGNER.keys[0].kid: jwt.PyJWK(SIGNER.keys[0].public)}


def refused(token: str, issuer: Issuer = ISSUER, now: float = NOW) -> str:
    with pytest.raises(TokenRefusedError) as error:
        verify(token, issuer, KEYS, now)
    return str(error.value)


def test_a_good_token_proves_its_subject_with_name_and_groups() -> None:
    identity = verify(SIGNER.token("alice", ("ml", "ops")), ISSUER, KEYS, NOW)
    assert (identity.subject, identity.name) == ("alice", "alice@example.com")
    assert identity.groups == {"ml", "ops"}
    assert identity.expires_at == pytest.approx(NOW + 3600, abs=60)


def test_the_claims_are_those_that_the_operator_names() -> None:
    issuer = Issuer(
        issuer=URL, audience="remora", subject_claim="oid", name_claim="email", groups_claim="roles"
    )
    token = SIGNER.token("pairwise", oid="0f3a", email="a@example.com", roles=["gpu"])
    identity = verify(token, issuer, KEYS, NOW)
    assert (identity.subject, identity.name, identity.groups) == ("0f3a", "a@example.com", {"gpu"})


@pytest.mark.parametrize(
    ("claims", "sentence"),
    [
        ({"aud": "another"}, "the token is for another audience"),
        ({"aud": None}, "the token has no claim 'aud'"),
        ({"iss": "https://login.example/other"}, "the token is of another issuer"),
        ({"exp": None}, "the token has no claim 'exp'"),
        ({"exp": int(NOW) - LEEWAY_S - 5}, "the token has expired"),
        ({"exp": "soon"}, "the claim 'exp' of the token is no time"),
        ({"exp": int(NOW) + 10**6}, "the token lives longer than 24 hours"),
        ({"iat": int(NOW) + LEEWAY_S + 30}, "the token was issued in the future; compare the clocks"),
        ({"nbf": int(NOW) + LEEWAY_S + 30}, "the token is not valid yet"),
        ({"sub": None}, "the token has no claim 'sub', which names its bearer"),
        ({"sub": "a\nb"}, "the token has no claim 'sub', which names its bearer"),
        ({"groups": "ml"}, "the claim 'groups' is no list of at most 1000 groups"),
        ({"_claim_names": {"groups": "src1"}}, "the bearer is in more groups than a token holds"),
    ],
)
def test_a_claim_that_is_wrong_is_named(claims: dict[str, Any], sentence: str) -> None:
    assert refused(SIGNER.token("alice", **claims)).startswith(sentence)


def test_clocks_may_differ_by_a_minute() -> None:
    token = SIGNER.token("alice", exp=int(NOW) - 30, iat=int(NOW) - 300)
    assert verify(token, ISSUER, KEYS, NOW).subject == "alice"


def test_a_token_of_another_tenant_of_the_same_issuer_is_refused() -> None:
    issuer = Issuer(issuer=URL, audience="remora", tenant="t-1")
    assert verify(SIGNER.token("alice", tid="t-1"), issuer, KEYS, NOW).subject == "alice"
    assert refused(SIGNER.token("alice", tid="t-2"), issuer) == "the token is of another tenant"
    assert refused(SIGNER.token("alice"), issuer) == "the token is of another tenant"


def test_a_key_that_the_issuer_does_not_publish_is_asked_for_again() -> None:
    with pytest.raises(UnknownKeyError):
        verify(SIGNER.token("alice", key=SigningKey()), ISSUER, KEYS, NOW)


def test_a_stranger_who_names_the_issuers_key_is_refused() -> None:
    forged = SigningKey(kid=SIGNER.keys[0].kid)
    assert refused(SIGNER.token("alice", key=forged)) == "the signature of the token is wrong"


def test_no_signature_and_a_shared_secret_are_refused() -> None:
    header, claims, _ = SIGNER.token("alice").split(".")
    unsigned = jwt.encode({"iss": URL}, None, algorithm="none", headers={"kid": SIGNER.keys[0].kid})
    assert refused(unsigned).startswith("the token is not signed by one of")
    # The public key taken for a shared secret, which is the oldest attack on these tokens.
    shared = encoded({"alg": "HS256", "kid": SIGNER.keys[0].kid}) + "." + claims + "." + "AAAA"
    assert refused(shared).startswith("the token is not signed by one of")
    assert refused(f"{header}.{claims}.") == "the signature of the token is wrong"


def test_an_algorithm_other_than_that_of_the_key_is_refused() -> None:
    token = jwt.encode(
        {"iss": URL}, ec.generate_private_key(ec.SECP256R1()), "ES256", {"kid": SIGNER.keys[0].kid}
    )
    assert refused(token) == "the token is signed by another algorithm than its key is for"


@given(st.integers(0, 2**31), st.text(alphabet="ABCDEFabcdef0123456789-_.", min_size=1, max_size=1))
@settings(deadline=None)
def test_a_token_with_any_other_character_is_refused(place: int, character: str) -> None:
    token = SIGNER.token("alice")
    place %= len(token)
    changed = token[:place] + character + token[place + 1 :]
    if same_bytes(changed, token):
        return
    with pytest.raises(TokenRefusedError):
        verify(changed, ISSUER, KEYS, NOW)


@given(
    st.text(max_size=400) | st.binary(max_size=200).map(lambda data: f"{encoded(data.hex())}.{encoded([])}.x")
)
def test_what_is_no_token_is_refused_with_a_sentence(text: str) -> None:
    for read in (issuer_of, lambda token: verify(token, ISSUER, KEYS, NOW)):
        with pytest.raises(TokenRefusedError):
            read(text)


def test_a_token_that_is_too_long_is_not_parsed() -> None:
    with pytest.raises(TokenRefusedError, match=str(MAX_TOKEN_CHARACTERS)):
        issuer_of("e" * (MAX_TOKEN_CHARACTERS + 1))


def test_deeply_nested_claims_are_refused() -> None:
    nested = "[" * 5000 + "]" * 5000
    text = ".".join(
        base64.urlsafe_b64encode(part.encode()).rstrip(b"=").decode() for part in ('{"alg":"RS256"}', nested)
    )
    with pytest.raises(TokenRefusedError):
        issuer_of(f"{text}.x")


@pytest.mark.parametrize(
    "url", ["http://login.example", "ftp://x", "https://", "https://u@login.example", "x"]
)
def test_an_issuer_is_reached_over_https_or_on_this_machine(url: str) -> None:
    with pytest.raises(ValueError, match=r"issuer|https"):
        Issuer(issuer=url, audience="remora")


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def same_bytes(one: str, other: str) -> bool:
    """Some of the last bits of a part mean nothing."""
    try:
        return [jwt.utils.base64url_decode(part) for part in one.split(".")] == [
            jwt.utils.base64url_decode(part) for part in other.split(".")
        ]
    except ValueError:
        return False
