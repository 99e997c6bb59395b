"""The parameters of the template: of a file, of options, and what is missing or wrong in them (pure)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from deploy.azure.client.places import problems_of

#: What `up` itself finds out.
FOUND = frozenset(
    {
        "budgetStart",
        "operatorId",
        "otherSubscriptions",
        "postgresPassword",
        "rayAuthority",
        "rayToken",
        "vaultCreateMode",
    }
)
#: By which option or in which way each parameter without a default is given.
HOW = {
    "region": "--region eastus",
    "operatorAddresses": "--allow 203.0.113.7",
    "sshPublicKey": "--ssh-key ~/.ssh/id_ed25519.pub",
    "notifyEmail": "--email team@example.com",
    "operatorId": "--set operatorId=$(az ad signed-in-user show --query id --output tsv)",
}
_CLUSTER = re.compile(r"[a-z][a-z0-9-]{0,19}")
_TYPES: Mapping[str, Any] = {
    "string": str,
    "securestring": str,
    "int": int,
    "bool": bool,
    "array": list,
    "object": dict,
}
_MOST_ADDRESSES = 100


class Wrong(Exception):
    """The parameters cannot be used; the message is one sentence that names all that is missing or wrong."""


def read_set(words: list[str], template: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `--set NAME=VALUE`, as the types of the template's parameters.  Raises Wrong."""
    known = template["parameters"]
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in known:
            raise Wrong(f"--set {name[:60]} names no parameter; there are {', '.join(sorted(known))}")
        found[name] = _value(name, text, known[name]["type"])
    return found


def _value(name: str, text: str, kind: str) -> Any:
    match kind:
        case "int" if re.fullmatch(r"\d{1,9}", text):
            return int(text)
        case "bool" if text in ("true", "false"):
            return text == "true"
        case "array":
            return [one for one in text.split(",") if one]
        case "string" | "securestring":
            return text
    raise Wrong(f"--set {name}={text[:60]} is no {kind}")


def chosen(template: Mapping[str, Any], file: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a file of parameters with the given ones above them.  Raises Wrong."""
    try:
        values = {str(name): one["value"] for name, one in file["parameters"].items()}
    except (KeyError, TypeError, AttributeError):
        raise Wrong(
            'the file of parameters is none: it needs {"parameters": {"NAME": {"value": ...}}}'
        ) from None
    of_file = values.get("furtherPlaces")
    values |= given
    if isinstance(of_file, list) and "furtherPlaces" in given:
        values["furtherPlaces"] = [*of_file, *given["furtherPlaces"]]
    known: Mapping[str, Any] = template["parameters"]
    problems = [f"{name} is no parameter" for name in sorted(values.keys() - known.keys())]
    missing = [
        name
        for name, rules in known.items()
        if "defaultValue" not in rules and name not in values.keys() | FOUND
    ]
    if missing:
        said = ", ".join(f"{name} ({HOW.get(name, f'--set {name}=...')})" for name in missing)
        problems.insert(0, f"missing: {said}")
    for name, value in values.items():
        if name in known:
            problems += _problems(name, value, known[name])
    if not problems:
        values["operatorAddresses"], problems = _addresses(values["operatorAddresses"])
        problems += _texts(values)
        problems += problems_of(values.get("furtherPlaces", []))
    if problems:
        raise Wrong("; ".join(problems))
    return values


def _problems(name: str, value: Any, rules: Mapping[str, Any]) -> list[str]:
    kind = rules["type"]
    if not isinstance(value, _TYPES[kind]) or (kind == "int" and isinstance(value, bool)):
        return [f"{name} has to be of the type {kind}"]
    # Of numbers the value counts, and of what else has one, the length.
    size = value if isinstance(value, int) else len(value)
    low = rules.get("minValue", rules.get("minLength"))
    high = rules.get("maxValue", rules.get("maxLength"))
    if (low is not None and size < low) or (high is not None and size > high):
        return [f"{name} has to be {low if low is not None else 0} to {high if high is not None else 'any'}"]
    if "allowedValues" in rules and value not in rules["allowedValues"]:
        return [f"{name} has to be one of {', '.join(rules['allowedValues'])}"]
    return []


def _addresses(given: list[Any]) -> tuple[list[str], list[str]]:
    """Addresses as vault, storage and network all accept them, and what is wrong with the others."""
    found, problems = [], []
    if len(given) > _MOST_ADDRESSES:
        return [], [f"operatorAddresses has more than {_MOST_ADDRESSES} addresses"]
    for one in given:
        try:
            network = ipaddress.IPv4Network(str(one))
        except ValueError:
            problems.append(f"the address {str(one)[:60]!r} is none: write 203.0.113.7 or 203.0.113.0/24")
            continue
        if network.prefixlen < 8:
            problems.append(f"the network {network} is too large: name where your people are, /8 at most")
        elif network.is_private and not network.subnet_of(_DOCUMENTATION):
            problems.append(f"the address {network} is private: name the one that the internet sees")
        elif network.prefixlen == 31:
            problems.append(f"the network {network} is refused by storage accounts: name its two addresses")
        else:
            found.append(str(network.network_address) if network.prefixlen == 32 else str(network))
    return found, problems


#: Addresses of examples, which count as private, and which tests use.
_DOCUMENTATION = ipaddress.IPv4Network("203.0.113.0/24")


def _texts(values: Mapping[str, Any]) -> list[str]:
    problems = []
    if not _CLUSTER.fullmatch(values.get("cluster", "remora")):
        problems.append("cluster has to be 1 to 20 of a-z, 0-9 and -, beginning with a letter")
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9}){2}", values.get("imageVersion", "1.0.0")):
        problems.append("imageVersion has to be three numbers, such as 1.0.1")
    if not re.fullmatch(r"[a-z0-9]{3,40}", values["region"]):
        problems.append("region has to be a name such as eastus")
    if not re.fullmatch(
        r"(ssh-(rsa|ed25519)) [A-Za-z0-9+/=]{60,1000}( [^\n]*)?", values["sshPublicKey"].strip()
    ):
        problems.append("the SSH key has to be the one line of a public key, ssh-ed25519 or ssh-rsa")
    if not re.fullmatch(r"[^@\s]{1,100}@[^@\s]{3,200}", values["notifyEmail"]):
        problems.append("notifyEmail has to be an address for e-mail")
    return problems
