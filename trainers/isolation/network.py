"""Keeps the rules for connections of jobs true on a node while commands of a job run there."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from remora.isolation import IsolationImpossible, UidRange
from remora.network_filter import NetworkFilter, NoNetworkRules, is_asked
from remora.network_rules import Ports

#: Seconds between two looks at whether the rules are there, and which ports other machines have.
_EVERY_S = 30.0
#: Ports of Ray's worker processes on every machine (`ray start`), and of its server for clients.
_WORKERS = (10001, 19999)

log = logging.getLogger(__name__)


@contextlib.contextmanager
def guarded_network(uids: UidRange, others: Callable[[], Iterable[Ports]] | None = None) -> Iterator[None]:
    """While the context is open the rules hold, if this node's environment asks for them.

    `others` says which addresses and ports other machines have; None: Ray does.
    Raises IsolationImpossible when they cannot be installed.
    """
    if not is_asked():
        yield
        return
    guard = _Guard(NetworkFilter(uids), others or ports_of_nodes)
    try:
        guard.look()
    except (NoNetworkRules, OSError, ValueError) as error:
        raise IsolationImpossible(
            f"the node runs no command: REMORA_NETWORK_RULES is true, and {error}; correct that, or leave it out"
        ) from error
    thread = threading.Thread(target=guard.run, name="network", daemon=True)
    thread.start()
    try:
        yield
    finally:
        guard.over.set()
        thread.join()


class _Guard:
    def __init__(self, rules: NetworkFilter, others: Callable[[], Iterable[Ports]]) -> None:
        self._rules, self._others = rules, others
        self._known: list[Ports] = []
        self.over = threading.Event()

    def look(self) -> None:
        """Make the rules true.  Raises NoNetworkRules, OSError, ValueError."""
        try:
            self._known = addresses_of(self._others())
        except Exception as error:  # the head may be gone for a while: what was known holds
            log.warning("the ports of other nodes are not known: %s", error)
        self._rules.update(self._known)

    def run(self) -> None:
        """Do that again and again until it is over."""
        while not self.over.wait(_EVERY_S):
            try:
                self.look()
            except (NoNetworkRules, OSError, ValueError) as error:
                log.warning("the rules for connections of jobs are not true any more: %s", error)


def addresses_of(places: Iterable[Ports]) -> list[Ports]:
    """The same with numbers in place of names, as rules need them; what cannot be resolved is left out."""
    found: dict[Ports, None] = {}
    for one in places:
        name = one.address.removeprefix("[").removesuffix("]")
        try:
            numbers = [str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
            for number in numbers:
                # Rules know no zone of an address.
                found[one._replace(address=str(ipaddress.ip_address(number.partition("%")[0])))] = None
        except (OSError, ValueError) as error:
            log.warning("the ports %d to %d of %s are open to jobs: %s", one.first, one.last, name, error)
    return list(found)


def ports_of_nodes() -> list[Ports]:
    """Addresses and ports of Ray's processes on all living nodes: those that Ray lists, and those of its workers."""
    # What ends a service sweeps jobs, and asks Ray nothing.
    import ray

    nodes: list[dict[str, Any]] = [one for one in ray.nodes() if one.get("Alive")]
    listed = ("NodeManagerPort", "ObjectManagerPort", "MetricsExportPort", "RuntimeEnvAgentPort")
    found = []
    for node in nodes:
        address, ports = str(node["NodeManagerAddress"]), [int(node.get(name) or 0) for name in listed]
        found += [Ports(address, *_WORKERS), *(Ports(address, one, one) for one in ports if one > 0)]
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    return [*found, Ports(host, int(port), int(port)), Ports(host, *_WORKERS)]
