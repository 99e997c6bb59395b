"""Which files of a checkpoint a node fetches: those of a sharded model are divided among the nodes (pure).

The scripts of `remora.torch.sharded` read each file of blocks on one node and exchange what they need
(`remora/torch/sharded/checkpoint_parts.py`).  Every other file is fetched on every node.
"""

from __future__ import annotations

import re

from trainers.checkpoints.manifest import Manifest

#: A file of blocks; `remora/torch/sharded/checkpoint_io.py` names it.
_BLOCKS = re.compile(r"sharded-(\d{5})-of-(\d{5})\.safetensors")


def files_of_node(manifest: Manifest, node: int, nodes: int) -> frozenset[str]:
    """Names of the files that node number `node` of `nodes` needs.

    Files of blocks are divided in their order, as their ranks were over the nodes: where a worker group starts again
    on the nodes that it had, each node gets what it has written, and may still have.
    """
    blocks = sorted(file.name for file in manifest.files if _BLOCKS.fullmatch(file.name))
    own = {name for place, name in enumerate(blocks) if place * nodes // len(blocks) == node}
    return frozenset(file.name for file in manifest.files if file.name in own or file.name not in blocks)
