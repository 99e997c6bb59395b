"""What runs once on each node of a cluster that Remora did not start: a look before the first job, and a last sweep.

Ray makes these tasks of the packages that were brought to the node, so nothing but the standard library is imported
before they run.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import tempfile
from pathlib import Path

#: What a driver and a worker import first.
_NEEDED = ("trainers.driver.driver", "trainers.supervisor.worker_process")
#: Characters of what one look says.
_MOST = 300


def look_at_node(storage_url: str, name: str, content: bytes) -> dict[str, str]:
    """What this node lacks; `name` is a file with `content` that the service wrote into its storage.

    Keys are those of `cluster.existing.sentences.NodeFacts`; values are empty where nothing is wrong.
    """
    found = {"python": platform.python_version(), "lacks": _lacks(), "storage": "", "isolation": ""}
    if found["lacks"]:
        return found
    from remora.machine_isolation import offered

    found["storage"] = _storage(storage_url, name, content)
    offer = offered()
    found["isolation"] = "" if offer.uids is not None else offer.why_not[:_MOST]
    return found


def sweep_existing_node() -> None:
    """Remove what supervisors have left on this node, and the folder in which they worked."""
    from remora.private_files import is_private
    from trainers.node_folders import work_root
    from trainers.supervisor.node_sweep import sweep_node
    from trainers.supervisor.temporary_folders import temporary_root

    sweep_node()
    with contextlib.suppress(OSError):  # it is not empty while another Remora of this machine uses it
        temporary_root().rmdir()
    root = work_root()
    # One that the cluster's own operator named is theirs, and what is locked is used by another Remora of this machine.
    is_usual = root.parent == Path(tempfile.gettempdir()) and is_private(root)
    if is_usual and not any(root.glob("*.lock")):
        shutil.rmtree(root, ignore_errors=True)


def _lacks() -> str:
    from importlib import import_module

    for module in _NEEDED:
        try:
            import_module(module)
        except Exception as error:  # an import may raise anything
            return f"{type(error).__name__}: {error}"[:_MOST]
    return ""


def _storage(url: str, name: str, content: bytes) -> str:
    from trainers.storage import Storage, StorageError

    try:
        read = Storage(url).read_bytes(name)
    except FileNotFoundError:
        return "what the service wrote there is missing"
    except (StorageError, OSError) as error:
        return str(error)[:_MOST]
    return "" if read == content else "there is something else under the same name"
