"""Installs the rules for connections of jobs on this machine, keeps them there, and removes them.

Only where an operator says so (`REMORA_NETWORK_RULES`): it changes the ruleset of the machine, though nothing in it but
a table for the users of its jobs.  Services of one machine that have the same users share their table: the last one
removes it, and what killed ones left goes when the next one starts.  Needs nft and CAP_NET_ADMIN.  Standard library
only.

Source: flock(2): the kernel gives a lock back when its process ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from remora.isolation import IsolationImpossible, Offer, UidRange, Walls
from remora.network_rules import Ports, closed_elsewhere, ruleset, table_of, tables_of
from remora.private_files import is_private, open_lock

#: Environment variable of a node, a head or a service: whether it installs rules.
VARIABLE = "REMORA_NETWORK_RULES"
#: Where the locks of tables lie, in a folder of this user, and the network namespace that has the tables.
_ROOT, _NAMESPACE = Path("/tmp"), Path("/proc/self/ns/net")  # noqa: S108 - private below it
#: Seconds that nft may take.
_NFT_S = 20.0


class NoNetworkRules(Exception):
    """The rules cannot be installed here; the message says why."""


def is_asked() -> bool:
    """Whether this process's environment asks for rules."""
    return os.environ.get(VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")


def need_users(walls: Walls | None) -> None:
    """Raises IsolationImpossible where rules are asked for and commands have namespaces in place of users."""
    if walls == "namespaces" and is_asked():
        raise IsolationImpossible(
            f"the node runs no command: {VARIABLE} is true, and its rules are for users of jobs, which this node does"
            " not give; leave it out"
        )


class NetworkFilter:
    """The rules of this machine for the users of jobs."""

    def __init__(self, uids: UidRange) -> None:
        self._uids = uids
        self._closed = ""

    @property
    def table(self) -> str:
        """The name of their table."""
        return table_of(self._uids, os.geteuid())

    def install(self) -> None:
        """Install them in place of what has this name.  Raises NoNetworkRules."""
        self._closed = ""
        _nft(ruleset(self._uids, os.geteuid()))

    def update(self, others: Iterable[Ports] = ()) -> bool:
        """Make the rules true again: others may have removed them, or `others` be new; True when something had changed.

        Raises NoNetworkRules, and ValueError for what is no address or port.
        """
        closed = closed_elsewhere(self.table, tuple(others))
        is_there = self.table in _tables()
        if is_there and closed == self._closed:
            return False
        if not is_there:
            self.install()
        _nft(closed)
        self._closed = closed
        return True

    def remove(self) -> None:
        """Remove them; fine when there are none.  Raises NoNetworkRules."""
        _remove(self.table)


class HeldRules:
    """The rules as long as a node or a service lives, if they are asked for."""

    def __init__(self, offer: Offer) -> None:
        self._rules = None if offer.uids is None or not is_asked() else NetworkFilter(offer.uids)
        self._lock: IO[str] | None = None

    def begin(self) -> str:
        """Install them, unless another service of this machine did so for the same users; returns what holds."""
        if self._rules is None:
            return f"connections of jobs are not limited on this machine ({VARIABLE} is not set, or jobs have no users)"
        try:
            _remove_left_over(self._rules.table)
            self._lock = open_lock(_lock_of(self._rules.table))
            if _is_alone(self._lock):
                self._rules.install()
            # Who comes meanwhile waits here until the rules are there.
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            if self._rules.table not in _tables():
                self._rules.install()
        except (NoNetworkRules, OSError) as error:
            return f"no command of a job will run here: {VARIABLE} is true, and {error}"
        return f"connections of jobs are limited by the table {self._rules.table} of nftables"

    def end(self) -> str:
        """Remove them, unless another service has the same users; returns why they are still there, or ""."""
        if self._rules is None or self._lock is None:
            return ""
        with self._lock as lock:
            try:
                if _is_alone(lock):
                    self._rules.remove()
            except NoNetworkRules as error:
                return f"the table {self._rules.table} of nftables is still there: {error}"
        return ""


def _remove_left_over(table: str) -> None:
    """Remove the tables of this user whose service was killed, but `table`.  Raises NoNetworkRules, OSError."""
    for other in _tables():
        if other != table and other.startswith(tables_of(os.geteuid())):
            with open_lock(_lock_of(other)) as lock:
                if _is_alone(lock):
                    _remove(other)


def _lock_of(table: str) -> Path:
    """The file that every service holds which has this table, in this network namespace.  Raises OSError."""
    root = _ROOT / f"remora-network-{os.geteuid()}"
    root.mkdir(exist_ok=True, mode=0o700)
    if not is_private(root):
        raise PermissionError(f"{root} is no folder of this user alone; remove it")
    return root / f"{_NAMESPACE.stat().st_ino}-{table}.lock"


def _is_alone(lock: IO[str]) -> bool:
    """Hold the lock alone; False, and it is held as before or not at all, when another one has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _tables() -> list[str]:
    """Names of the tables of our family.  Raises NoNetworkRules."""
    words = (line.split() for line in _run("list", "tables", "inet").splitlines())
    return [one[2] for one in words if one[:2] == ["table", "inet"] and len(one) == 3]


def _remove(table: str) -> None:
    _nft(f"add table inet {table}\ndelete table inet {table}\n")


def _nft(script: str) -> None:
    _run("-f", "-", script=script)


def _run(*words: str, script: str = "") -> str:
    program = shutil.which("nft", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise NoNetworkRules("this machine has no nft; install nftables")
    try:
        done = subprocess.run(
            [program, *words], input=script, capture_output=True, text=True, timeout=_NFT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNetworkRules(f"nft cannot be run: {error}") from error
    if done.returncode != 0:
        why = next((line for line in done.stderr.splitlines() if line.strip()), "it says nothing")
        raise NoNetworkRules(f"nft refuses the rules: {why}")
    return done.stdout
