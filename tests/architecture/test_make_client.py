"""The blocking client is what `make client` makes of the asynchronous one."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy import make_client
from tests.architecture.repository import texts

SOURCE = texts()["remora/client/asynchronous.py"]


def test_the_blocking_client_is_the_one_that_is_generated() -> None:
    assert make_client.main(["--check"]) is None
    assert make_client.blocking(SOURCE) == texts()["remora/client/blocking.py"]


def test_make_check_looks_whether_it_is() -> None:
    check = texts()["Makefile"].partition("\ncheck:")[2].partition("\n\n")[0]
    assert "-m deploy.make_client --check" in check


def test_a_client_that_was_changed_by_hand_fails_the_check_until_it_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "client.py"
    target.write_text(texts()["remora/client/blocking.py"].replace("Jobs, newest first.", "Jobs."))
    monkeypatch.setattr(make_client, "TARGET", target)
    assert make_client.main(["--check"]) == "client.py is not what asynchronous.py says: make client"
    assert make_client.main([]) is None
    assert make_client.main(["--check"]) is None


def test_a_rule_that_matches_nothing_any_more_is_named() -> None:
    with pytest.raises(ValueError, match=r"matches the rule after a change here"):
        make_client.blocking(SOURCE.replace("after a change here", "after it"))


@pytest.mark.parametrize("line", ["await(stream.aclose())", "await asyncio.to_thread(lambda: None)"])
def test_what_no_rule_makes_blocking_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="no rule makes this blocking"):
        make_client.blocking(f"{SOURCE}\n\nasync def later(stream):\n    {line}\n")
