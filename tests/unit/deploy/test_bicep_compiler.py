"""The compiler of deploy/azure: what it makes of Bicep, and that main.json is what it makes of main.bicep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.azure.emulator.deployments.expressions import evaluate
from cluster.azure.emulator.deployments.template import Place, Template
from deploy.azure.bicep.compile import COMPILED, compiled, main, written
from deploy.azure.bicep.parse import NotUnderstood


def test_the_template_is_what_the_bicep_says() -> None:
    assert COMPILED.read_text() == written(), "write it by: make template"
    assert main(["--check"]) == 0


def of(folder: Path, text: str, **files: str) -> dict[str, Any]:
    for name, content in files.items():
        (folder / f"{name}.bicep").write_text(content)
    (folder / "main.bicep").write_text(text)
    return compiled(folder / "main.bicep")


@pytest.mark.parametrize(
    ("bicep", "arm"),
    [
        ("'plain'", "plain"),
        ("'[brackets]'", "[[brackets]"),
        ("'it\\'s ${a}'", "[format('it''s {0}', parameters('a'))]"),
        ("'{${a}}'", "[format('{{{0}}}', parameters('a'))]"),
        ("3", 3),
        ("true", True),
        ("null", None),
        (
            "a == 'x' ? [\n  1\n  2\n] : []",
            "[if(equals(parameters('a'), 'x'), createArray(1, 2), createArray())]",
        ),
        ("!empty(a) && a != 'b'", "[and(not(empty(parameters('a'))), not(equals(parameters('a'), 'b')))]"),
        ("length(a) - 1", "[sub(length(parameters('a')), 1)]"),
        ("{\n  k: a\n  'k.l': {}\n}", {"k": "[parameters('a')]", "k.l": {}}),
        ("subscription().id", "[subscription().id]"),
        ("c[length(c) - 1].name", "[parameters('c')[sub(length(parameters('c')), 1)].name]"),
        ("any(b ? null : false)", "[any(if(parameters('b'), null(), false()))]"),
        (
            "{\n  all: [for one in c: {\n    is: one\n  }]\n}",
            {
                "copy": [
                    {
                        "name": "all",
                        "count": "[length(parameters('c'))]",
                        "input": {"is": "[parameters('c')[copyIndex('all')]]"},
                    }
                ]
            },
        ),
    ],
)
def test_expressions(tmp_path: Path, bicep: str, arm: object) -> None:
    text = f"// a comment\nparam a string\nparam b bool\nparam c array\nvar found = {bicep}\n"
    assert of(tmp_path, text)["variables"]["found"] == arm


RESOURCES = """
param cluster string
resource vault 'Some.Vault/vaults@2020-01-01' = {
  name: 'v-${cluster}'
}
resource secret 'Some.Vault/vaults/secrets@2020-01-01' = if (!empty(cluster)) {
  parent: vault
  name: 's'
}
resource known 'Some.Net/networks@2020-01-01' existing = {
  name: 'n'
}
resource subnet 'Some.Net/networks/subnets@2020-01-01' existing = {
  parent: known
  name: 'x'
}
resource role 'Some.Auth/roles@2020-01-01' = {
  scope: subnet
  name: guid(subnet.id)
  properties: {
    uri: vault.properties.uri.long
    id: vault.id
    name: secret.name
  }
}
"""


def test_resources_with_parents_scopes_and_what_they_wait_for(tmp_path: Path) -> None:
    found = of(tmp_path, RESOURCES)["resources"]
    assert found["secret"] == {
        "condition": "[not(empty(parameters('cluster')))]",
        "type": "Some.Vault/vaults/secrets",
        "apiVersion": "2020-01-01",
        "name": "[format('{0}/{1}', format('v-{0}', parameters('cluster')), 's')]",
        "dependsOn": ["vault"],
    }
    subnet = "resourceId('Some.Net/networks/subnets', 'n', 'x')"
    assert found["role"] == {
        "type": "Some.Auth/roles",
        "apiVersion": "2020-01-01",
        "scope": f"[{subnet}]",
        "name": f"[guid({subnet})]",
        "properties": {
            "uri": "[reference('vault').uri.long]",
            "id": "[resourceId('Some.Vault/vaults', format('v-{0}', parameters('cluster')))]",
            "name": "['s']",
        },
        "dependsOn": ["secret", "vault"],
    }
    assert found["subnet"]["existing"] is True
    assert "dependsOn" not in found["vault"]


MODULE = "param given string\nparam size int = 3\noutput made string = given\n"


def test_modules_are_deployments_in_their_scope(tmp_path: Path) -> None:
    text = """
