"""python -m cluster.node [FILE]: make this machine the node that FILE says, until Ray ends or SIGTERM comes.

It fetches the cluster's secret from the key vault with the machine's identity, waits for the node's name where the file
has none, and starts `ray start` and the node agent.  It ends with 0 after SIGTERM, with 2 when the file can never make
a node of this machine, and with 1 when Ray ended: then it is worth starting again.

RUNTIME_DIRECTORY names the folder for the secret, as systemd does; REMORA_RAY_FLAGS more flags of `ray start`;
REMORA_METADATA_URL another metadata service, such as the emulator's; REMORA_GPUS how many GPUs the agent looks for
where that is not what the file says, such as 0.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from cluster.azure.body import NODE_FILE, NodeFile, authority_name, secret_name
from cluster.node import node_processes
from cluster.node.agent.metadata import URL
from cluster.node.agent.naming import node_id
from cluster.node.boot import NodeFileUnusable, NodeRuntime, given_address, parse, start_of
from cluster.provider import InvalidRequest
from cluster.ray.addresses import address_towards
from cluster.ray.certificates import AUTHORITY_FILE, OWN_FILE, CertificateUnusable, issue, parse_authority
from remora import cgroups
from remora.isolation import sentence
from remora.machine_isolation import offered
from remora.network_filter import HeldRules
from remora.process_log import NODE_LINES, write_log

log = logging.getLogger("cluster.node")

#: Exit status when starting again would change nothing.
UNUSABLE = 2
RAY_ENDED = 1


def main(words: Sequence[str]) -> int:
    """Be a node; the exit status of the process."""
    parser = argparse.ArgumentParser(prog="python -m cluster.node", description=__doc__)
    parser.add_argument(
        "file", type=Path, nargs="?", default=Path(NODE_FILE), help=f"{NODE_FILE} unless given"
    )
    path: Path = parser.parse_args(words).file
    write_log("node", text=logging.Formatter(NODE_LINES))
    for chatty in ("azure", "httpx2", "msal"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    stopping = threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        return be_node(parse(path.read_text()), _runtime(), stopping)
    except NodeFileUnusable as error:
        return _give_up(f"{path} makes no node of this machine: {error}")
    except (OSError, UnicodeDecodeError) as error:
        return _give_up(f"{path} cannot be read, or its node cannot be started: {error}")


def be_node(node: NodeFile, runtime: NodeRuntime, stopping: threading.Event) -> int:
    """From the file to the end of Ray; the exit status.  Raises NodeFileUnusable."""
    token = _secret(node, secret_name(node.cluster), stopping)
    if not token:
        return 0
    _write(Path(runtime.token), token)
    log.info("the secret of the cluster %s has come", node.cluster)
    if node.tls:
        try:
            if not _certify(node, runtime, stopping):
                return 0
        except OSError as error:
            # The name of the head may be known later.
            log.error("no certificate can be made for the way to the head %s: %s", node.head, error)  # noqa: TRY400
            return RAY_ENDED
    log.info("%s", cgroups.walls().sentence)
    log.info("%s", sentence("auto", offered()))
    rules = HeldRules(offered())
    log.info("%s", rules.begin())
    name = node.node or node_id(runtime.metadata_url, stopping)
    if not name:
        return 0
    try:
        start = start_of(node, name, runtime)
    except InvalidRequest as error:
        raise NodeFileUnusable(str(error)) from error
    log.info("joining the Ray head %s as %s", node.head, name)
    try:
        status = node_processes.run(
            start.ray, start.agent, start.environment, Path(runtime.ray_pid), stopping
        )
    finally:
        if why := rules.end():
            log.warning("%s", why)
    if status is None:
        log.info("asked to end; Ray and the agent have ended")
        return 0
    log.error("Ray ended with %d", status)
    return RAY_ENDED


def _certify(node: NodeFile, runtime: NodeRuntime, stopping: threading.Event) -> bool:
    """Make this start's certificate, with the authority that the vault has; False when stopped before.

    The authority's key stays in the memory of this process.  Raises NodeFileUnusable.
    """
    text = _secret(node, authority_name(node.cluster), stopping)
    if not text:
        return False
    address = given_address(runtime.ray_flags) or address_towards(node.head)
    try:
        authority = parse_authority(text.encode())
        own = issue(authority, f"node {address}", [address], time.time())
    except CertificateUnusable as error:
        raise NodeFileUnusable(
            f"the secret {authority_name(node.cluster)} of the vault cannot be used: {error}"
        ) from error
    folder = Path(runtime.tls)
    _write(folder / AUTHORITY_FILE, authority.certificate.decode())
    _write(folder / OWN_FILE, own.joined().decode())
    log.info("the certificate of this node for %s is made", address)
    return True


def _secret(node: NodeFile, name: str, stopping: threading.Event) -> str:
    # Azure's clients take a third of a second to import: a file that is wrong is said without them.
    from cluster.node.vault import Vault, VaultUnusable

    try:
        vault = Vault(node.vault or "", node.identity_client_id)
        try:
            return vault.fetch(name, stopping)
        finally:
            vault.close()
    except VaultUnusable as error:
        raise NodeFileUnusable(str(error)) from error


def _write(path: Path, secret: str) -> None:
    """Write a file that its owner alone can read, from its first byte on."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secret)


def _runtime() -> NodeRuntime:
    gpus = os.environ.get("REMORA_GPUS", "")
    return NodeRuntime(
        python=sys.executable,
        run=Path(os.environ.get("RUNTIME_DIRECTORY") or "/run/remora"),
        metadata_url=os.environ.get("REMORA_METADATA_URL") or URL,
        ray_flags=shlex.split(os.environ.get("REMORA_RAY_FLAGS", "")),
        gpus=int(gpus) if gpus.isascii() and gpus.isdigit() else None,
    )


def _give_up(sentence: str) -> int:
    log.error("%s", sentence)
    return UNUSABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
