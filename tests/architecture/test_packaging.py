"""What is installed: the wheel has one package, the service within it, and the lock names exact files."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import re
import sys
import tomllib
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import remora
from deploy.wheel_contents import CONTENTS, FOLDER
from tests.architecture.repository import PACKAGES, ROOT, sources, texts, tree_of
from tests.installed_wheel import build_wheel


def test_the_wheel_holds_the_public_package_and_the_service_within_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(tmp_path)) as archive:
        names = archive.namelist()
        metadata = archive.read(f"remora-{remora.__version__}.dist-info/METADATA").decode()
    info = f"remora-{remora.__version__}.dist-info"
    # No generic name of the service's is importable where it is installed.
    assert {name.split("/")[0] for name in names} == {"remora", info}
    server = tuple(f"{content}/" for content in CONTENTS)
    wanted = {name for name in texts() if name.startswith("remora/")}
    wanted |= {f"{FOLDER}/{name}" for name in texts() if name.startswith(server)}
    assert {name for name in names if name.startswith("remora/")} == wanted
    assert f"{FOLDER}/service/store/migrations/env.py" in names
    assert f"{info}/entry_points.txt" in names
    assert f"{info}/licenses/LICENSE" in names
    assert "License-Expression: Apache-2.0" in metadata
    # Type checkers of those who install it read its types.
    assert "remora/py.typed" in names


def test_everything_that_the_service_imports_is_declared() -> None:
    project = tomllib.loads(texts()["pyproject.toml"])["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["service"], *extras["azure"], *extras["deepspeed"]]
    names = {canonicalize_name(Requirement(one).name) for one in declared}
    # What they require themselves is there with them: starlette with FastAPI.
    needed = [line for name in sorted(names) for line in importlib.metadata.requires(name) or []]
    names |= {canonicalize_name(Requirement(line).name) for line in needed}
    of_import = importlib.metadata.packages_distributions()
    undeclared = {
        f"{path}: {module}"
        for path in sources(*PACKAGES)
        for module in imported(tree_of(path)) - set(sys.stdlib_module_names) - set(PACKAGES)
        if module in of_import and not names & {canonicalize_name(name) for name in of_import[module]}
    }
    assert undeclared == set()


def imported(tree: ast.Module) -> set[str]:
    """The top names of everything that a source imports, wherever it does."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_the_license_is_the_one_that_the_package_names_to_the_letter() -> None:
    project = tomllib.loads(texts()["pyproject.toml"])["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30", (
        "the text as it is published"
    )


def test_the_version_stands_in_one_more_place_only() -> None:
    project = tomllib.loads(texts()["pyproject.toml"])["project"]
    assert project["version"] == remora.__version__


def test_every_locked_requirement_is_exact_and_has_hashes() -> None:
    others = (texts()[f"requirements/{of}.txt"].partition("\n")[2] for of in ("deepspeed", "transformers"))
    lock = texts()["requirements/lock.txt"] + "".join(others)
    assert "://" not in lock
    requirements = re.sub(r"\\\n\s*", "", lock).strip().splitlines()
    loose = [
        line[:60]
        for line in requirements
        if not re.match(r"[a-z0-9.-]+(\[[\w,-]+\])?==[^ ]+ .*--hash=sha256:", line)
    ]
    assert loose == []


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads(texts()["pyproject.toml"])["project"]
    wanted = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    locked = set(
        re.findall(r"^([a-z0-9.-]+)(?:\[[\w,-]+\])?==", texts()["requirements/lock.txt"], re.MULTILINE)
    )
    for of in ("deepspeed", "transformers"):
        locked |= set(re.findall(r"^([a-z0-9.-]+)==", texts()[f"requirements/{of}.txt"], re.MULTILINE))
    names = {re.split(r"[\[<>=!~; ]", one)[0].lower().replace("_", "-") for one in wanted}
    assert names - locked - {"torch"} == set()


def test_no_page_says_to_install_what_no_index_has() -> None:
    extras = tomllib.loads(texts()["pyproject.toml"])["project"]["optional-dependencies"]
    for name, text in texts().items():
        if not name.startswith("tests/"):
            assert not re.search(r"pip install [\"']?remora\b", text), name
        for asked in re.findall(r"pip install \"CHECKOUT\[([\w,]+)\]", text):
            assert set(asked.split(",")) <= set(extras), name


def test_pytorch_is_pinned_in_one_place() -> None:
    pinned = [name for name, text in texts().items() if re.search(r"\btorch==[0-9]", text)]
    assert pinned == ["requirements/torch.txt"]
