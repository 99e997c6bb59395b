"""Templates as the emulator evaluates them: the language of expressions, and what a template may not say."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.azure.emulator.deployments.expressions import InvalidTemplate, evaluate
from cluster.azure.emulator.deployments.template import Place, Template

PLACE = Place(subscription="s", tenant="t", group="g", region="eastus")


class Names:
    def call(self, function: str, arguments: list[Any]) -> Any:
        return {"one": 1, "text": "x", "deep": {"a": [{"b": 3}]}}[arguments[0]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no expression", "no expression"),
        ("[[escaped]", "[escaped]"),
        ("['it''s']", "it's"),
        ("[format('{0}-{{1}}-{1}', 'a', 2)]", "a-{1}-2"),
        ("[parameters('deep').a[0].b]", 3),
        ("[if(equals(parameters('one'), 1), 'y', parameters('not there'))]", "y"),
        ("[if(false(), parameters('not there').x, 'n')]", "n"),
        ("[string(createObject('k', createArray(1, null())))]", '{"k":[1,null]}'),
        ("[take('abc', sub(length('abc'), 1))]", "ab"),
        ("[union(createObject('a', 1), createObject('b', 2))]", {"a": 1, "b": 2}),
        ("[base64('x')]", "eA=="),
        ("[and(not(empty('x')), true())]", True),
    ],
)
def test_values(text: str, value: object) -> None:
    assert evaluate(text, Names()) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[frob(]", "ends too early"),
        ("[frob(,)]", "where a value should be"),
        ("[]", "ends too early"),
        ("['a' 'b']", "goes on after its end"),
        ("[parameters]", "where a function should be"),
        ("[parameters('unknown')]", "'parameters' is not valid"),
        ("[parameters('deep').c]", "'c' doesn't exist, available properties are 'a'"),
        ("[length(3)]", "'length' failed"),
        ("[ä]", "Unable to parse"),
        ("[" + "not(" * 100 + "true()" + ")" * 100 + "]", "too deep"),
    ],
)
def test_what_is_no_expression_is_an_error_of_the_template(text: str, said: str) -> None:
    with pytest.raises(InvalidTemplate, match=said):
        evaluate(text, Names())


def template(resources: dict[str, Any], **more: Any) -> Template:
    given = more.pop("given", {})
    return Template(
        {"languageVersion": "2.0", "resources": resources, **more}, given, PLACE, lambda _id: None
    )


def one(name: str, *needs: str) -> dict[str, Any]:
    return {"type": "T.T/ts", "apiVersion": "1", "name": name, "dependsOn": list(needs)}


def test_resources_come_after_what_they_need() -> None:
    found = template({"c": one("c", "b"), "a": one("a"), "b": one("b", "a")}).resources()
    assert [wanted.body["name"] for wanted in found] == ["a", "b", "c"]


def test_a_circle_and_a_name_that_is_not_there_are_refused() -> None:
    with pytest.raises(InvalidTemplate, match="Circular"):
        list(template({"a": one("a", "b"), "b": one("b", "a")}).resources())
    with pytest.raises(InvalidTemplate, match="'b' is not defined"):
        list(template({"a": one("a", "b")}).resources())


@pytest.mark.parametrize(
    ("rules", "value", "said"),
    [
        ({"type": "int"}, "3", "type 'int'"),
        ({"type": "int"}, True, "type 'int'"),
        ({"type": "int", "maxValue": 3}, 4, "to '3'"),
        ({"type": "string", "allowedValues": ["a"]}, "b", "allowed value"),
        ({"type": "array", "minLength": 1}, [], "from '1'"),
        ({"type": "object"}, [], "type 'object'"),
    ],
)
def test_parameters_are_checked(rules: dict[str, Any], value: Any, said: str) -> None:
    with pytest.raises(InvalidTemplate, match=said):
        template({}, parameters={"p": rules}, given={"p": value})


def test_parameters_that_are_missing_or_too_many_are_named() -> None:
    with pytest.raises(InvalidTemplate, match="parameter 'p' is not provided"):
        template({}, parameters={"p": {"type": "int"}})
    with pytest.raises(InvalidTemplate, match="'q'"):
        template({}, parameters={}, given={"q": 3})
