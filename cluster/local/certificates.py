"""The certificates of one home's Ray cluster as files: its authority, the service's own, and one for each machine.

Whether the processes of a cluster speak TLS is a property of its head, and is decided when that starts: the authority
is written before, and all that joins or connects later finds it in the home.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.local.addresses import addresses_towards, head_address, heads_of
from cluster.local.folders import ClusterFolders
from cluster.provider import ProviderError
from cluster.ray.certificates import (
    AUTHORITY_FILE,
    MACHINE_DAYS,
    OWN_FILE,
    CertificateUnusable,
    Credentials,
    expires_at,
    issue,
    make_authority,
    names_of,
    parse_authority,
    tls_environment,
)

_DAY_S = 86_400.0
#: A process that starts later than this before its certificate's end gets another one.
_RENEWED_S = MACHINE_DAYS / 2 * _DAY_S
#: Names that a certificate of the service keeps.
_MOST_NAMES = 64
#: Days before the end of a head's certificate at which it is said.
SAID_DAYS = 30
_BY_UP = "`remora down` and `remora up` before that; jobs go on from their checkpoints"
#: Of an installation.
BY_RESTART = 'restart it before that, as docs/day-two.md says under "Each year"'


def uses_tls(home: Path) -> bool:
    """Whether processes of this home's Ray cluster speak TLS with each other."""
    return ClusterFolders(home.resolve()).authority.exists()


def begin(folders: ClusterFolders, *, encrypted: bool, clock: Callable[[], float] = time.time) -> None:
    """Decide it for a head that starts next, with the lock of the cluster held.

    An authority that is there goes on, unless it has expired.  Raises ProviderError when the files cannot be written.
    """
    try:
        if not encrypted:
            # The authority first: without it nothing is found, and what is left is nothing's.
            folders.authority.unlink(missing_ok=True)
            shutil.rmtree(folders.tls, ignore_errors=True)
            return
        folders.tls.mkdir(mode=0o700, exist_ok=True)
        path = folders.authority
        # A head's certificate must be good for its whole time.
        if not path.exists() or expires_at(path.read_bytes()) < clock() + MACHINE_DAYS * _DAY_S:
            (folders.tls / OWN_FILE).unlink(missing_ok=True)
            write_private(path, make_authority(clock()).joined())
    except CertificateUnusable as error:
        raise ProviderError(_unusable(path, error)) from error
    except OSError as error:
        raise ProviderError(f"the certificates of the Ray cluster cannot be written: {error}") from error


def machine_variables(
    folders: ClusterFolders, name: str, address: str, temporary: Path, clock: Callable[[], float] = time.time
) -> dict[str, str]:
    """Variables of a machine that is about to start, whose certificate is made here; none without TLS.

    Raises ProviderError when it cannot be made.
    """
    authority = _read(folders)
    if authority is None:
        return {}
    folder = folders.tls_of(temporary)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_files(folder, authority, issue(authority, name, [address], clock()))
    except CertificateUnusable as error:
        raise ProviderError(_unusable(folders.authority, error)) from error
    except OSError as error:
        raise ProviderError(f"the certificate of {name} cannot be written: {error}") from error
    return tls_environment(folder)


def own_environment(
    folders: ClusterFolders, addresses: Sequence[str] = (), clock: Callable[[], float] = time.time
) -> dict[str, str]:
    """Variables of a process that connects to the cluster from beside its head; none without TLS.

    Its certificate is made where there is none, and again in the second half of its time or when it does not name all
    addresses; what it named stays.  It names `addresses`, that of the local head, those of this machine and of the head
    that is known.  Raises ProviderError when it cannot be made.
    """
    authority = _read(folders)
    if authority is None:
        return {}
    own = folders.tls / OWN_FILE
    try:
        before = _names_of(own)
        named = [*addresses, *_addresses_of(folders)]
        if not set(named) <= set(before) or _end_of(own) < clock() + _RENEWED_S:
            named = list(dict.fromkeys((*named, *before)))[:_MOST_NAMES]
            write_files(folders.tls, authority, issue(authority, "remora service", named, clock()))
    except CertificateUnusable as error:
        raise ProviderError(_unusable(folders.authority, error)) from error
    except OSError as error:
        raise ProviderError(f"the certificate of the service cannot be written: {error}") from error
    return tls_environment(folders.tls)


def ends_soon(
    folders: ClusterFolders, temporary: Path, now: float, what: str = "the Ray head", how: str = _BY_UP
) -> str | None:
    """The sentence about a process of Ray whose certificate ends within SAID_DAYS, None for every other.

    `temporary` is its folder, and `how` says how it gets another one.  Ray reads a certificate once, when it starts:
    another file would change nothing for a process that runs.
    """
    end = _end_of(folders.tls_of(temporary) / OWN_FILE)
    left_s = end - now
    if not end or left_s > SAID_DAYS * _DAY_S or not folders.authority.exists():
        return None
    return (
        f"the certificate of {what} ends in {max(0.0, left_s / _DAY_S):.0f} days, and while it runs it takes no other:"
        f" {how}"
    )


def write_files(folder: Path, authority: Credentials, own: Credentials) -> None:
    """Write the files that `tls_environment` names, each at once and for their owner alone.  Raises OSError."""
    write_private(folder / AUTHORITY_FILE, authority.certificate)
    write_private(folder / OWN_FILE, own.joined())


def write_private(path: Path, content: bytes) -> None:
    """Replace a file by one that its owner alone can read, from its first byte on.  Raises OSError."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _end_of(own: Path) -> float:
    """When the certificate of a file expires, seconds since 1970; 0.0 where there is none, or a damaged one."""
    try:
        return expires_at(own.read_bytes())
    except (OSError, CertificateUnusable):
        return 0.0


def _names_of(own: Path) -> list[str]:
    """What the certificate of a file names; nothing where there is none, or a damaged one."""
    try:
        return names_of(own.read_bytes())
    except (OSError, CertificateUnusable):
        return []


def _addresses_of(folders: ClusterFolders) -> list[str]:
    """Where processes of the service on this machine are reached, and the heads that they know."""
    known = [one for head in heads_of(folders.address) for one in addresses_towards(head)]
    return [head_address(folders.home), *(one for one in known if _may_be_named(one))]


def _may_be_named(address: str) -> bool:
    return address.isascii() and address.isprintable() and len(address) <= 253


def _read(folders: ClusterFolders) -> Credentials | None:
    path = folders.authority
    try:
        return parse_authority(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProviderError(f"the authority of the Ray cluster cannot be read: {error}") from error
    except CertificateUnusable as error:
        raise ProviderError(_unusable(path, error)) from error


def _unusable(path: Path, error: CertificateUnusable) -> str:
    return f"{path} cannot be used: {error}; remove {path.parent} after `remora down`, and start again"


def main(words: Sequence[str] | None = None) -> int:
    """Make the authority of a home and a certificate for the machine of its head, and print the variables to set."""
    parser = argparse.ArgumentParser(prog="python -m cluster.local.certificates", description=main.__doc__)
    parser.add_argument("home", type=Path, help="home of the service (REMORA_HOME)")
    parser.add_argument("address", nargs="+", help="address or name of the head's machine, as nodes reach it")
    chosen = parser.parse_args(words)
    folders = ClusterFolders(chosen.home.resolve())
    if wrong := [one for one in chosen.address if not _may_be_named(one)]:
        print(f"error: {wrong[0][:80]!a} is no address and no host name", file=sys.stderr)
        return 2
    try:
        folders.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        begin(folders, encrypted=True)
        variables = own_environment(folders, chosen.address)
    except (ProviderError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
