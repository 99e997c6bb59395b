"""Profiles some steps of a script with PyTorch's profiler, when its supervisor asks for it.

Standard library only: PyTorch is used where the script has imported it.  The profiler is started and stopped by the
script's own thread between two steps, and nothing that it raises reaches the script.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remora.script import channel

#: Seconds after which the step under way is the last one that is profiled: a trace grows with the time, too.
MOST_S = 60.0
#: Bytes of a trace before it is compressed, and read at once.
MOST_TRACE_BYTES, _CHUNK = 1 << 30, 1 << 20
#: Bytes on the disk that are left free for the script.
_FREE_BYTES = 2 << 30


#: Two profilers at a time end a process.
_USES_IT = "its script uses PyTorch's profiler itself"


@dataclass(frozen=True)
class _Request:
    """Which steps are profiled for whom."""

    #: Names the request, and the file of its trace.
    token: str
    steps: int
    #: When its supervisor stops waiting for it, by `time.monotonic`.
    until: float
    #: Of the compressed trace.
    most_bytes: int

    @classmethod
    def from_message(cls, message: channel.Message, now: float) -> _Request:
        """Raises KeyError, TypeError or ValueError for a malformed message."""
        token = str(message["token"])
        if not token.isalnum():
            raise ValueError("a token is letters and digits")
        steps, within_s = int(message["steps"]), float(message["within_s"])
        return cls(
            token=token, steps=max(1, steps), until=now + within_s, most_bytes=int(message["most_bytes"])
        )


@dataclass
class _Profile:
    """A profile under way."""

    request: _Request
    profiler: Any
    #: The thread whose steps count.
    thread: int
    began_at: float
    steps: int = 0
    has_ended: threading.Event = field(default_factory=threading.Event)


class TraceTooLarge(Exception):
    """The trace has more bytes than may be stored; the message says what to do."""


class StepProfiler:
    """Profiles the steps of one process; `send` writes a message to its supervisor."""

    def __init__(self, send: Callable[[channel.Message], None]) -> None:
        self._send = send
        self._asked: _Request | None = None
        self._profile: _Profile | None = None

    def ask(self, message: channel.Message) -> None:
        """Profile the next steps; a later request replaces an earlier one.  Called by the channel's own thread.

        Raises KeyError, TypeError or ValueError for a malformed message.
        """
        self._asked = _Request.from_message(message, time.monotonic())

    def step_ended(self) -> None:
        """The script's thread is between two steps."""
        if self._asked is None and self._profile is None:
            return
        try:
            self._go_on(time.monotonic())
        except Exception as error:
            self._refuse(error)

    def _go_on(self, now: float) -> None:
        profile, asked = self._profile, self._asked
        if profile is not None:
            if profile.thread != threading.get_ident():
                return
            profile.steps += 1
            is_wanted = asked is None and now < profile.request.until
            if is_wanted and profile.steps < profile.request.steps and now - profile.began_at < MOST_S:
                return
            profile.profiler.__exit__(None, None, None)
            self._profile = None
            profile.has_ended.set()
            if is_wanted:
                # Not a daemon: a script whose last step it was ends once its trace is there.
                threading.Thread(target=self._deliver, args=(profile,), name="remora-profile").start()
        elif asked is not None:
            self._asked = None
            if now < asked.until:
                try:
                    self._begin(asked, now)
                except Exception as error:
                    self._refuse(error, asked.token)

    def _begin(self, request: _Request, now: float) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            self._fail(request.token, "its script has not imported PyTorch, whose profiler makes the trace")
            return
        if torch.autograd.profiler._is_profiler_enabled or _one_warms_up(torch.autograd.profiler.profile):
            self._fail(request.token, _USES_IT)
            return
        profiler = _profiler_of(torch)
        self._profile = _Profile(request, profiler, threading.get_ident(), now)
        _before_others(type(profiler), self._give_way)
        profiler.__enter__()

    def _give_way(self, profiler: object) -> None:
        """The script is about to start a profiler itself."""
        profile = self._profile
        if profile is None or profiler is profile.profiler:
            return
        if profile.thread != threading.get_ident():
            # It can be ended by its own thread alone, which does so after this step.
            profile.steps = profile.request.steps
            profile.has_ended.wait(MOST_S)
            return
        self._profile = None
        try:
            profile.profiler.__exit__(None, None, None)
        except Exception as error:
            self._refuse(error, profile.request.token)
            return
        self._fail(profile.request.token, _USES_IT)

    def _refuse(self, error: Exception, token: str | None = None) -> None:
        """The profiler does not work here, as while the script uses it itself."""
        profile, self._profile = self._profile, None
        if profile is not None:
            token = token or profile.request.token
            profile.has_ended.set()
        self._fail(token, f"PyTorch's profiler failed: {error}")

    def _fail(self, token: str | None, text: str) -> None:
        self._send({"type": "profiled", "token": token, "error": " ".join(text.split())[:500]})

    def _deliver(self, profile: _Profile) -> None:
        """Write the trace, compressed, where the supervisor finds it by its name."""
        request, folder = profile.request, Path(os.environ.get("REMORA_SCRATCH_DIR", ""))
        packed = folder / trace_name(request.token)
        raw = packed.with_suffix("")
        try:
            if shutil.disk_usage(folder).free < MOST_TRACE_BYTES + _FREE_BYTES:
                raise OSError("the disk of its node has too little space for a trace")  # noqa: TRY301
            try:
                profile.profiler.export_chrome_trace(str(raw))
                compress(raw, packed, request.most_bytes)
            finally:
                with contextlib.suppress(OSError):
                    raw.unlink(missing_ok=True)
        except TraceTooLarge as error:
            packed.unlink(missing_ok=True)
            self._fail(request.token, str(error))
        except Exception as error:
            packed.unlink(missing_ok=True)
            self._fail(request.token, f"its trace could not be written: {error}")
        else:
            self._send({"type": "profiled", "token": request.token, "steps": profile.steps})


