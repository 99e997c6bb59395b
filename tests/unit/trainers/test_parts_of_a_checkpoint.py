"""Files of a sharded model are divided among the nodes of a worker group, and all others are on every node."""

from __future__ import annotations

from collections import Counter

import pytest

from trainers.checkpoints.manifest import Manifest, ShardFile
from trainers.checkpoints.parts import files_of_node

OTHERS = {"remora.pt", "remora-00001-of-00002.safetensors", "notes/sharded-00001-of-00004.safetensors"}


def manifest_of(names: set[str]) -> Manifest:
    files = tuple(ShardFile(name=name, size_bytes=1, sha256="", rank=0) for name in sorted(names))
    return Manifest(
        job_id="job_1", step=1, attempt=1, generation=1, world_size=1, committed_at=0.0, files=files
    )


@pytest.mark.parametrize("nodes", [1, 2, 3, 7])
@pytest.mark.parametrize("written", [0, 1, 4, 5, 12])
def test_each_file_of_blocks_is_fetched_by_one_node(written: int, nodes: int) -> None:
    blocks = {f"sharded-{rank + 1:05d}-of-{written:05d}.safetensors" for rank in range(written)}
    found = [files_of_node(manifest_of(blocks | OTHERS), node, nodes) for node in range(nodes)]
    counts = Counter(name for one in found for name in one)
    assert {name for name in counts if counts[name] == nodes} >= OTHERS
    assert {name: counts[name] for name in blocks} == dict.fromkeys(blocks, 1)
    sizes = [len(one - OTHERS) for one in found]
    assert max(sizes) - min(sizes) <= 1


def test_a_node_fetches_what_its_own_ranks_wrote_where_the_nodes_are_the_same() -> None:
    names = [f"sharded-{rank + 1:05d}-of-00004.safetensors" for rank in range(4)]
    assert files_of_node(manifest_of(set(names)), 0, 2) == set(names[:2])
    assert files_of_node(manifest_of(set(names)), 1, 2) == set(names[2:])
