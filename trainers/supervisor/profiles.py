"""Has a worker's script profile its next steps, and stores the trace."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from remora.script import channel
from remora.script.step_profiler import MOST_TRACE_BYTES, trace_name
from trainers.confined_folders import ConfinedFolder
from trainers.plan import AttemptPlan
from trainers.profiles import MOST_BYTES, profile_name
from trainers.storage import Storage, StorageError
from trainers.supervisor.disk_watch import Spared
from trainers.supervisor.redacted_messages import Messages

#: Seconds that the end of a worker waits for its trace.
_STORED_WITHIN_S = 10.0
_NOT_STARTED = "its command was not started yet"
_NO_LIBRARY = (
    "its script does not use Remora's library, which knows when a step ends: let it call training.report(step) of"
    " remora.training after each step, or train with remora.torch"
)


class Script(Protocol):
    """The command of a worker."""

    def send(self, message: channel.Message) -> None:
        """Send its script a message."""


class WorkerProfiles:
    """The profiles of one worker, one at a time; `clean` takes values of secrets out of a text."""

    def __init__(
        self,
        plan: AttemptPlan,
        open_storage: Callable[[str], Storage],
        outbox: Messages,
        clean: Callable[[str], str],
    ) -> None:
        self._plan = plan
        self._open_storage = open_storage
        self._outbox = outbox
        self._clean = clean
        #: Names the profile that the script was asked for last and has not answered; None: there is none.
        self._token: str | None = None
        self._uses_library = False
        self._scratch: ConfinedFolder | None = None
        self._folder: Path | None = None
        #: Names the profile whose trace may be on the disk.
        self._traced: str | None = None
        self._upload: threading.Thread | None = None

    def open(self, scratch: Path) -> None:
        """Take traces that the script writes in `scratch`; before it runs.  Raises OSError."""
        self._scratch, self._folder = ConfinedFolder(scratch), scratch

    def spared(self) -> Spared | None:
        """The trace that the script was asked for, as it is written and then compressed: its job did not want it."""
        token, folder = self._traced, self._folder
        if token is None or folder is None:
            return None
        return Spared(folder, trace_name(token).removesuffix(".gz"), MOST_TRACE_BYTES + MOST_BYTES)

    def close(self) -> None:
        """Take nothing more."""
        if self._scratch is not None:
            self._scratch.close()

    def join(self) -> None:
        """Wait until a trace that was taken is stored, or cannot be; not for long, as the end of a worker waits."""
        if self._upload is not None:
            self._upload.join(_STORED_WITHIN_S)

    def note_library(self) -> None:
        """The script has opened its channel."""
        self._uses_library = True

    def ask(self, script: Script | None, message: channel.Message) -> None:
        """The driver asks for a profile, `{token, steps, within_s}`."""
        token = str(message["token"])
        if script is None or not self._uses_library:
            self._fail(token, _NOT_STARTED if script is None else _NO_LIBRARY)
            return
        self._token = self._traced = token
        script.send({**message, "most_bytes": MOST_BYTES})

    def receive(self, message: channel.Message) -> None:
        """The script has answered; an answer to no question is left out."""
        token, self._token = self._token, None
        if token is None or message.get("token") != token:
            self._token = token
        elif "error" in message:
            # There is no trace.
            self._traced = None
            self._fail(token, str(message["error"]))
        else:
            steps = message.get("steps")
            count = steps if isinstance(steps, int) and 0 < steps < 1 << 31 else 0
            self._upload = threading.Thread(
                target=self._take, args=(token, count), name="profile", daemon=True
            )
            self._upload.start()

    def _take(self, token: str, steps: int) -> None:
        try:
            self._store(token, steps)
        finally:
            if self._traced == token:
                self._traced = None

    def _store(self, token: str, steps: int) -> None:
        try:
            content = self._content(trace_name(token))
            name = profile_name(self._plan.job_id, token)
            self._open_storage(self._plan.checkpoint_url).write_bytes(name, content)
        except (OSError, StorageError) as error:
            self._fail(token, f"its trace could not be stored: {error}")
            return
        digest = hashlib.sha256(content).hexdigest()
        stored = {"steps": steps, "size_bytes": len(content), "sha256": digest}
        self._outbox.put({"type": "profile", "token": token, **stored})

    def _content(self, name: str) -> bytes:
        """A file of the scratch folder, which is removed.  Raises OSError for one that is too large, or none."""
        assert self._scratch is not None
        try:
            with self._scratch.open_file(name) as opened:
                content = opened.read(MOST_BYTES + 1)
        finally:
            with contextlib.suppress(OSError):
                self._scratch.remove(name)
        if len(content) > MOST_BYTES:
            raise OSError(f"it has more than {MOST_BYTES} bytes, compressed: ask for fewer steps")
        return content

    def _fail(self, token: str, why: str) -> None:
        self._outbox.put({"type": "profile", "token": token, "error": self._clean(why)[:500]})
