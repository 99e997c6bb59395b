"""The site rules that are installed beside the service: entry points of the group `remora.rules`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from cluster.scheduling.actions import Launch
from cluster.scheduling.launch_checks import Rule
from cluster.scheduling.view import ClusterView

#: Called with the name of a rule that failed, and a sentence about the failure.
FailureReport = Callable[[str, str], None]

GROUP = "remora.rules"


class RuleBroken(Exception):
    """A rule cannot be called, or returned a value of a wrong type; the message is a sentence."""


def rule_names() -> frozenset[str]:
    """Names of the rules that are installed; nothing of them is imported."""
    return frozenset(point.name for point in entry_points(group=GROUP))


def load_rules(names: Iterable[str], report: FailureReport) -> tuple[tuple[str, Rule], ...]:
    """The rules of these names, in this order, each of which calls `report` before it raises.

    One that is not installed or cannot be imported raises when it is called, as any that fails.
    """
    return tuple((name, _reporting(name, _load(name), report)) for name in names)


def _reporting(name: str, rule: Rule, report: FailureReport) -> Rule:
    def asked(view: ClusterView, launch: Launch) -> str | None:
        try:
            return _sentence(rule(view, launch))
        except Exception as error:
            report(name, _why(error))
            raise

    return asked


def _sentence(answer: object) -> str | None:
    if answer is None or isinstance(answer, str):
        return answer
    raise RuleBroken(f"it answered {type(answer).__name__}, where None or a text is expected")


def _why(error: Exception) -> str:
    if isinstance(error, RuleBroken):
        return str(error)
    said = str(error).strip().splitlines()
    return f"it raised {type(error).__name__}{f': {said[0][:200]}' if said else ''}"


@lru_cache(maxsize=64)
def _load(name: str) -> Rule:
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    if not found:
        return _failing(f"no rule {name!r} is installed in the group {GROUP}")
    try:
        return _checked(found[0])
    except Exception as error:
        return _failing(f"it cannot be loaded: {type(error).__name__}: {error}")


def _checked(point: EntryPoint) -> Rule:
    rule = point.load()
    if not callable(rule):
        raise TypeError(f"{point.value} cannot be called")
    return cast(Rule, rule)


def _failing(why: str) -> Rule:
    def rule(view: ClusterView, launch: Launch) -> str | None:  # noqa: ARG001
        raise RuleBroken(why)

    return rule
