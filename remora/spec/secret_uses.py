"""Secrets that a job uses: their names, and the variables of its command that get their values.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field, StrictStr, field_validator, model_validator

from remora.spec.fields import refuses_variable

#: Secrets of one job.
MAX_SECRETS = 32
#: Characters of a secret's name, which is a variable's: the short form makes it one.
LONGEST_SECRET_NAME = 63
SECRET_NAME_FORM = f"1 to {LONGEST_SECRET_NAME} letters, digits and '_', beginning with a letter or '_'"
SECRETS_FORM = f"a list of at most {MAX_SECRETS} names, e.g. [HF_TOKEN], or of {{name: .., variable: ..}}"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def is_secret_name(text: str) -> bool:
    """True for what may name a secret, and a file with its value."""
    return _NAME.fullmatch(text) is not None


class SecretUse(BaseModel):
    """One secret of a job's project: always a file, and a variable where one is named.

    A text alone, `HF_TOKEN`, is short for `{name: HF_TOKEN, variable: HF_TOKEN}`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: StrictStr = Field(description=SECRET_NAME_FORM)
    #: The variable of the command that has the value; None: the file alone has it.
    variable: StrictStr | None = Field(None, description="the name of a variable")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value, "variable": value} if isinstance(value, str) else value

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not is_secret_name(value):
            raise ValueError(f"{value[:80]!r} is no name of a secret; use {SECRET_NAME_FORM}")
        return value

    @field_validator("variable")
    @classmethod
    def _can_be_given(cls, value: str | None) -> str | None:
        if value is not None and (refusal := refuses_variable(value)):
            raise ValueError(refusal)
        return value


def refuses_uses(uses: Iterable[SecretUse], variables: Iterable[str]) -> str | None:
    """Why a job cannot use these secrets beside these variables of its own; None when it can."""
    names: set[str] = set()
    taken = dict.fromkeys(variables, "variables")
    for use in uses:
        if use.name in names:
            return f"{use.name} is there twice"
        names.add(use.name)
        if use.variable is None:
            continue
        if (other := taken.get(use.variable)) is not None:
            return f"the variable {use.variable} of the secret {use.name} is given by {other}, too; leave one out"
        taken[use.variable] = f"the secret {use.name}"
    return None
