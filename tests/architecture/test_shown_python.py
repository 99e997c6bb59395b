"""What the pages show can be done as it stands: calls, imports, jobs, names."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

import remora
from remora import AsyncClient, Client, JobSpec, training
from remora.torch import Loop
from remora.torch.sharded import ShardedLoop
from service.settings import Settings
from tests.architecture.repository import PACKAGES, blocks, pages, texts
from tests.architecture.test_events_page import in_the_code

#: Modules that need a library which this environment does not have.
OF_LIBRARIES = "remora.integrations."

# --- calls of the client


def signatures(client: type) -> dict[str, str]:
    """Every public method with what it takes, written as the page writes it."""
    return {
        name: written(inspect.signature(function))
        for name, function in inspect.getmembers(client, inspect.isfunction)
        if not name.startswith("_")
    }


def written(signature: inspect.Signature) -> str:
    parameters = [
        one.replace(annotation=inspect.Parameter.empty, name=one.name)
        for one in list(signature.parameters.values())[1:]
    ]
    return str(inspect.Signature(parameters)).replace("'", '"')


def on_the_page() -> dict[str, str]:
    cells = re.findall(r"^\| ((?:`\w+\([^`]*\)`(?:, )?)+) \|", pages()["docs/client.md"], re.MULTILINE)
    calls = [call for cell in cells for call in re.findall(r"`(\w+)(\([^`]*\))`", cell)]
    # The page names ids shortly.
    return dict(calls)


def test_every_method_of_the_clients_is_on_the_page_with_what_it_takes() -> None:
    code = {
        name: re.sub(r"\((job|node|drill)_id\b", "(id", text) for name, text in signatures(Client).items()
    }
    assert on_the_page() == code
    assert signatures(AsyncClient) == signatures(Client)


# --- Python and jobs


def test_what_the_python_of_a_page_imports_and_calls_exists() -> None:
    wrong = []
    for page, block in blocks("python"):
        # `async with` of an example stands outside of any function.
        tree = ast.parse("async def shown():\n" + "\n".join(f" {line}" for line in block.splitlines()))
        for node in ast.walk(tree):
            wrong += [f"{page}: {one}" for one in unknown_in(node)]
    assert wrong == []


def test_what_the_python_of_a_page_hands_over_is_taken() -> None:
    wrong = []
    for page, block in blocks("python"):
        tree = ast.parse("async def shown():\n" + "\n".join(f" {line}" for line in block.splitlines()))
        imported = {
            one.asname or one.name: getattr(importlib.import_module(node.module), one.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES
            if not node.module.startswith(OF_LIBRARIES)
            for one in node.names
            if hasattr(importlib.import_module(node.module), one.name)
        }
        # Some blocks go on where the one before stopped.
        known = {"Loop": Loop, "ShardedLoop": ShardedLoop, **imported}
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id=name), keywords=keywords) if callable(known.get(name)):
                    taken = inspect.signature(known[name]).parameters
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="training"), attr=name), keywords=keywords
                ):
                    taken = inspect.signature(getattr(training, name)).parameters
                case _:
                    continue
            is_open = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
            unknown = {one.arg for one in keywords} - set(taken) - {None}
            wrong += [f"{page}: {name}({one}=...)" for one in unknown if not is_open]
    assert wrong == []


def test_every_call_of_a_script_is_on_the_page_with_what_it_takes() -> None:
    page = dict(re.findall(r"^\| `(\w+)(\([^`]*\))` \|", pages()["docs/training.md"], re.MULTILINE))
    assert len(page) == 6
    for name, shown in page.items():
        given = inspect.signature(getattr(training, name))
        parameters = [one.replace(annotation=inspect.Parameter.empty) for one in given.parameters.values()]
        assert shown == str(inspect.Signature(parameters)), name


def unknown_in(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] in PACKAGES:
            for one in names:
                if not is_in(module, one.name):
                    yield f"from {module} import {one.name}"
        case ast.Attribute(value=ast.Name(id="remora"), attr=name) if not is_in("remora", name):
            yield f"remora.{name}"
        case ast.Attribute(value=ast.Name(id="training"), attr=name) if not hasattr(training, name):
            yield f"training.{name}"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="client"), attr=name), keywords=keywords):
            method = getattr(Client, name, None)
            taken = inspect.signature(method).parameters if method else {}
            if method is None or not {one.arg for one in keywords} <= set(taken):
                yield f"client.{name}"


def is_in(module: str, name: str) -> bool:
    if module.startswith(OF_LIBRARIES):
        path, found = module.replace(".", "/"), texts()
        text = found.get(f"{path}.py") or found[f"{path}/__init__.py"]
        return f'"{name}"' in text.partition("__all__ = ")[2]
    if hasattr(importlib.import_module(module), name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


def test_what_does_not_exist_is_seen_in_python() -> None:
    tree = ast.parse("from remora import frob\nclient.wait(1, frob=2)\ntraining.frob()\nremora.Frob()")
    assert len([one for node in ast.walk(tree) for one in unknown_in(node)]) == 4


def test_every_job_that_a_page_shows_is_accepted() -> None:
    jobs = [
        (page, job)
        for page, block in blocks("yaml")
        if isinstance(job := yaml.safe_load(block), dict) and "command" in job and "$schema" not in job
    ]
    assert len(jobs) > 3
    for page, job in jobs:
        if "code" in job:
            job["code"] = "sha256:" + "0" * 64
        try:
            JobSpec.from_mapping(job)
        except remora.SpecError as error:
            pytest.fail(f"{page}: {error}")


#: What has to stand beside a field for it to be possible at all.
BESIDE: dict[str, dict[str, Any]] = {
    "workers": {"min": 1, "max": 1},
    "checkpoint.best": {"metric": "loss"},
    "after": {"job": f"job_{'0' * 26}"},
    "schedule": {"cron": "0 0 * * *"},
    "array": {"grid": {"a": [1]}},
    "array.stop_early": {"metric": "loss", "first_step": 1},
}


def test_every_default_of_the_specification_is_what_the_page_says() -> None:
    rows = re.findall(
        r"^\| `([a-z_.]+)` \| `([^`]+)` \|",
        pages()["docs/job-spec.md"].partition("## What a job costs")[0],
        re.MULTILINE,
    )
    assert len(rows) > 12
    for name, default in rows:
        parts = name.split(".")
        sections = [".".join(parts[:count]) for count in range(1, len(parts))]
        beside = {section: BESIDE.get(section, {}) for section in sections}
        job = nested({"command": "python train.py", **beside})
        reported = nested({"command": "python train.py", **beside, name: yaml.safe_load(default)})
        assert JobSpec.from_mapping(reported) == JobSpec.from_mapping(job), (
            f"{name} is not {default} unless it is set"
        )


def nested(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields by their dotted names, as a specification has them."""
    job: dict[str, Any] = {}
    for name, value in fields.items():
        *path, last = name.split(".")
        inner = job
        for word in path:
            inner = inner.setdefault(word, {})
        if isinstance(value, dict):
            inner.setdefault(last, {}).update(value)
        else:
            inner[last] = value
    return job


