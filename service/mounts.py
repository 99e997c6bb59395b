"""Whether the nodes of this cluster can mount inputs, so that a job that cannot start is refused at once."""

from __future__ import annotations

from remora.spec.spec import JobSpec
from service.settings import Settings
from trainers.inputs.mounts.mountable import why_no_mounts
from trainers.storage import Storage, StorageError
from trainers.storage_grants import is_brokered


class NoMounts(ValueError):
    """The nodes mount nothing; the message is one sentence."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        #: Where the specification asks for it.
        self.field = field


def check_mounts(settings: Settings, spec: JobSpec) -> None:
    """Raise NoMounts when a new job asks for a mount and the nodes of the cluster lack what that needs.

    A store that is a folder of the nodes needs nothing.  Nodes that are processes of this machine have its programs;
    machines of Azure have theirs by their own image, and one that lacks them ends the job with `start_failed`.
    """
    for name, one in spec.inputs.items():
        if one.mode != "mount" or one.store is None or settings.cloud == "azure":
            continue
        if _is_folder(settings.stores.get(one.store, "")):
            continue
        if settings.cloud == "kuberay":
            raise NoMounts(
                f"inputs.{name}.mode",
                "the nodes of this cluster are pods, which mount nothing for jobs; write mode: download",
            )
        why = why_no_mounts()
        if why is not None:
            raise NoMounts(
                f"inputs.{name}.mode",
                f"the nodes of this cluster cannot mount an input, as {why}; have operators install fuse3 on this"
                " machine, or write mode: download",
            )


def _is_folder(url: str) -> bool:
    try:
        return not is_brokered(url) and Storage(url).local_root is not None
    except StorageError:
        return False
