"""The glossary names what the API and the Python client speak of."""

from __future__ import annotations

import inspect
import re
from enum import StrEnum
from types import ModuleType

import pytest

from remora import alert_kinds, roles, states, views
from tests.architecture.repository import pages, sources

#: Types of the client that are forms of an answer and not things.
FORMS = {"View", "Page", "Problem", "FieldProblem", "Health", "Pruned"}


def terms() -> set[str]:
    """Every bold or italic term of the page, in lower case, without a plural's s."""
    found = re.findall(r"\*{1,2}([^*\n]+?)\*{1,2}", pages()["docs/glossary.md"])
    return {term.lower().removesuffix("s") for term in found}


def words(name: str) -> set[str]:
    """`ClusterLedger` -> cluster ledger, cluster-ledger, cluster, ledger."""
    parts = re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()
    return {parts, parts.replace(" ", "-"), *parts.split()}


def routes() -> set[str]:
    """The first part of each route after `/v1/`, in the singular."""
    found = {
        match for text in sources("service").values() for match in re.findall(r'"/v1/([a-z][a-z_-]*)', text)
    }
    return {re.sub(r"ies$", "y", name).removesuffix("s") for name in found}


def enums(module: ModuleType) -> list[type[StrEnum]]:
    """Those that a module defines."""
    found = [one for _, one in inspect.getmembers(module, inspect.isclass) if issubclass(one, StrEnum)]
    return [one for one in found if one.__module__ == module.__name__]


def explained() -> str:
    """The page, and the pages to which it leaves a list of words."""
    linked = re.findall(r"\]\(([a-z-]+\.md)", pages()["docs/glossary.md"])
    return "\n".join(pages()[f"docs/{name}"] for name in sorted({"glossary.md", *linked}))


@pytest.mark.parametrize(
    "enum",
    [one for module in (states, roles, alert_kinds) for one in enums(module)],
    ids=lambda one: one.__name__,
)
def test_every_value_that_the_api_gives_is_explained(enum: type[StrEnum]) -> None:
    missing = [one.value for one in enum if f"`{one.value}`" not in explained()]
    assert missing == [], "neither docs/glossary.md nor a page that it links explains them"


@pytest.mark.parametrize("resource", sorted(routes()))
def test_every_resource_of_the_api_is_a_term(resource: str) -> None:
    assert any(resource in term.split() for term in terms()), f"docs/glossary.md does not explain {resource}"


def test_every_type_of_the_client_speaks_of_a_term() -> None:
    types = [
        name
        for name, one in inspect.getmembers(views, inspect.isclass)
        if one.__module__ == views.__name__ and name not in FORMS
    ]
    spoken = {word for term in terms() for word in (term, *term.split())}
    unknown = [name for name in types if not words(name) & spoken]
    assert unknown == []


def test_no_term_is_explained_twice() -> None:
    bold = re.findall(r"\*\*([^*\n]+)\*\*", pages()["docs/glossary.md"])
    assert sorted(bold) == sorted(set(bold))
