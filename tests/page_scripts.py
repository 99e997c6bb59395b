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
#: Answers each line, the name of a function and its arguments or of a constant in JSON, with its value and a count.
RUNNER = """
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
const text = readFileSync(process.argv[1], "utf8");
const script = await import("data:text/javascript;base64," + Buffer.from(text).toString("base64"));
for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...values] = JSON.parse(line);
  let reads = 0;
  // Lists that are handed over count how often an entry of theirs is read.
  const isEntry = (key) => typeof key === "string" && /^\\d+$/.test(key);
  const counting = { get: (list, key) => { reads += Number(isEntry(key)); return list[key]; } };
  const given = values.map((value) => (Array.isArray(value) ? new Proxy(value, counting) : value));
  const value = typeof script[name] === "function" ? script[name](...given) : script[name];
  process.stdout.write(JSON.stringify([value, reads]) + "\\n");
}
"""


class Script:
    """A script of the page without imports."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def call(self, name: str, *values: Any) -> Any:
        """The value of one of its functions."""
        return self._answer(name, *values)[0]

    def value(self, name: str) -> Any:
        """A constant that it exports."""
        return self._answer(name)[0]

    def reads(self, name: str, *values: Any) -> int:
        """How often one of its functions reads an entry of a list that it gets."""
        return int(self._answer(name, *values)[1])

    def _answer(self, name: str, *values: Any) -> Any:
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
