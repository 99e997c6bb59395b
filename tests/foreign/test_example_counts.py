"""The scripts that count what becomes of public examples, on files of our own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.foreign import azureml_examples, kubeflow_examples, pytorch_examples
from tests.foreign.counting import Counts, count, count_all

SCHEMA = "$schema: https://azuremlschemas.azureedge.net/latest/{}.schema.json\n"
FILES = {
    "a/job.yml": SCHEMA.format("commandJob") + "command: python a.py\ncode: .\n",
    "b/job.yml": SCHEMA.format("commandJob")
    + "command: python a.py ${{inputs.x}}\ninputs: {x: {path: azureml:x:1}}\n",
    "c/pipeline.yml": SCHEMA.format("pipelineJob") + "jobs: {a: {component: azureml:there@latest}}\n",
    "c/spark.yml": SCHEMA.format("pipelineJob") + "jobs: {a: {type: spark}}\n",
    "d/sweep.yml": SCHEMA.format("sweepJob")
    + "trial: {command: 'a ${{search_space.x}}'}\nsearch_space: {x: {type: choice, values: [1, 2]}}\n",
    "e/automl.yml": SCHEMA.format("autoMLJob") + "type: automl\n",
    "f/component.yml": SCHEMA.format("commandComponent") + "command: a\n",
    "g/broken.yml": "a: [",
    "g/two.yml": "a: 1\n---\nb: 2\n",
    "h/train.yaml": "kind: Service\napiVersion: v1\n---\nkind: TrainJob\napiVersion: trainer.kubeflow.org/v1alpha1\n"
    "spec: {trainer: {command: [a]}}\n",
    "h/mpi.yaml": "kind: MPIJob\napiVersion: kubeflow.org/v2beta1\nspec: {mpiImplementation: Intel}\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_jobs_of_azure_ml_are_counted_by_type_and_reason(checkout: Path) -> None:
    counts = count_all(checkout, azureml_examples.kind_of)
    assert {kind: one.as_json() for kind, one in counts.items()} == {
        "command": numbers(files=2, translated=1, translated_with_inputs=1),
        "pipeline": numbers(
            files=2, refused={"a component that is only in a registry": 1, "a step of type spark": 1}
        ),
        "sweep": numbers(files=1, translated=1),
        "automl": numbers(files=1, refused={"a job of type automl": 1}),
    }


def numbers(**values: Any) -> dict[str, Any]:
    return Counts().as_json() | values


def test_manifests_are_counted_by_kind(checkout: Path) -> None:
    counts = count_all(checkout, kubeflow_examples.kind_of)
    assert {kind: one.as_json() for kind, one in counts.items()} == {
        "TrainJob": numbers(files=1, translated=1),
        "MPIJob": numbers(files=1, refused={"another implementation of MPI than Open MPI": 1}),
    }


def test_a_file_that_breaks_the_translation_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("tests.foreign.counting.translate", breaks)
    counts = Counts()
    count(counts, "a.yml", {}, Path("/"))
    assert counts.as_json() == numbers(files=1, failed=["a.yml: KeyError: 'x'"])


@pytest.mark.parametrize("module", ["azureml_examples", "kubeflow_examples"])
def test_a_script_prints_one_line(checkout: Path, module: str) -> None:
    command = [sys.executable, "-m", f"tests.foreign.{module}", str(checkout)]
    printed = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    (line,) = printed.stdout.splitlines()
    assert json.loads(line)["commit"] is None


MAIN = "if __name__ == '__main__':\n    "


def test_scripts_that_need_no_accelerator_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {
        "runs/main.py": MAIN + "print('here')",
        "fails/main.py": MAIN + "raise SystemExit(3)",
        "gpu/main.py": MAIN + "print(model.cuda())",
        "beside/main.py": MAIN + "print(1)",
        "beside/model.py": "x = y.cuda()",
        "two/main.py": "def verify_min_gpu_count(): ...\n" + MAIN + "verify_min_gpu_count()",
        "data/main.py": MAIN + "MNIST(download=True)",
    }
    for name, text in scripts.items():
        path = tmp_path / "distributed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(pytorch_examples, "run", lambda script, _: "ran" if "runs" in script.parts else "3")
    assert pytorch_examples.count(tmp_path, 1.0) == {
        "scripts": 6,
        "ran": ["distributed/runs/main.py"],
        "left_out": {
            "uses accelerators": 2,
            "downloads a data set": 1,
            "ends at once without two accelerators": 1,
        },
        "failed": {"distributed/fails/main.py": "3"},
    }


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(("text", "end"), [("print(1)", "ran"), ("raise SystemExit(3)", "exit code")])
def test_a_script_is_run_as_a_job(tmp_path: Path, text: str, end: str) -> None:
    (tmp_path / "main.py").write_text(MAIN + text)
    assert pytorch_examples.run(tmp_path / "main.py", 120.0).startswith(end)
