"""Expressions in a job's command and variables: `${{...}}` stands for what only its worker knows.  Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

#: The space around the word is taken off afterwards: a pattern that separates the two tries every way to do so.
EXPRESSION = re.compile(r"\$\{\{([^{}]*+)\}\}")
#: What a worker knows besides the paths of its inputs and outputs.
KNOWN = ("job.id", "job.attempt", "master.address", "master.port")


def refuses_expressions(
    texts: Iterable[str],
    outputs: Collection[str],
    parameters: Collection[str] = (),
    inputs: Collection[str] = (),
) -> str | None:
    """Why the expressions in these texts cannot be understood; None when they can.

    `outputs` and `inputs` are the job's, `parameters` those of its array.
    """
    for text in texts:
        for match in EXPRESSION.finditer(text):
            word = match.group(1).strip()
            kind, _, name = word.partition(".")
            shown = f"${{{{{word[:80]}}}}}"
            if kind == "outputs" and name not in outputs:
                return f"{shown} is not among the job's outputs"
            if kind == "inputs" and name not in inputs:
                return f"{shown} is not among the job's inputs"
            if kind == "array" and name not in parameters:
                return f"{shown} is not among the values of the job's array"
            if kind not in ("inputs", "outputs", "array") and word not in KNOWN:
                known = ", ".join(("inputs.NAME", "outputs.NAME", "array.NAME", *KNOWN))
                return f"{shown} stands for nothing; known are {known}"
    return None


def fill(text: str, values: Mapping[str, str], outputs: str) -> str:
    """The text with values in place of its expressions; `outputs` is the folder in which outputs lie."""

    def value(match: re.Match[str]) -> str:
        word = match.group(1).strip()
        kind, _, name = word.partition(".")
        return f"{outputs}/{name}" if kind == "outputs" else values.get(word, match.group())

    return EXPRESSION.sub(value, text)
