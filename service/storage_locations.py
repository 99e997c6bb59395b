"""Where checkpoints and outputs may lie: in the service's storage, and in the stores that its operators have named.

A job names a store and never says where it is: whatever a URL leads to is opened with the service's own identity.
"""

from __future__ import annotations

import contextlib

from service.azure_storage import azure_account, azure_place, filesystem_options
from service.private_home import close_to_others
from service.settings import Settings
from trainers.confined_folders import OutsideFolder, parts_of
from trainers.storage import Storage, StorageError
from trainers.storage_grants import is_brokered

#: Where a specification names one.
FIELD = "checkpoint.store"


class UnknownStore(ValueError):
    """A job asks for a store that operators have not named, or not any more; the message is one sentence."""


def url_of(settings: Settings, store: str | None) -> str:
    """Where a job's checkpoints lie; None stands for the service's own storage.  Raises UnknownStore.

    Jobs that an older version accepted may say a URL: it has to be that of a named store.
    """
    if store is None:
        return settings.storage
    if store in settings.stores:
        return settings.stores[store]
    for url in settings.stores.values():
        if store.rstrip("/") == url.rstrip("/"):
            return url
    raise UnknownStore(_unknown(settings, store))


def check_name(settings: Settings, store: str | None) -> None:
    """Raise UnknownStore when a new job asks for what is no name of a store."""
    if store is not None and store not in settings.stores:
        raise UnknownStore(_unknown(settings, store))


def _unknown(settings: Settings, store: str) -> str:
    known = ", ".join(sorted(settings.stores)[:20])
    there_are = f"there are: {known}" if known else "there is none yet (REMORA_STORES)"
    if "/" in store or ":" in store:
        return f"{store[:80]!a} given, expected the name of a store; operators say where it lies, and {there_are}"
    return f"there is no store {store[:80]!a}; operators name them, and {there_are}"


def open_storage(settings: Settings, url: str) -> Storage:
    """A storage of the service, opened with the service's own credential.  Raises StorageError."""
    place = azure_place(url)
    if place is None:
        return Storage(url)
    account = azure_account(place, settings.storage_credentials)
    return Storage(url, options=filesystem_options(account))


def close_folders(settings: Settings) -> None:
    """Take other users' rights on the folders of jobs and their code in storages that are folders of this machine.

    A store is an operator's: what else is in it may be for others.
    """
    for url in (settings.storage, *settings.stores.values()):
        with contextlib.suppress(StorageError):
            root = None if is_brokered(url) else Storage(url).local_root
            if root is not None:
                own = (root,) if url == settings.storage else ()
                for folder in (*own, root / "jobs", root / "bundles"):
                    close_to_others(folder)


def open_location(settings: Settings, location: str) -> Storage:
    """The folder of a checkpoint or of outputs, which is in a storage of the service.  Raises UnknownStore.

    Locations come from drivers, and from times when jobs said URLs.
    """
    for url in (settings.storage, *settings.stores.values()):
        # A store that cannot be opened is passed over: what lies in it cannot be read anyway.
        with contextlib.suppress(StorageError, OutsideFolder):
            jobs = open_storage(settings, url).location("jobs")
            if location.startswith(f"{jobs}/"):
                parts_of(location.removeprefix(f"{jobs}/"))
                return open_storage(settings, location)
    raise UnknownStore(
        "it lies in no storage that the service knows now; operators name them in REMORA_STORES"
    )
