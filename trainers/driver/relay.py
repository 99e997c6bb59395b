"""Files of a checkpoint that leave a machine before the storage has them: the driver keeps them, and stores them.

A worker whose machine goes sends its files in chunks to the driver, over the cluster's own network, which is faster
than most storages.  The driver writes them to its disk, and from there to the storage, whatever becomes of the worker.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.checkpoints.catalog import Catalog
from trainers.storage import StorageError
from trainers.supervisor.code import work_root
from trainers.supervisor.parcels import Parcel

#: Bytes that stay free on the driver's disk.
_SPARE_BYTES = 1 << 30
#: Seconds that files may take from the driver's disk to the storage at the end of a worker group.
_FINISH_S = 900.0


@dataclass
class _Kept:
    parcel: Parcel
    folder: Path
    received: int = 0
    #: True once the worker has sent everything.
    is_whole: bool = False
    store: asyncio.Task[None] | None = None


class Relay:
    """Parcels on their way through the driver; touched on its event loop only.

    `deliver(parcel, message)` hears what the worker itself would have told: `shard` when the files are stored,
    `abandoned` when they cannot be, and before that `relayed`: the machine may go.
    """

    def __init__(self, deliver: Callable[[Parcel, dict[str, Any]], None]) -> None:
        self.catalog: Catalog
        self._deliver = deliver
        self._kept: dict[str, _Kept] = {}
        self._root: Path | None = None

    def offer(self, parcel: Parcel) -> bool:
        """A worker wants to send files; False when there is no room for them."""
        try:
            if self._root is None:
                self._root = Path(tempfile.mkdtemp(prefix="relay-", dir=work_root()))
            promised = sum(one.parcel.size_bytes - one.received for one in self._kept.values())
            if shutil.disk_usage(self._root).free - promised - parcel.size_bytes < _SPARE_BYTES:
                return False
            self._drop(parcel.key)
            folder = self._root / parcel.key
            folder.mkdir()
        except OSError:
            return False
        self._kept[parcel.key] = _Kept(parcel, folder)
        return True

    async def take(self, parcel: Parcel, name: str, offset: int, chunk: bytes) -> None:
        """A piece of a file (a relative POSIX path) at that offset.

        Raises KeyError when the parcel was not offered, ValueError for a path outside its folder, OSError when the disk
        fails.
        """
        kept = self._kept[parcel.key]
        path = (kept.folder / name).resolve()
        if not path.is_relative_to(kept.folder.resolve()) or path == kept.folder.resolve():
            raise ValueError(f"{name!r} is not a path inside a checkpoint")
        await asyncio.to_thread(_write, path, offset, chunk)
        kept.received += len(chunk)

    def seal(self, parcel: Parcel) -> bool:
        """The worker has sent everything; True when it is all here, and will be stored."""
        kept = self._kept[parcel.key]
        if kept.received != parcel.size_bytes:
            self._drop(parcel.key)
            return False
        kept.is_whole = True
        kept.store = asyncio.ensure_future(self._store(kept))
        self._deliver(parcel, {"type": "relayed", "step": parcel.step, "generation": parcel.generation})
        return True

    async def finish(self) -> None:
        """Wait until everything that is here is stored; what is not whole by now is dropped."""
        for key in [key for key, one in self._kept.items() if not one.is_whole]:
            self._drop(key)
        under_way = [one.store for one in self._kept.values() if one.store is not None]
        if under_way:
            await asyncio.wait(under_way, timeout=_FINISH_S)

    def close(self) -> None:
        """Leave nothing on the disk."""
        for key in list(self._kept):
            self._drop(key)
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)

    async def _store(self, kept: _Kept) -> None:
        parcel = kept.parcel
        common = {"step": parcel.step, "generation": parcel.generation}
        try:
            files = await asyncio.to_thread(
                self.catalog.put, kept.folder, parcel.step, parcel.attempt, parcel.generation, parcel.rank
            )
        except (StorageError, OSError) as error:
            text = f"the checkpoint of step {parcel.step} could not be stored: {error}"
            self._deliver(parcel, {"type": "log", "stream": "remora", "text": text})
            self._deliver(parcel, {"type": "abandoned", **common})
        else:
            self._deliver(parcel, {"type": "shard", "files": files, "asked": parcel.asked, **common})
        finally:
            self._drop(parcel.key)

    def _drop(self, key: str) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            shutil.rmtree(kept.folder, ignore_errors=True)


def _write(path: Path, offset: int, chunk: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if path.exists() else "wb") as file:
        file.seek(offset)
        file.write(chunk)
