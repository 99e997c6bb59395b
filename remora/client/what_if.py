"""What-if from the client's side: files become a request, and the request is followed to its answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from remora.client import requests
from remora.client.flows import Flow, Work
from remora.errors import ConfigurationError, RemoraError
from remora.views import WhatIf

#: Seconds that one request waits for a change.
_WAIT_S = 10.0


def what_if(
    traces: Sequence[str | Path],
    policies: Sequence[str | Path],
    seed: int,
    look_s: float,
    on_progress: Callable[[float], None] | None,
) -> Flow[WhatIf]:
    """Replay the traces under the policies and wait for the answer; a caller that stops waiting ends the replay."""
    body: dict[str, Any] = yield Work(lambda: _body(traces, policies))
    plan: WhatIf = yield requests.create_plan({**body, "seed": seed, "look_s": look_s})
    try:
        while not plan.terminal:
            plan = yield requests.get_plan(plan.id, _WAIT_S)
            if on_progress is not None:
                on_progress(plan.progress)
    except (RemoraError, GeneratorExit):
        raise
    except BaseException:  # Ctrl-C, or the task was cancelled: otherwise the replay would go on for no caller
        with contextlib.suppress(RemoraError):
            yield requests.cancel_plan(plan.id)
        raise
    return plan


def _body(traces: Sequence[str | Path], policies: Sequence[str | Path]) -> dict[str, Any]:
    documents = [_document(Path(policy)) for policy in policies]
    names = [document["name"] for document in documents]
    if len(set(names)) < len(names):  # the same name in two folders
        documents = [
            {**document, "name": str(path)} for document, path in zip(documents, policies, strict=True)
        ]
    return {"traces": [_trace(trace) for trace in traces], "policies": documents}


def _trace(trace: str | Path) -> dict[str, str]:
    """A file, or `OFFERING=FILE` for the spot availability of an offering.  Raises ConfigurationError."""
    offering, equals, file = str(trace).partition("=")
    if equals and not Path(trace).exists():
        return {**_document(Path(file)), "offering": offering}
    return _document(Path(trace))


def _document(path: Path) -> dict[str, str]:
    try:
        return {"name": path.name, "text": path.read_text(encoding="utf-8")}
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not a text file in UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
