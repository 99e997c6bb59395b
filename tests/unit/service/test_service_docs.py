"""The pages about the service say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from remora.states import AttemptState, EndReason, JobState, NodeState
from service.api.app import create_app
from service.settings import Settings
from tests.architecture import states_page
from trainers.driver.change import ChangeState
from trainers.driver.phases import Phase

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def test_the_states_page_is_the_one_that_the_tables_make() -> None:
    assert (DOCS / "states.md").read_text() == states_page.page(), (
        "run: python -m tests.architecture.states_page > docs/states.md"
    )


def test_every_state_and_end_reason_is_explained() -> None:
    text = states_page.page()
    for words in (JobState, AttemptState, Phase, ChangeState, NodeState, EndReason):
        for word in words:
            assert f"| `{word.value}` |" in text


def test_every_route_is_documented_and_nothing_else_is() -> None:
    described = set(re.findall(r"^\| `([A-Z]+) (/\S+)` \|", (DOCS / "api.md").read_text(), re.MULTILINE))
    served = {
        (method.upper(), path)
        for path, methods in create_app(Settings()).openapi()["paths"].items()
        for method in methods
    }
    assert described == served


def test_every_code_is_documented_and_nothing_else_is() -> None:
    described = set(re.findall(r"^\| [0-9, ]+ \| `(\w+)` \|", (DOCS / "api.md").read_text(), re.MULTILINE))
    sources = [*(ROOT / "service" / "api").glob("*.py"), ROOT / "service" / "queue" / "intake.py"]
    text = "\n".join(source.read_text() for source in sources)
    found = set(re.findall(r"ApiProblem\(\s*\d+,\s*\"(\w+)\"", text))
    found |= set(re.findall(r"_unavailable\(\"(\w+)\"", text))
    found |= set(re.findall(r"code=\"(\w+)\"", text))
    found |= set(re.findall(r"Standing\.\w+: \(\"(\w+)\"", text))
    found |= {"bad_request", "internal_error"}
    assert described == found


def test_every_setting_is_documented_with_its_default() -> None:
    rows = dict(
        re.findall(r"^\| `REMORA_(\w+)` \| (.*?) \|", (DOCS / "settings.md").read_text(), re.MULTILINE)
    )
    assert {name.lower() for name in rows} == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        default = field.get_default()
        if isinstance(default, int | float):
            assert f"`{default:g}`" in rows[name.upper()] or f"`{default}`".lower() in rows[name.upper()], (
                name
            )


def test_every_prometheus_metric_is_documented() -> None:
    described = set(re.findall(r"^\| `(remora_\w+)", (DOCS / "api.md").read_text(), re.MULTILINE))
    source = (ROOT / "service" / "api" / "prometheus.py").read_text()
    made = set(re.findall(r"\"(remora_\w+)\"", source))
    assert {name.removesuffix("_total") for name in described} == made
