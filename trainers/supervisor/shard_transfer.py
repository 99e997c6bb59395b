"""Sends a worker's files of a checkpoint to the driver, when its machine goes before the storage would have them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from trainers.checkpoints.manifest import folder_name
from trainers.confined_folders import ConfinedFolder

#: Bytes that are sent at once, and how many such chunks are under way.
CHUNK_BYTES, CHUNKS_UNDER_WAY = 8 << 20, 3


@dataclass(frozen=True, kw_only=True)
class CheckpointShard:
    """One worker's files of one checkpoint."""

    rank: int
    step: int
    attempt: int
    generation: int
    size_bytes: int
    #: The checkpoint was asked for.
    asked: bool
    #: Which of the worker group's checkpoints of that step it is: 1, 2, ...
    take: int = 1
    #: By which agreement it was asked for; None: the script has not said.
    token: int | None = None

    @property
    def folder(self) -> str:
        """Name of the checkpoint's folder."""
        return folder_name(self.step, self.attempt, self.generation, self.take)

    @property
    def key(self) -> str:
        """Its unique name within the attempt."""
        return f"{self.step}-{self.generation}-{self.rank}-{self.take}"


def send(driver: Any, shard: CheckpointShard, folder: ConfinedFolder) -> bool:
    """Send every file of `folder` to the driver actor; False when it has no space or does not get all of them."""
    # Not at the top: `remora dev` runs a worker without Ray, which takes a second to import.
    import ray

    try:
        if not ray.get(driver.relay_offer.remote(shard)):
            return False
        under_way: deque[Any] = deque()
        for name, _ in folder.files():
            offset = 0
            with folder.open_file(name) as file:
                # An empty file is sent as one empty chunk.
                while (chunk := file.read(CHUNK_BYTES)) or offset == 0:
                    under_way.append(driver.relay_take.remote(shard, name, offset, chunk))
                    offset += len(chunk)
                    if len(under_way) >= CHUNKS_UNDER_WAY:
                        ray.get(under_way.popleft())
                    if not chunk:
                        break
        ray.get(list(under_way))
        return bool(ray.get(driver.relay_seal.remote(shard)))
    except (ray.exceptions.RayError, OSError, KeyError, ValueError):
        return False


def size_of(folder: ConfinedFolder) -> int:
    """Bytes of all files of a folder.  Raises OSError."""
    return sum(status.st_size for _, status in folder.files())
