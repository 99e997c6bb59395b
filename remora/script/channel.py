"""The line protocol between a script's process and its supervisor (version 1).

Both ends write JSON objects, one per line, over one inherited stream socket whose number is in the environment
variable `REMORA_CHANNEL_FD`.  Every object has a `type`; unknown types and unknown keys are ignored, so that either end
may be newer.  Standard library only: a script's environment may hold nothing else.

Script to supervisor:

- `hello` `{version, pid}`: first message.
- `report` `{step, metrics, total_steps, again}`; `again`: another rank may have reported it, or died before it did.
- `batch` `{samples}`: samples of a step that the script's own configuration makes, where the job names none.
- `held` `{token, boundary}`: answer to `hold`; `boundary` counts the calls of `should_checkpoint()` so far.
- `checkpoint` `{step, room, folder, asked, token, generation}`: the folder of that name holds this rank's files of the
  checkpoint, of the worker group of that number (by default the present one); the script waits for `taken`.  It lies
  in the storage area `scratch` (the default; `REMORA_SCRATCH_DIR`) or `memory` (`REMORA_MEMORY_DIR`), named by `room`;
  an absolute path is accepted only when it lies in one of them.  `asked` is true when `should_checkpoint()` was true
  before it, and `token` then that of the `decide`.
- `saving` `{step}`: the script begins to write its files of that checkpoint, which may take long.
- `stalled` `{step, stall_s}`: the checkpoint of that step held this rank's training loop up for `stall_s` seconds.
- `refused` `{message}`: the script ends because it cannot train as its job describes it; trying again is of no use.
- `collectives` `{groups}`: answer to `dump`; which collective it began last in each process group, and whether it waits
  (`remora.script.collectives`).
- `profiled` `{token, steps}` or `{token, error}`: answer to `profile`; the compressed trace of `steps` steps lies in
  the storage area `scratch`, in the file that `remora.script.step_profiler.trace_name` names, or why there is none.
- `abandoned` `{step, generation}`: the script raised inside `checkpoint(step)`; there will be no files of the worker
  group of that number (by default the present one).

Supervisor to script:

- `hold` `{token}`: stop at the next boundary and wait for a decision.
- `decide` `{token, boundary}`: `should_checkpoint()` shall be true at that boundary, which no rank has passed yet.
- `release` `{token}`: forget the hold; a rank that waits for a planned end goes on, because it does not come.
- `taken` `{step, park}`: the files are safe with the supervisor; with `park` the script waits for its planned end.
- `dump` `{}`: say which collectives were begun last; no step has ended for long.
- `profile` `{token, steps, within_s, most_bytes}`: profile the next steps (`remora.script.step_profiler`), unless that
  is not done within these seconds.
- `preemption` `{deadline_at, reason}`: a machine of this job goes at that time (seconds since 1970); null withdraws it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

VERSION = 1
#: Environment variable that carries the number of the inherited socket.
FD_VARIABLE = "REMORA_CHANNEL_FD"
#: Bytes of one line; a longer one is a programming error and is dropped by the reader.
LINE_LIMIT = 1 << 20

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """One message as a line of bytes."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


class Decoder:
    """Turns received bytes into messages; what is not a JSON object with a `type` is dropped."""

    def __init__(self) -> None:
        self._rest = b""
        #: The line under way is longer than the limit: forget it up to its end.
        self._skips = False

    def feed(self, received: bytes) -> Iterator[Message]:
        """Messages completed by these bytes, in order."""
        *lines, rest = (self._rest + received).split(b"\n")
        for line in lines:
            message = None if self._skips else _parse(line)
            self._skips = False
            if message is not None:
                yield message
        self._skips = self._skips or len(rest) > LINE_LIMIT
        self._rest = b"" if self._skips else rest


def _parse(line: bytes) -> Message | None:
    if len(line) > LINE_LIMIT:
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and isinstance(message.get("type"), str) else None
