"""Every claim of the threat model names tests that are there."""

from __future__ import annotations

import re

from tests.architecture.repository import ROOT, pages

PAGE = "docs/security.md"


def claims() -> list[str]:
    """What stands between the table of who is who and what is not kept: list entries, and paragraphs with tests."""
    text = pages()[PAGE].partition("## The API")[2].partition("## What is not kept")[0]
    entries = re.findall(r"^- .+?(?=^- |^## |\Z)", text, re.MULTILINE | re.DOTALL)
    (beyond,) = re.findall(r"## Beyond this machine\n\n(.+?)\n\n## ", text, re.DOTALL)
    return [*entries, beyond]


def test_every_claim_names_the_tests_that_attack_it() -> None:
    assert len(claims()) > 10
    for claim in claims():
        named = re.findall(r"`(tests/[\w/.]+)`", claim.partition("Tests:")[2])
        assert named, claim
        assert [path for path in named if not (ROOT / path).is_file()] == [], claim
