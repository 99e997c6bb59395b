"""What pip installs for an Azure ML job is installed for it here, and everything else of its environment is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remora.job_formats import Translation, translate
from remora.spec.spec import JobSpec

CONDA = """
name: env
channels: [conda-forge]
dependencies:
  - python=3.10
  - pip=21.2.4
  - scipy=1.7.1
  - pip:
      - transformers==5.*
      - mlflow
      - -r more.txt
"""


def translated(environment: Any, folder: Path) -> Translation:
    found = translate({"type": "command", "command": "python train.py", "environment": environment}, folder)
    assert found is not None
    return found


def own(translation: Translation) -> dict[str, Any]:
    return {name: value for name, value in translation.spec["environment"].items() if name != "variables"}


def test_a_conda_file_gives_the_packages_of_pip_and_the_version_of_python(tmp_path: Path) -> None:
    (tmp_path / "conda.yml").write_text(CONDA)
    found = translated({"image": "mcr.example/base", "conda_file": "conda.yml"}, tmp_path)
    assert own(found) == {"python": "3.10", "pip": ["transformers==5.*", "mlflow"]}
    assert JobSpec.from_mapping(found.spec).environment.is_built
    left = [f"{one.field}: {one.text}" for one in found.unhonoured]
    assert any(line.startswith("environment.image: the image is not taken over") for line in left)
    assert any("'scipy=1.7.1' comes from conda" in line for line in left)
    assert any("'-r more.txt' is no package" in line for line in left)
    assert not any("pip=21" in line for line in left)


def test_a_mapping_in_the_file_is_the_same(tmp_path: Path) -> None:
    conda = {"dependencies": ["python=3.11.4", {"pip": ["numpy"]}]}
    assert own(translated({"conda_file": conda}, tmp_path)) == {"python": "3.11", "pip": ["numpy"]}


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"conda_file": "absent.yml"}, "absent.yml"),
        ({"conda_file": "list.yml"}, "it has no list of dependencies"),
        ({"conda_file": {"dependencies": "numpy"}}, "it has no list of dependencies"),
        ({"conda_file": "large.yml"}, "large.yml"),
    ],
)
def test_a_conda_file_that_cannot_be_read_is_a_problem(
    environment: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "list.yml").write_text("[1, 2]")
    (tmp_path / "large.yml").write_text("# " + "x" * 300_000)
    (problem,) = translated(environment, tmp_path).problems
    assert problem.field == "environment.conda_file"
    assert said in str(problem)


@pytest.mark.parametrize("environment", ["azureml:AzureML-sklearn@latest", {"build": {"path": "."}}, ["x"]])
def test_what_needs_an_image_is_left_out_with_a_sentence(environment: Any, tmp_path: Path) -> None:
    found = translated(environment, tmp_path)
    assert own(found) == {}
    (left,) = [one for one in found.unhonoured if one.field.startswith("environment")]
    assert "the image is not taken over; name it with --image" in left.text


def test_a_url_is_not_opened(tmp_path: Path) -> None:
    found = translated({"conda_file": "https://example.org/conda.yml"}, tmp_path)
    assert own(found) == {}
    assert "only a file beside this one is read" in [one.text for one in found.unhonoured]
