"""Puts the packages of the service into the wheel, in a folder of `remora`; hatchling calls this when it builds one.

They are no top-level packages there, so a script's own folder `service` or `trainers` never meets them.  An editable
installation gets nothing: it runs the checkout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: What `remora up` and `remora demo` need of the repository, and the folder of the wheel that it is in.
CONTENTS = ("service", "cluster", "trainers", "examples", "deploy/node")
FOLDER = "remora/_server"


class ServerPackages(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the files of CONTENTS to a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is written; `version` is `editable` for an editable installation."""
        if version == "editable":
            return
        root = Path(self.root)
        for content in CONTENTS:
            for path in sorted((root / content).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    name = path.relative_to(root).as_posix()
                    build_data["force_include"][str(path)] = f"{FOLDER}/{name}"
