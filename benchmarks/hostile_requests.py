"""Requests that cost much: those that were made to, which are refused, and large ones that are answered.

A check that is not linear takes minutes for each of the former.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

#: Bytes of the larger bodies: as many as the service takes of a job, and of policies.
_JOB = 500 * 1024
_DOCUMENT = 500 * 1024


@dataclass(frozen=True)
class HostileRequest:
    """One request, sent as `application/json`."""

    name: str
    path: str
    body: bytes = b""
    method: str = "POST"


def hostile_requests() -> Iterator[HostileRequest]:
    """Each kind once; the service refuses all of them."""
    for name, text in _jobs():
        yield HostileRequest(name, "/v1/jobs", text.encode())
    for name, document in _documents():
        yield HostileRequest(name, "/v1/policies/check", json.dumps({"document": document}).encode())
    yield HostileRequest("a body of policies with keys", "/v1/policies", _keys(1_900_000).encode())
    yield HostileRequest(
        "lists of policies", "/v1/policies", ('{"document":[' + "[]," * 630_000 + "1]}").encode()
    )
    yield HostileRequest("a drill with keys", "/v1/nodes/node_x/drill", _keys(_JOB).encode())


def large_requests() -> Iterator[HostileRequest]:
    """Each kind once; the service grants all of them."""
    words = ["echo", *("y" for _ in range(19_000)), "x" * 100_000]
    yield HostileRequest("a large job", "/v1/jobs", json.dumps({"command": words}).encode())
    projects = "projects:\n" + "".join(f"  p{number}: {{share: 2}}\n" for number in range(9_999))
    yield HostileRequest("many projects", "/v1/policies/check", json.dumps({"document": projects}).encode())
    yield HostileRequest("a list of jobs", "/v1/jobs?limit=1000", method="GET")


def _keys(size: int) -> str:
    return "{" + ",".join(f'"k{number:07d}":1' for number in range(size // 13)) + "}"


def _job(**fields: object) -> str:
    return json.dumps({"command": "true", **fields})


def _jobs() -> Iterator[tuple[str, str]]:
    yield "an open expression", _job(command=["x", "${{" + " " * 2000, "${{nothing}}"])
    yield "a long open expression", _job(command=["x", "${{" + " " * 250_000 + "${{nothing}}"])
    yield "open expressions", _job(command=["x", "${{" * 80_000 + "${{nothing}}"])
    yield "a doubled key", _keys(_JOB)[:-1] + ',"k0000000":2}'
    yield "unknown keys", _job(**{f"workerz{number}": 1 for number in range(19_000)})
    yield "more unknown keys", _keys(_JOB)
    yield "wrong words", '{"command":[' + ",".join("1" * 19_000) + "]}"
    yield "more wrong words", '{"command":[' + ",".join("1" * (_JOB // 2)) + "]}"
    yield "backslashes", '{"command":"' + "\\" * (_JOB // 4 * 4 - 1000) + '","name":"-"}'
    yield "backslashes in quotes", _job(command='"' + "\\\\" * 110_000)
    yield (
        "outputs in each other",
        _job(outputs={f"o{n}": {"path": f"p/{n}", "model": "m"} for n in range(4000)}),
    )
    yield "shells in shells", _job(command=["bash", "-c", "bash -c '" * 20_000 + "torchrun", "${{nothing}}"])
    yield "depth", "[" * _JOB
    yield "a long number", '{"priority":' + "9" * (_JOB - 100) + "}"


def _documents() -> Iterator[tuple[str, str]]:
    yield "keys of yaml", "".join(f"k{number}: [1,2]\n" for number in range(30_000))
    yield "values of yaml", "a: [" + "1," * (_DOCUMENT // 2 - 10) + "]"
    yield "depth of yaml", "[" * _DOCUMENT
    yield "questions of yaml", "{" + "? " * (_DOCUMENT // 2 - 10)
    yield (
        "aliases of yaml",
        "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(
            f"{new}: &{new} [{','.join(f'*{old}' for _ in range(9))}]\n"
            for old, new in zip("abcdefgh", "bcdefghi", strict=True)
        ),
    )
    yield "base 60 of yaml", "a: 1" + ":59" * (_DOCUMENT // 3 - 10)
    yield "schedules", _schedules(pools=110, each=60)
    yield "schedules that are compared", _schedules(pools=8, each=64)
    yield "pools", "pools:\n" + "".join(f"  p{number}: 1\n" for number in range(40_000))
    yield "projects", "projects:\n" + "".join(f"  p{number}: {{shar: 1}}\n" for number in range(9_999))


def _schedules(pools: int, each: int) -> str:
    lines = ["pools:"]
    for pool in range(pools):
        lines += [f"  p{pool}:", "    sizes: [local]", "    schedules:"]
        lines += [
            f"    - {{window: {{begins: '{one % 60} {pool % 24} * * *', lasts_s: {60 + pool}}}, max_nodes: {one}}}"
            for one in range(each)
        ]
    return "\n".join(lines)
