"""Parses the node file, which the machine's start-up data wrote (pure)."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError

from cluster.azure.body import NodeFile

_NODE_FILE = TypeAdapter(NodeFile)


class NodeFileUnusable(Exception):
    """No machine can join by this file; the message is one sentence."""


def parse(text: str) -> NodeFile:
    """The file's content; unknown fields of a newer controller are ignored.

    Raises NodeFileUnusable when something is missing or is not what it should be.
    """
    try:
        node = _NODE_FILE.validate_json(text, strict=True)
    except ValidationError as error:
        problems = (_problem(one["loc"], one["type"], one["msg"]) for one in error.errors(include_url=False))
        raise NodeFileUnusable("; ".join(problems)) from error
    host, _, port = node.head.rpartition(":")
    if not host or not port.isdecimal():
        raise NodeFileUnusable(f"head {node.head!r} is not HOST:PORT")
    if not node.vault:
        raise NodeFileUnusable(
            "it names no vault that has the cluster's secret: set `vault` of the cluster's place"
        )
    return node


def _problem(place: tuple[int | str, ...], kind: str, said: str) -> str:
    name = ".".join(map(str, place))
    if kind == "missing":
        return f"it lacks {name}"
    return f"{name}: {said}" if name else said