targetScope = 'subscription'
resource group 'Microsoft.Resources/resourceGroups@2024-11-01' = {
  name: 'g'
}
module one 'part.bicep' = {
  name: 'one'
  scope: group
  params: {
    given: group.name
  }
}
output made string = one.outputs.made
"""
    found = of(tmp_path, text, part=MODULE)
    one = found["resources"]["one"]
    assert (one["resourceGroup"], one["dependsOn"]) == ("g", ["group"])
    assert one["properties"]["parameters"] == {"given": {"value": "['g']"}}
    assert one["properties"]["template"]["outputs"]["made"]["value"] == "[parameters('given')]"
    assert found["outputs"]["made"]["value"] == "[reference('one').outputs.made.value]"


LOOPS = """
targetScope = 'subscription'
param places array
var names = [for place in places: place.name]
var numbered = [for (place, number) in places: {
  name: names[number]
  others: [for other in names: '${place.name} ${other}']
}]
module one 'part.bicep' = [for place in places: {
  name: 'one-${place.name}'
  scope: subscription(place.subscription)
  params: {
    given: place.name
  }
}]
@batchSize(1)
module two 'part.bicep' = [for (place, number) in places: if (number != 0) {
  name: 'two-${place.name}'
  scope: resourceGroup(place.subscription, place.group)
  params: {
    given: 'x'
    list: [for other in places: other.name == place.name ? number : 0]
  }
  dependsOn: [
    one
  ]
}]
"""


def test_loops_of_variables_modules_and_their_parameters(tmp_path: Path) -> None:
    found = of(
        tmp_path, LOOPS, part="param given string\nparam list array = []\noutput made string = given\n"
    )
    assert found["variables"]["copy"] == [
        {
            "name": "names",
            "count": "[length(parameters('places'))]",
            "input": "[parameters('places')[copyIndex('names')].name]",
        },
        {
            "name": "numbered",
            "count": "[length(parameters('places'))]",
            "input": {
                "name": "[variables('names')[copyIndex('numbered')]]",
                "copy": [
                    {
                        "name": "others",
                        "count": "[length(variables('names'))]",
                        "input": "[format('{0} {1}', parameters('places')[copyIndex('numbered')].name,"
                        " variables('names')[copyIndex('others')])]",
                    }
                ],
            },
        },
    ]
    one, two = found["resources"]["one"], found["resources"]["two"]
    assert one["copy"] == {"name": "one", "count": "[length(parameters('places'))]"}
    assert one["subscriptionId"] == "[parameters('places')[copyIndex()].subscription]"
    assert one["location"] == "[deployment().location]"
    assert one["name"] == "[format('one-{0}', parameters('places')[copyIndex()].name)]"
    assert two["copy"] == {
        "name": "two",
        "count": "[length(parameters('places'))]",
        "mode": "serial",
        "batchSize": 1,
    }
    assert two["condition"] == "[not(equals(copyIndex(), 0))]"
    assert two["resourceGroup"] == "[parameters('places')[copyIndex()].group]"
    assert two["dependsOn"] == ["one"]
    (values,) = two["properties"]["parameters"]["list"]["copy"]
    assert (values["name"], values["input"]) == (
        "value",
        "[if(equals(parameters('places')[copyIndex('value')].name, parameters('places')[copyIndex()].name),"
        " copyIndex(), 0)]",
    )


def test_what_loops_make_is_made_by_the_emulator(tmp_path: Path) -> None:
    document = of(
        tmp_path, LOOPS, part="param given string\nparam list array = []\noutput made string = given\n"
    )
    places = [
        {"name": name, "subscription": f"of-{name}", "group": f"group-{name}"} for name in ("a", "b", "c")
    ]
    template = Template(
        document, {"places": places}, Place(subscription="s", tenant="t", region="r"), lambda _: None
    )
    ids, inner = zip(*template.resources(), strict=True)
    assert [one.id.removeprefix("/subscriptions/") for one in ids] == [
        *(f"of-{one}/providers/Microsoft.Resources/deployments/one-{one}" for one in "abc"),
        *(
            f"of-{one}/resourceGroups/group-{one}/providers/Microsoft.Resources/deployments/two-{one}"
            for one in "bc"
        ),
    ]
    assert [one.call("parameters", ["list"]) for one in inner[3:]] == [[0, 1, 0], [0, 0, 2]]
    assert template.call("variables", ["numbered"])[1] == {"name": "b", "others": ["b a", "b b", "b c"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("var a = 'open", "a string does not end"),
        ("var a = '${b'", "does not end"),
        ("var a = #", "is not understood"),
        ("var a = b", "b is nothing that has a value"),
        ("frob a = 3", "'frob' is no statement"),
        ("param a string =", "begins no expression"),
        ("resource a 'T/t@1' = {\n  name: 'a'\n}\nvar b = a.id", "needs a resource"),
        ("resource a 'T/t@1' = {\n  name: 'a'\n}\noutput b string = a.sku", "a.sku is not understood"),
        ("module a 'part.bicep' = {\n  name: 'a'\n}", "differ in given"),
        (
            "module a 'part.bicep' = {\n  name: 'a'\n  params: {\n    given: 'x'\n    odd: 3\n  }\n}",
            "differ in odd",
        ),
    ],
)
def test_what_it_does_not_know_it_refuses(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(NotUnderstood, match=said):
        of(tmp_path, f"{text}\n", part=MODULE)


def test_what_is_compiled_evaluates_to_what_was_meant(tmp_path: Path) -> None:
    class Nothing:
        def call(self, function: str, arguments: list[Any]) -> Any:
            raise KeyError(function)

    text = "var a = join(concat(['x'], ['it\\'s', '{b}']), '\\n')\nvar c = '${1 + 2}{${'y'}}'\n"
    found = of(tmp_path, text)["variables"]
    assert evaluate(found["a"], Nothing()) == "x\nit's\n{b}"
    assert evaluate(found["c"], Nothing()) == "3{y}"
