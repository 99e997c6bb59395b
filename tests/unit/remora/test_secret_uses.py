"""Which secrets a job may name, and what its workers get of them."""

from __future__ import annotations

from typing import Any

import pytest

from remora.errors import SpecError
from remora.spec.secret_uses import MAX_SECRETS, SecretUse, is_secret_name
from remora.spec.spec import JobSpec


def uses(written: Any, **environment: Any) -> tuple[tuple[str, str | None], ...]:
    spec = JobSpec.from_mapping({"command": "x", "environment": {"secrets": written, **environment}})
    assert JobSpec.from_mapping(spec.to_mapping()) == spec
    return tuple((use.name, use.variable) for use in spec.environment.secrets)


def refusal(written: Any, **environment: Any) -> str:
    with pytest.raises(SpecError) as refused:
        uses(written, **environment)
    return str(refused.value)


def test_a_name_alone_is_a_variable_too_and_a_mapping_says_which() -> None:
    assert uses(["HF_TOKEN", {"name": "WANDB", "variable": "WANDB_API_KEY"}, {"name": "KEY"}]) == (
        ("HF_TOKEN", "HF_TOKEN"),
        ("WANDB", "WANDB_API_KEY"),
        ("KEY", None),
    )
    assert uses("HF_TOKEN") == uses({"name": "HF_TOKEN", "variable": "HF_TOKEN"}) == uses(["HF_TOKEN"])
    assert uses(None) == uses([]) == ()
    assert uses(["A"], image="localhost/own", variables={"B": "x"}) == (("A", "A"),)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (["A", "A"], "environment: secrets: A is there twice"),
        (
            ["A", {"name": "B", "variable": "A"}],
            "the variable A of the secret B is given by the secret A, too",
        ),
        (["V"], "the variable V of the secret V is given by variables, too; leave one out"),
        (["hf-token"], "'hf-token' is no name of a secret; use 1 to 63 letters, digits and '_'"),
        ([{"name": "x" * 64}], "is no name of a secret"),
        (
            ["RANK"],
            "environment.secrets.0.variable: RANK is set by Remora for every worker; choose another name",
        ),
        ([{"name": "A", "variable": "A-B"}], "'A-B' is not a variable's name"),
        ([{"variable": "A"}], "environment.secrets.0.name: missing"),
        ([{"name": "A", "value": "x"}], "environment.secrets.0.value: unknown key"),
        ([3], "environment.secrets.0: 3 given, expected a list of at most 32 names, e.g. [HF_TOKEN]"),
        ([f"S{number}" for number in range(MAX_SECRETS + 1)], "expected a list of at most 32 names"),
    ],
)
def test_what_no_job_can_use_is_named(written: Any, said: str) -> None:
    assert said in refusal(written, variables={"V": "x"})


def test_one_more_than_the_most_is_too_many() -> None:
    assert len(uses([f"S{number}" for number in range(MAX_SECRETS)])) == MAX_SECRETS


@pytest.mark.parametrize("name", ["A", "_", "a1_B", "x" * 63])
def test_names(name: str) -> None:
    assert is_secret_name(name)
    assert SecretUse(name=name).variable is None


@pytest.mark.parametrize("name", ["", "1A", "A.B", "A/B", "..", "Ä", "x" * 64, "A\n"])
def test_no_names(name: str) -> None:
    assert not is_secret_name(name)
