"""Installs the rules for connections of jobs on this machine, keeps them true, and removes them.

Only where an operator says so (`REMORA_NETWORK_RULES`): it changes the ruleset of the machine, though nothing in it but
one table.  Needs nft and CAP_NET_ADMIN.  Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from remora.isolation import Offer, UidRange
from remora.network_rules import TABLE, listening_ports, ruleset

#: Environment variable of a node, a head or a service: whether it installs rules.
VARIABLE = "REMORA_NETWORK_RULES"
#: Seconds that nft may take.
_NFT_S = 20.0
#: Updates without a change after which it is looked up whether the table is still there.
_LOOK_EVERY = 60


class NoNetworkRules(Exception):
    """The rules cannot be installed here; the message says why."""


def is_asked() -> bool:
    """Whether this process's environment asks for rules."""
    return os.environ.get(VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")


class NetworkFilter:
    """The rules of this machine for the users of jobs."""

    def __init__(self, uids: UidRange) -> None:
        self._uids = uids
        self._installed = ""
        self._unchanged = 0

    def update(self, others: Iterable[tuple[str, int]] = ()) -> bool:
        """Install the rules, or make them true again; True when something had changed.

        The ports of this machine are those at which processes of this user listen now, `others` are addresses and ports
        of other machines.  Others may remove the table: it is looked up now and then.  Raises NoNetworkRules, and
        ValueError for what is no address or port.
        """
        ports: set[int] = set()
        for name in ("tcp", "tcp6"):
            try:
                ports |= listening_ports(Path(f"/proc/net/{name}").read_text(), os.geteuid())
            except OSError:
                # A machine without IPv6 has no such file.
                continue
        wanted = ruleset(self._uids, ports, others)
        if wanted == self._installed:
            self._unchanged += 1
            if self._unchanged % _LOOK_EVERY or _is_there():
                return False
        self._installed = ""
        _nft(wanted)
        self._installed, self._unchanged = wanted, 0
        return True


def begin(offer: Offer) -> str:
    """Install the rules when a node or a service starts, if they are asked for; returns what holds, for people."""
    if offer.uids is None or not is_asked():
        return f"connections of jobs are not limited on this machine ({VARIABLE} is not set, or jobs have no users)"
    try:
        NetworkFilter(offer.uids).update()
    except NoNetworkRules as error:
        return f"no command of a job will run here: {VARIABLE} is true, and {error}"
    return f"connections of jobs are limited by the table {TABLE} of nftables"


def end() -> str:
    """Remove them when it ends; returns why they are still there, "" where they are not."""
    if not is_asked():
        return ""
    try:
        remove()
    except NoNetworkRules as error:
        return f"the table {TABLE} of nftables is still there: {error}"
    return ""


def remove() -> None:
    """Remove the rules; fine when there are none.  Raises NoNetworkRules."""
    _nft(f"add table inet {TABLE}\ndelete table inet {TABLE}\n")


def _is_there() -> bool:
    try:
        _run("list", "table", "inet", TABLE)
    except NoNetworkRules:
        return False
    return True


def _nft(script: str) -> None:
    _run("-f", "-", script=script)


def _run(*words: str, script: str = "") -> None:
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
