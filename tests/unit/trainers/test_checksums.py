"""A document with a checksum is read as it was written, or refused."""

from __future__ import annotations

import json

import pytest

from trainers.checksums import checked, with_checksum

FIELDS = {"version": 2, "files": [{"name": "ä.pt", "size_bytes": 3}], "score": 0.1, "at": 1.7e9, "none": None}


def test_a_document_is_read_back_as_it_was_written() -> None:
    assert checked(with_checksum(FIELDS)) == FIELDS


def test_every_single_bit_that_flips_is_seen() -> None:
    content = with_checksum(FIELDS)

    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(ValueError, match=r"."):
            checked(bytes(flipped))


def test_every_cut_is_seen() -> None:
    content = with_checksum(FIELDS)

    for length in range(len(content)):
        with pytest.raises(ValueError, match=r"."):
            checked(content[:length])


def test_the_same_fields_in_another_form_are_another_document() -> None:
    content = json.dumps(json.loads(with_checksum(FIELDS))).encode()

    with pytest.raises(ValueError, match="does not fit its checksum"):
        checked(content)


def test_what_has_no_checksum_is_refused() -> None:
    for content in (b"{}", b"[]", b"1", json.dumps(FIELDS).encode()):
        with pytest.raises(ValueError, match="has no checksum"):
            checked(content)
