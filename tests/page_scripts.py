"""Pure functions of the page's scripts, called in Node.js."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.needed import is_missing

WEB = Path(__file__).parents[1] / "service" / "web"
#: Answers each line, the name of a function and its arguments in JSON, with the value in JSON.
RUNNER = """
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
const text = readFileSync(process.argv[1], "utf8");
const script = await import("data:text/javascript;base64," + Buffer.from(text).toString("base64"));
for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...values] = JSON.parse(line);
  process.stdout.write(JSON.stringify(script[name](...values)) + "\\n");
}
"""


class Script:
    """A script of the page without imports."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def call(self, name: str, *values: Any) -> Any:
        """The value of one of its functions."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, *values]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def page_script(name: str) -> Iterator[Script]:
    """A script that runs in a process of its own."""
    node = shutil.which("node")
    if node is None:
        is_missing("the scripts of the page need Node.js: apt-get install nodejs")
    words = [node, "--input-type=module", "--eval", RUNNER, str(WEB / name)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Script(process)
        finally:
            process.kill()
