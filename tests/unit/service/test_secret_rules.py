"""What a project's secret may be, and its encryption, which is bound to one place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.queue.secrets import (
    MAX_VALUE_BYTES,
    SHORTEST_LINE,
    SecretPlace,
    SecretRow,
    SecretSource,
    refuses_key_vault,
    refuses_name,
    refuses_value,
)
from service.secrets.encryption import CannotOpen, Key, KeyUnknown, Sealed, seal, unseal
from trainers.supervisor.redaction import SHORTEST

PLACE = SecretPlace("vision", "TOKEN", 3, SecretSource.VALUE)
KEY = Key("key_1", bytes(range(32)))


@pytest.mark.parametrize("value", ["x" * SHORTEST_LINE, "a\nb\n12345678\n", "ä" * 4, "x" * MAX_VALUE_BYTES])
def test_values(value: str) -> None:
    assert refuses_value(value) is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "the value has no line of 8 bytes"),
        ("1234567", "the value has no line of 8 bytes"),
        ("1234567\r1234567\n", "the value has no line of 8 bytes"),
        ("ä" * (MAX_VALUE_BYTES // 2) + "x", f"the value has {MAX_VALUE_BYTES + 1} bytes"),
        ("12345678\0", "a null character cannot be passed to a process"),
        ("12345678\udce4", "half a character"),
    ],
)
def test_no_values(value: str, said: str) -> None:
    assert said in str(refuses_value(value))
    assert "12345" not in str(refuses_value(value))


def test_what_is_stored_is_what_can_be_redacted() -> None:
    assert SHORTEST_LINE == SHORTEST


def test_a_name_is_one_that_jobs_can_use() -> None:
    assert refuses_name("HF_TOKEN") is None
    assert "is no name of a secret; use 1 to 63 letters" in str(refuses_name("hf-token"))


@pytest.mark.parametrize(
    ("url", "anywhere", "emulated"),
    [
        ("https://jobs.vault.azure.net/secrets/hf-token", True, True),
        (f"https://jobs.vault.azure.net/secrets/hf-token/{'0' * 32}", True, True),
        ("https://jobs.vault.azure.cn/secrets/x", True, True),
        ("http://127.0.0.1:8080/secrets/x", False, True),
        ("http://127.0.0.1:8080/secrets/x/../y", False, False),
        ("http://jobs.vault.azure.net/secrets/x", False, False),
        ("https://jobs.vault.azure.net.example.com/secrets/x", False, False),
        ("https://user@jobs.vault.azure.net/secrets/x", False, False),
        ("https://jobs.vault.azure.net/keys/x", False, False),
        ("https://jobs.vault.azure.net/secrets/x?api-version=1", False, False),
        ("https://169.254.169.254/secrets/x", False, False),
    ],
)
def test_a_token_goes_to_a_key_vault_alone(url: str, anywhere: bool, emulated: bool) -> None:
    assert (refuses_key_vault(url, is_emulated=False) is None) is anywhere
    assert (refuses_key_vault(url, is_emulated=True) is None) is emulated


def test_a_content_is_opened_with_its_key_at_its_place_alone() -> None:
    sealed = seal(KEY, PLACE, b"content")
    assert unseal([Key("key_2", bytes(32)), KEY], PLACE, sealed) == b"content"
    with pytest.raises(KeyUnknown, match="is encrypted with the key key_1, which the key file does not have"):
        unseal([], PLACE, sealed)
    for other in (
        replace(PLACE, project="speech"),
        replace(PLACE, name="OTHER"),
        replace(PLACE, version=4),
        replace(PLACE, source=SecretSource.KEY_VAULT),
    ):
        with pytest.raises(
            CannotOpen, match="its row was changed, or moved from another place; set it again"
        ):
            unseal([KEY], other, sealed)
    for damaged in (b"", sealed.ciphertext[:-1], sealed.ciphertext[:-1] + b"x"):
        with pytest.raises(CannotOpen):
            unseal([KEY], PLACE, Sealed(KEY.id, damaged))


def test_nothing_shows_a_key_or_a_content() -> None:
    sealed = seal(KEY, PLACE, b"content")
    row = SecretRow(
        project="vision", name="TOKEN", version=3, source=SecretSource.VALUE, key_id=KEY.id,
        ciphertext=sealed.ciphertext, created_at=1.0, updated_at=2.0,
    )  # fmt: skip
    assert row.place == PLACE
    assert sealed.ciphertext != seal(KEY, PLACE, b"content").ciphertext, (
        "each time with another random number"
    )
    assert (b"content" in sealed.ciphertext, repr(KEY), repr(sealed)) == (
        False,
        "Key(id='key_1')",
        "Sealed(key_id='key_1')",
    )
