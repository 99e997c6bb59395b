"""Files of a checkpoint that leave a machine before the storage has them: the driver keeps them, and stores them.

A worker whose machine goes sends its files in chunks to the driver, over the cluster's own network, which is faster
than most storages.  The driver writes them to its disk, and from there to the storage, whatever becomes of the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainers.checkpoints.catalog import Catalog
from trainers.confined_folders import ConfinedFolder, OutsideFolder
from trainers.node_folders import shared_folder
from trainers.storage import StorageError
from trainers.supervisor.shard_transfer import CheckpointShard

#: Bytes that stay free on the driver's disk.
_SPARE_BYTES = 1 << 30
#: Seconds that files may take from the driver's disk to the storage at the end of a worker group.
_FINISH_S = 900.0


@dataclass(eq=False)
class _Kept:
    shard: CheckpointShard
    #: Its name in the relay's own folder, and that folder, opened.
    name: str
    folder: ConfinedFolder
    received: int = 0


class Relay:
    """Shards of checkpoints on their way through the driver; touched on its event loop only.

    `deliver(shard, message)` gets what the worker itself would have reported: `shard` when the files are stored,
    `abandoned` when they cannot be, and before that `relayed`: the machine may go.
    """

    def __init__(self, deliver: Callable[[CheckpointShard, dict[str, Any]], None]) -> None:
        self.catalog: Catalog
        self._deliver = deliver
        #: What is being sent, by key.
        self._kept: dict[str, _Kept] = {}
        #: What is whole and being stored; its key may be sent again meanwhile, which is another shard.
        self._storing: dict[_Kept, asyncio.Task[None]] = {}
        self._root: ConfinedFolder | None = None
        #: Holds the root, so that a later process knows whether the root of a killed driver may be deleted.
        self._held = contextlib.ExitStack()
        self._count = 0

    def offer(self, shard: CheckpointShard) -> bool:
        """A worker wants to send files; False when the disk is full."""
        try:
            if self._root is None:
                path = self._held.enter_context(shared_folder(f"relay-{uuid.uuid4().hex}"))
                self._root = ConfinedFolder(path)
            promised = sum(one.shard.size_bytes - one.received for one in self._kept.values())
            if shutil.disk_usage(self._root.path).free - promised - shard.size_bytes < _SPARE_BYTES:
                return False
            self._drop_unsent(shard.key)
            self._count += 1
            name = str(self._count)
            self._root.make_folder(name)
            folder = self._root.subfolder(name)
        except OSError:
            return False
        self._kept[shard.key] = _Kept(shard, name, folder)
        return True

    async def take(self, shard: CheckpointShard, name: str, offset: int, chunk: bytes) -> None:
        """A chunk of a file (a relative POSIX path) at that offset.

        Raises KeyError when the shard was not offered, ValueError for what does not belong into it, OSError when the
        disk fails.
        """
        kept = self._kept[shard.key]
        size_bytes = kept.shard.size_bytes
        if not 0 <= offset <= size_bytes - len(chunk) or kept.received + len(chunk) > size_bytes:
            raise ValueError(f"more comes of {name[:200]!r} than the {size_bytes} bytes that were offered")
        try:
            await asyncio.to_thread(_write, kept.folder, name, offset, chunk)
        except OutsideFolder as error:
            raise ValueError(f"{name[:200]!r} is not a path inside a checkpoint: {error}") from error
        kept.received += len(chunk)

    def seal(self, shard: CheckpointShard) -> bool:
        """The worker has sent everything; True when it is all here, and will be stored."""
        kept = self._kept.pop(shard.key)
        if kept.received != shard.size_bytes:
            self._remove(kept)
            return False
        self._storing[kept] = asyncio.ensure_future(self._store(kept))
        self._deliver(shard, {"type": "relayed", **_names(shard)})
        return True

    async def finish(self) -> None:
        """Wait until everything that is here is stored; what is not whole by now is dropped."""
        for key in list(self._kept):
            self._drop_unsent(key)
        if self._storing:
            await asyncio.wait(list(self._storing.values()), timeout=_FINISH_S)

    def close(self) -> None:
        """Leave nothing on the disk."""
        for key in list(self._kept):
            self._drop_unsent(key)
        for kept in list(self._storing):
            self._remove(kept)
        if self._root is not None:
            self._root.close()
        self._held.close()

    async def _store(self, kept: _Kept) -> None:
        shard = kept.shard
        common = _names(shard)
        try:
            files = await asyncio.to_thread(
                self.catalog.put,
                kept.folder,
                shard.step,
                shard.attempt,
                shard.generation,
                shard.rank,
                shard.take,
            )
        except (StorageError, OSError) as error:
            text = f"the checkpoint of step {shard.step} could not be stored: {error}"
            self._deliver(shard, {"type": "log", "stream": "remora", "text": text})
            self._deliver(shard, {"type": "abandoned", **common})
        else:
            self._deliver(
                shard, {"type": "shard", "files": files, "asked": shard.asked, "token": shard.token, **common}
            )
        finally:
            self._storing.pop(kept, None)
            self._remove(kept)

    def _drop_unsent(self, key: str) -> None:
        """Forget what is not whole yet, if there is any; fine when there is not."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._remove(kept)

    def _remove(self, kept: _Kept) -> None:
        kept.folder.close()
        if self._root is not None:
            with contextlib.suppress(OSError):
                self._root.remove(kept.name)


def _names(shard: CheckpointShard) -> dict[str, Any]:
    """The fields of a message that identify its checkpoint."""
    return {"step": shard.step, "generation": shard.generation, "take": shard.take}


def _write(folder: ConfinedFolder, name: str, offset: int, chunk: bytes) -> None:
    with folder.open_to_write(name) as file:
        file.seek(offset)
        file.write(chunk)
