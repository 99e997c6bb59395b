"""The values of an attempt's secrets on their way from the controller to the workers; they are written nowhere.

They travel as arguments of actor calls, cut into chunks.  Ray keeps what an actor is created with in its store, and
puts larger arguments into its object store, which it may spill to a disk; a small argument of a call travels in the
call itself (`task_rpc_inlined_bytes_limit` and `max_direct_call_object_size` of Ray's `ray_config_def.h`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

#: Bytes of a chunk: Ray passes arguments of less than 100 KiB in the call itself, and 10 MiB of them in one call.
CHUNK_BYTES = 48 << 10


def chunks_of(values: Mapping[str, str]) -> tuple[bytes, ...]:
    """The values by name as arguments of a call; none for no values."""
    if not values:
        return ()
    whole = json.dumps(values).encode()
    return tuple(whole[first : first + CHUNK_BYTES] for first in range(0, len(whole), CHUNK_BYTES))


def values_of(chunks: Sequence[bytes]) -> dict[str, str]:
    """The values by name that were cut into these chunks.  Raises ValueError where some are missing."""
    if not chunks:
        return {}
    values: dict[str, str] = json.loads(b"".join(chunks))
    return values
