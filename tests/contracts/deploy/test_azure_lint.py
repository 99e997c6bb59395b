"""The Bicep of deploy/azure by what others made to read it: pycep-parser, which checks our compiler, and checkov."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.repository import ROOT
from tests.needed import is_missing

FOLDER = ROOT / "deploy/azure"
PROGRAMS = ROOT / ".venv-checkov/bin"
#: Prints what the parser sees of each file: names with their types, versions, conditions.
READ = """
import json, sys
from pathlib import Path
from pycep import BicepParser
print(json.dumps({path: BicepParser().parse(file_path=Path(path)) for path in sys.argv[1:]}, default=str))
"""
pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def programs() -> Path:
    made = subprocess.run(["make", "checkov"], cwd=ROOT, capture_output=True, text=True)
    if made.returncode != 0:
        is_missing(f"checkov cannot be installed here: {made.stderr.strip().splitlines()[-1:]}")
    return PROGRAMS


@pytest.fixture(scope="module")
def parsed(programs: Path) -> dict[str, Any]:
    files = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.bicep"))
    done = subprocess.run(
        [programs / "python", "-c", READ, *files], cwd=FOLDER, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def templates(document: dict[str, Any], path: str, parsed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The compiled template of each file, by the file's name."""
    found = {path: document}
    for name, module in parsed[path].get("modules", {}).items():
        inner = document["resources"][name]["properties"]["template"]
        file = (Path(path).parent / module["detail"]["full"]).as_posix()
        found |= templates(inner, file, parsed)
    return found


def variables_of(template: dict[str, Any]) -> set[str]:
    """Names of variables, also of those that loops make."""
    variables = template.get("variables", {})
    return {*variables, *(one["name"] for one in variables.get("copy", []))} - {"copy"}


@pytest.mark.timeout(1800)
def test_the_parser_sees_in_each_file_what_our_compiler_made_of_it(parsed: dict[str, Any]) -> None:
    compiled = templates(json.loads((FOLDER / "main.json").read_text()), "main.bicep", parsed)
    assert compiled.keys() == parsed.keys(), "each module is used"
    for path, template in compiled.items():
        seen = parsed[path]
        assert seen["globals"]["scope"]["value"] == (
            "subscription" if "subscriptionDeploymentTemplate" in template["$schema"] else "resourceGroup"
        )
        parameters = {
            name: one["type"].removeprefix("secure") for name, one in template["parameters"].items()
        }
        assert {name: one["type"] for name, one in seen["parameters"].items()} == parameters
        assert seen.get("variables", {}).keys() == variables_of(template)
        outputs = {name: one["type"] for name, one in template.get("outputs", {}).items()}
        assert {name: one["type"] for name, one in seen.get("outputs", {}).items()} == outputs
        resources = {
            name: (one["type"], one["apiVersion"], one.get("existing", False))
            for name, one in template["resources"].items()
            if one["type"] != "Microsoft.Resources/deployments"
        }
        assert {
            name: (one["type"], one["api_version"], one["existing"])
            for name, one in seen.get("resources", {}).items()
        } == resources, path


@pytest.mark.timeout(1800)
def test_the_linter_finds_nothing_but_exceptions_that_say_why(programs: Path) -> None:
    words = [programs / "checkov", "--directory", str(FOLDER), "--framework", "bicep", "--skip-download"]
    done = subprocess.run([*words, "--output", "json"], capture_output=True, text=True)
    report = json.loads(done.stdout)
    failed = [f"{one['check_id']} {one['resource']}" for one in report["results"]["failed_checks"]]
    assert failed == []
    assert done.returncode == 0
    assert report["summary"]["passed"] >= 30
    texts = [path.read_text() for path in FOLDER.rglob("*.bicep")]
    exceptions = [one for text in texts for one in re.findall(r"checkov:skip=(CKV\w+):(.*)", text)]
    assert len(exceptions) == report["summary"]["skipped"] == 11
    assert all(len(why) > 40 for _, why in exceptions)
