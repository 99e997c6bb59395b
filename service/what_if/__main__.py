"""A replay in a process of its own: the question on standard input, lines of JSON on standard output.

The lines are one of `accepted`, `refused` or `unreadable`, then any number of `progress`, then `answer`.  Replays keep
a core busy for up to a minute, which would stand in the way of every request if they ran inside the API.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from functools import partial
from typing import Any, TextIO

from cluster.scheduling.installed_rules import load_rules
from service.what_if.answer import answer
from service.what_if.question import Refused, read_question

#: Seconds between two lines of progress.
REPORT_S = 0.5


def main() -> int:
    """Answer one question."""
    os.nice(5)  # requests and training come first
    say = partial(_say, sys.stdout)
    try:
        body = json.loads(sys.stdin.buffer.read())
    except (ValueError, RecursionError) as error:
        say({"unreadable": f"the body is not JSON: {' '.join(str(error).split())[:200]}"})
        return 0
    try:
        question = read_question(body)
    except Refused as error:
        say({"refused": {"field": error.field, "message": str(error)}})
        return 0
    say({"accepted": {"jobs": len(question.trace.jobs), "policies": list(question.policies)}})
    reported_at = time.monotonic()

    def progress(part: float) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= REPORT_S:
            reported_at = time.monotonic()
            say({"progress": round(part, 4)})

    with contextlib.redirect_stdout(sys.stderr):  # a site's own rule may print, which is none of our lines
        found = answer(question, progress, load_rules)
    say({"answer": found})
    return 0


def _say(out: TextIO, line: dict[str, Any]) -> None:
    print(json.dumps(line), file=out, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
