"""Site rules as entry points: they are found by name, and one that cannot be followed is reported."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from cluster.scheduling import installed_rules
from cluster.scheduling.actions import Launch
from cluster.scheduling.installed_rules import GROUP, load_rules, rule_names
from cluster.scheduling.view import ClusterView

LAUNCH = Launch(pool="a", offering="x/any/spot", resources={}, reason="job_1 waits")
RULES = {
    "quiet": f"{__name__}:quiet",
    "content": f"{__name__}:content",
    "broken": f"{__name__}:broken",
    "chatty": f"{__name__}:chatty",
    "number": f"{__name__}:RULES",
    "absent": "no_such_module_of_a_site:rule",
}


def quiet(view: ClusterView, launch: Launch) -> str | None:
    return f"nothing for {launch.pool} at night"


def content(view: ClusterView, launch: Launch) -> str | None:
    return None


def broken(view: ClusterView, launch: Launch) -> str | None:
    raise KeyError("weekday")


def chatty(view: ClusterView, launch: Launch) -> object:
    return ["no"]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    points = [EntryPoint(name, value, GROUP) for name, value in RULES.items()]
    monkeypatch.setattr(installed_rules, "entry_points", lambda group: points)
    installed_rules._load.cache_clear()
    yield
    installed_rules._load.cache_clear()


def test_rules_are_found_without_being_imported() -> None:
    assert rule_names() == set(RULES)


def test_rules_answer_in_the_order_of_their_names() -> None:
    reported: list[tuple[str, str]] = []
    rules = load_rules(["content", "quiet"], lambda name, why: reported.append((name, why)))
    assert [(name, rule(ClusterView(), LAUNCH)) for name, rule in rules] == [
        ("content", None),
        ("quiet", "nothing for a at night"),
    ]
    assert reported == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("broken", "it raised KeyError: 'weekday'"),
        ("chatty", "it answered list, where None or a text is expected"),
        ("number", f"it cannot be loaded: TypeError: {__name__}:RULES cannot be called"),
        ("absent", "it cannot be loaded: ModuleNotFoundError: No module named 'no_such_module_of_a_site'"),
        ("gone", "no rule 'gone' is installed in the group remora.rules"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_reported_and_raises(name: str, why: str) -> None:
    reported: list[tuple[str, str]] = []
    ((_, rule),) = load_rules([name], lambda *what: reported.append(what))
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever a site's own code raises
        rule(ClusterView(), LAUNCH)
    assert reported == [(name, why)]