def _profiler_of(torch: Any) -> Any:
    """The profiler of operators and GPU kernels, without what `torch.profiler` imports for seconds when it starts."""
    gpus = {"use_device": "cuda"} if torch.cuda.is_available() else {}
    return torch.autograd.profiler.profile(use_kineto=True, **gpus)


def _one_warms_up(kind: Any) -> bool:
    """Whether the script has prepared a profiler of this kind that has not ended: a second one would end the process.

    PyTorch does not say so itself before one has started to record.
    """
    known = (one for one in gc.get_objects() if issubclass(type(one), kind))
    return any(one.entered and one.kineto_results is None for one in known)


def _before_others(kind: Any, act: Callable[[object], None]) -> None:
    """Have every profiler of this kind call `act` before it starts."""
    if getattr(kind, "_remora_act", None) is None:
        prepare = kind._prepare_trace

        def prepare_trace(self: Any) -> None:
            kind._remora_act(self)
            prepare(self)

        kind._prepare_trace = prepare_trace
    kind._remora_act = staticmethod(act)


def trace_name(token: str) -> str:
    """The file of a trace in the scratch folder of its worker."""
    return f"profile-{token}.json.gz"


def compress(raw: Path, packed: Path, most_bytes: int) -> None:
    """Write `raw` as a gzip file of `most_bytes` bytes at most.  Raises TraceTooLarge and OSError."""
    size, written = raw.stat().st_size, 0
    if size > MOST_TRACE_BYTES:
        raise TraceTooLarge(_too_large(size, MOST_TRACE_BYTES, "before it is compressed"))
    # 16: with gzip's header (https://docs.python.org/3/library/zlib.html#zlib.compressobj).
    packer = zlib.compressobj(level=6, wbits=16 + zlib.MAX_WBITS)
    with raw.open("rb") as source, packed.open("wb") as target:
        while chunk := source.read(_CHUNK):
            written += target.write(packer.compress(chunk))
            if written > most_bytes:
                break
        written += target.write(packer.flush())
    if written > most_bytes:
        raise TraceTooLarge(_too_large(written, most_bytes, "compressed"))


def _too_large(size: int, most: int, when: str) -> str:
    return f"its trace has at least {size} bytes {when}, and may have {most}: ask for fewer steps"
