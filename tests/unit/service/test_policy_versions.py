"""Versions of the policies follow one another: each says what it is based on, and makes one event."""

from __future__ import annotations

from typing import Any

import pytest

from service.queue.policy_versions import PolicyRequest, PolicyRow, PolicyVersionConflict, next_version

NEWEST = PolicyRow(
    version=7, based_on=6, restores=None, created_at=1.0, author="", comment="", digest="a", document="A"
)


def policy_request(**fields: Any) -> PolicyRequest:
    """A change that was made to the newest version."""
    return PolicyRequest(**{"document": "B", "digest": "b", "based_on": 7, **fields})


def test_a_change_becomes_the_next_version_and_is_recorded() -> None:
    decision = next_version(NEWEST, policy_request(author="ada", comment="for the night"), 9.0)
    row = decision.row
    assert (row.version, row.based_on, row.created_at, row.document, row.digest) == (8, 7, 9.0, "B", "b")
    assert (row.author, row.comment, row.restores) == ("ada", "for the night", None)
    assert decision.event is not None
    assert (decision.event.at, decision.event.kind) == (9.0, "policies.applied")
    assert decision.event.message == "version 8 of the policies was applied by ada: for the night"
    assert decision.event.data == {"version": 8, "based_on": 7, "digest": "b"}


def test_a_version_that_is_restored_is_recorded_as_such() -> None:
    decision = next_version(NEWEST, policy_request(restores=3), 9.0)
    assert decision.row.restores == 3
    assert decision.event is not None
    assert decision.event.kind == "policies.rolled_back"
    assert decision.event.message == "the policies were rolled back to those of version 3"
    assert decision.event.data == {"version": 8, "restores": 3, "digest": "b"}


def test_what_is_in_force_already_makes_no_version_whatever_its_author_had_seen() -> None:
    decision = next_version(NEWEST, policy_request(digest="a", based_on=2), 9.0)
    assert (decision.row, decision.event) == (NEWEST, None)


@pytest.mark.parametrize("seen", [6, 8])
def test_a_change_to_another_version_than_the_newest_is_refused(seen: int) -> None:
    with pytest.raises(
        PolicyVersionConflict, match=f"at version 7, and this change was made to version {seen}"
    ):
        next_version(NEWEST, policy_request(based_on=seen), 9.0)