def test_every_error_of_the_client_is_on_its_page_and_nothing_else_is() -> None:
    table = pages()["docs/client.md"].partition("## When something goes wrong")[2]
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"\w+", cell)}
    public = {name: getattr(remora, name) for name in remora.__all__}
    errors = {
        name
        for name, one in public.items()
        if isinstance(one, type) and issubclass(one, remora.RemoraError) and one is not remora.RemoraError
    }
    # All of one family, which its own row names.
    assert listed == errors - {"ApiError"}


# --- names


def test_every_variable_that_a_page_names_is_known_to_the_code() -> None:
    known = set()
    for name, text in texts().items():
        if not name.endswith(".md"):
            known |= set(re.findall(r"REMORA_[A-Z_]*[A-Z]", text))
    known |= {f"REMORA_{name.upper()}" for name in Settings.model_fields}
    # Put together by `Elastic.variables` of a specification.
    known |= {
        f"REMORA_{name}" for name in ("EXACTNESS", "GLOBAL_BATCH", "SHARDS", "NONFINITE", "VERIFY_EVERY")
    }
    for page, text in pages().items():
        if page != "CHANGELOG.md":
            assert set(re.findall(r"REMORA_[A-Z_]*[A-Z]", text)) <= known, page


#: What has the form of an event: fields of a specification, calls of a script, and one of DeepSpeed's configuration.
FIELDS = {
    *JobSpec.known_fields,
    *(f"training.{name}" for name in vars(training)),
    "checkpoint.writer",
}


def test_every_event_that_a_page_names_is_recorded() -> None:
    kinds = set(in_the_code())
    families = "|".join(sorted({kind.partition(".")[0] for kind in kinds} - {"cluster"}))
    for page, text in pages().items():
        named = set(re.findall(rf"`((?:{families})\.[a-z_]+)`", text))
        assert {one for one in named - kinds - FIELDS if not is_file(one)} == set(), page


def is_file(name: str) -> bool:
    """`node.py`, `job.yaml`: a file, not an event."""
    return name.rpartition(".")[2] in ("py", "yaml", "yml", "json", "log", "md", "sh", "csv")
