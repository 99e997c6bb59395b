"""The command line, run in the process of a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import remora
from remora.cli.main import run

#: Where `python -m remora` finds the package.
ROOT = Path(remora.__file__).parent.parent


class Cli:
    """Runs commands, all of which begin with the words of `prefix`, in this process and keeps what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *prefix: str) -> None:
        self.capsys = capsys
        self._prefix = prefix
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run([*self._prefix, *arguments])
        self.out, self.err = self.capsys.readouterr()
        assert "Traceback" not in self.err
        return int(ended.value.code or 0)

    @property
    def json(self) -> Any:
        return json.loads(self.out)
