"""Several jobs that are submitted together, of which some read what others write: their order, and their ids.  Pure.

A step names other steps; the ids of their jobs take the place of the names as soon as those are submitted.
"""

from __future__ import annotations

import graphlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from remora.errors import SpecError, SpecProblem
from remora.spec.array_elements import elements_of
from remora.spec.spec import JobSpec
from remora.views import DryRun

#: Steps that are submitted together.
MAX_STEPS = 100
#: Stands for the job of a step that is not submitted yet, while the specification is checked.
_ANY_JOB = f"job_{'0' * 26}"


@dataclass(frozen=True)
class StepOutput:
    """An output of another step."""

    step: str
    #: None: all of its outputs, each in a folder of its name.
    output: str | None


@dataclass(frozen=True, kw_only=True)
class PipelineStep:
    """One of several jobs."""

    name: str
    #: Raw specification of the job, or of an array, without what `reads` adds to it.
    spec: dict[str, Any]
    #: Inputs that are outputs of other steps, which have to succeed first.
    reads: Mapping[str, StepOutput] = field(default_factory=dict)

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the steps that have to succeed first."""
        return tuple(dict.fromkeys(one.step for one in self.reads.values()))

    def spec_with(self, jobs: Mapping[str, str]) -> dict[str, Any]:
        """The raw specification with the ids of other steps' jobs, by the names of the steps."""
        if not self.reads:
            return self.spec
        inputs = {
            name: {"job": jobs[one.step]} | ({} if one.output is None else {"output": one.output})
            for name, one in self.reads.items()
        }
        after = [*(self.spec.get("after") or ()), *(jobs[name] for name in self.needs)]
        return {**self.spec, "inputs": {**(self.spec.get("inputs") or {}), **inputs}, "after": after}


def in_order(steps: Iterable[PipelineStep]) -> list[PipelineStep]:
    """The steps, each behind those that it needs, else as they came.  Raises SpecError."""
    named = {}
    for step in steps:
        if step.name in named:
            raise _refuse(step.name, "two steps have this name")
        named[step.name] = step
    if len(named) > MAX_STEPS:
        raise _refuse("", f"{len(named)} steps, expected at most {MAX_STEPS}; submit them in several parts")
    for step in named.values():
        for other in step.needs:
            if other not in named:
                raise _refuse(step.name, f"it reads from {other[:80]}, and there is no such step")
            if named[other].spec.get("array") is not None:
                text = f"it reads from {other[:80]}, which is an array of jobs, and not one of them"
                raise _refuse(step.name, f"{text}; submit it when you have chosen, with an input of that job")
    try:
        order = graphlib.TopologicalSorter({one.name: one.needs for one in named.values()}).static_order()
        return [named[name] for name in order]
    except graphlib.CycleError as error:
        circle = " -> ".join(error.args[1])
        raise SpecError([SpecProblem("", f"these steps wait for each other: {circle[:300]}")]) from None


def check_steps(steps: Iterable[PipelineStep]) -> list[JobSpec]:
    """Each step's specification as far as it is known before any is submitted.  Raises SpecError with all problems."""
    specs, problems = [], []
    for step in steps:
        try:
            spec = JobSpec.from_mapping(step.spec_with(_any_jobs(step)))
            if spec.array is not None:
                elements_of(spec)
        except SpecError as error:
            problems += in_step(step, error)
            continue
        if spec.schedule is not None:
            problems.append(
                SpecProblem(f"jobs.{step.name}.schedule", "a step is submitted once; leave it out")
            )
        specs.append(spec)
    if problems:
        raise SpecError(problems)
    return specs


def _any_jobs(step: PipelineStep) -> dict[str, str]:
    """Ids for the steps that it needs: each of them is named once, so that each needs another id."""
    return {name: _ANY_JOB[: -len(str(at))] + str(at) for at, name in enumerate(step.needs)}


def tried_alone(step: PipelineStep, found: DryRun) -> DryRun:
    """A dry run of the step's specification, without what is wrong with it only until the steps it needs are submitted.

    The names of those steps stand in the place of their jobs' ids.
    """
    own = {f"inputs.{name}.job" for name in step.reads}
    given = len(step.spec.get("after") or ())
    own |= {f"after.{given + at}.job" for at, _ in enumerate(step.needs)}
    names = {job: name for name, job in _any_jobs(step).items()}
    return found.model_copy(
        update={
            "problems": [one for one in found.problems if one.field not in own],
            "spec": _renamed(found.spec, names),
        }
    )


def _renamed(spec: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    after = [{**one, "job": names.get(one["job"], one["job"])} for one in spec["after"]]
    inputs = {name: {**one, "job": names.get(one["job"], one["job"])} for name, one in spec["inputs"].items()}
    return {**spec, "after": after, "inputs": inputs}


def in_step(step: PipelineStep, error: SpecError) -> list[SpecProblem]:
    """The problems of one step, each with its name."""
    return [SpecProblem(f"jobs.{step.name}.{one.field}".rstrip("."), one.message) for one in error.problems]


def digest_of(specs: Mapping[str, JobSpec]) -> str:
    """64 hexadecimal digits that only the same steps with the same code have."""
    text = json.dumps({name: spec.to_mapping() for name, spec in specs.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def key_of(submission: str, step: str) -> str:
    """The idempotency key of one step of a submission: a repeated submission finds the job that it made."""
    return hashlib.sha256(f"{submission}\0{step}".encode()).hexdigest()


def _refuse(step: str, message: str) -> SpecError:
    return SpecError([SpecProblem(f"jobs.{step}" if step else "", message)])
