"""What a user submits: one immutable, fully checked description of a job.

    spec = JobSpec.from_yaml(Path("job.yaml"))
    spec = JobSpec(command="python train.py", workers={"min": 1, "max": 3})

Every way of making one raises `SpecError`, which lists all problems at once.  The client and the service check with
this same class.  `docs/job-spec.md` explains every field.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from remora.errors import SpecError, SpecProblem
from remora.job_commands.command_texts import argument_list, needs_shell, words_of
from remora.job_commands.expressions import refuses_expressions
from remora.job_commands.launchers import check_launcher, unwrap
from remora.spec.arrays import ARRAY_FORM, INDEX, Array
from remora.spec.backends import BACKEND_WORDS, BackendName
from remora.spec.bounds import exceeds
from remora.spec.entrypoint import (
    ARGUMENTS_FORM,
    ENTRYPOINT_FORM,
    add_command,
    is_entrypoint,
    refuses_arguments,
)
from remora.spec.fields import (
    LABELS_FORM,
    MAX_LABELS,
    MAX_WORKERS,
    NAME_FORM,
    Name,
    Text,
    Whole,
    WorkerCount,
    refuses_label,
    refuses_variable,
)
from remora.spec.problems import problems_of, read_spec_file, read_yaml, section_of
from remora.spec.sections import (
    AFTER_FORM,
    MAX_AFTER,
    MAX_INPUTS,
    SCHEDULE_FORM,
    After,
    CheckpointPolicy,
    Elastic,
    Environment,
    Input,
    Limits,
    Outputs,
    Placement,
    Resources,
    Retry,
    ScheduleRules,
    Section,
    Workers,
)
from remora.spec.unsupported import refusals, without_refused
from remora.spec.worker_sizes import NoSizePossible, WorkerSizes, sizes_of

#: Bytes of a whole specification as JSON.
MAX_SPEC_BYTES = 256 * 1024
#: Values in it.
MAX_SPEC_VALUES = 20_000

#: What stands between the words of a script for a shell.
_BREAKS = re.compile(r"[\s;&|()<>'\"]+")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class JobSpec(Section):
    """A job as its owner describes it.  Raises SpecError, however it is made."""

    #: The fields of this version, dotted, for "did you mean".
    known_fields: ClassVar[tuple[str, ...]]

    name: Name = Field(description=NAME_FORM)
    project: Name = Field("default", description=NAME_FORM)
    #: A folder on the client's machine, `sha256:...` once it is uploaded, or None for an empty folder.
    code: Annotated[Text, Field(min_length=1)] | None = Field(
        None, description="a folder, or sha256: and 64 hexadecimal digits"
    )
    command: list[Text] = Field(min_length=1, description="a command line, or a list of texts")
    #: A function that is called in place of a command; `command` is then what it becomes.
    entrypoint: Text | None = Field(None, description=ENTRYPOINT_FORM)
    arguments: dict[str, Any] | list[Any] = Field({}, description=ARGUMENTS_FORM)
    backend: BackendName = Field("ddp", description=BACKEND_WORDS)
    workers: Workers = Field(
        Workers(min=1, max=1),
        description=f"a whole number from 1 to {MAX_WORKERS}, or {{min: .., max: .., multiple_of: ..}}",
    )
    #: The most workers of the job on one node; None: as many as fit.
    workers_per_node: WorkerCount | None = Field(None, description=f"a whole number from 1 to {MAX_WORKERS}")
    resources: Resources = Field(Resources(), description="keys gpus, cpus, memory")
    environment: Environment = Field(
        Environment(), description="keys image, python, pip, requirements, setup, inherit, variables, secrets"
    )
    #: What the job reads, by name.
    inputs: dict[Name, Input] = Field(
        {}, max_length=MAX_INPUTS, description="names, each with {store, path} or {job, output}"
    )
    #: Folders below `REMORA_OUTPUTS_DIR`, by name.
    outputs: Outputs = Field({}, description="names, each with {} or the keys model, path, commit")
    placement: Placement = Field(Placement(), description="keys pools, capacity, zones, fabric")
    elastic: Elastic = Field(Elastic(), description="keys exactness, global_batch, shards, nonfinite")
    checkpoint: CheckpointPolicy = Field(CheckpointPolicy(), description="keys interval, keep, best, store")
    priority: Whole = Field(50, ge=0, le=100, description="a whole number from 0 to 100")
    retry: Retry = Field(Retry(), description="keys limit, backoff, on_exit_codes, on_log_patterns")
    #: Many jobs in place of one.
    array: Array | None = Field(None, description=ARRAY_FORM)
    #: Submitted again and again in place of once.
    schedule: ScheduleRules | None = Field(None, description=SCHEDULE_FORM)
    labels: dict[str, Any] = Field({}, max_length=MAX_LABELS, description=LABELS_FORM)
    #: Ends of other jobs before which no attempt starts.
    after: tuple[After, ...] = Field((), max_length=MAX_AFTER, description=AFTER_FORM)
    limits: Limits = Field(Limits(), description="keys run_time, wait_time, step_time, budget, deadline")

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return argument_list(value)
        except ValueError as error:
            raise ValueError(f"the command line cannot be split into words: {error}") from None

    @field_validator("command")
    @classmethod
    def _has_program(cls, value: list[str]) -> list[str]:
        if not value[0].strip():
            raise ValueError("the first word of the command is empty; write the program to run")
        for name in unwrap(value).variables:
            if refusal := refuses_variable(name):
                raise ValueError(f"its launcher sets a variable: {refusal}")
        return value

    @field_validator("entrypoint")
    @classmethod
    def _names_a_function(cls, value: str | None) -> str | None:
        if value is not None and not is_entrypoint(value):
            raise ValueError
        return value

    @field_validator("arguments", mode="before")
    @classmethod
    def _can_be_passed(cls, value: object) -> object:
        if value is None:
            return {}
        if not isinstance(value, dict | list):
            raise ValueError  # noqa: TRY004 - pydantic reports ValueError only
        if refusal := refuses_arguments(value):
            raise ValueError(refusal)
        return value

    @model_validator(mode="after")
    def _launcher_agrees(self) -> Self:
        check_launcher(self.command, self.backend, self.workers.min, self.workers.max)
        return self

    @model_validator(mode="after")
    def _requirements_are_in_the_code(self) -> Self:
        if self.environment.requirements is not None and self.code is None:
            raise ValueError(
                "environment.requirements names a file of the code; write the folder of the code in `code`"
            )
        return self

    @model_validator(mode="after")
    def _runs_in_an_image(self) -> Self:
        if self.environment.image is not None and self.backend in ("mpi", "deepspeed"):
            raise ValueError(
                f"backend is {self.backend}, which needs programs of the nodes, and environment.image is given; use"
                " another backend, or leave image out"
            )
        return self

    @model_validator(mode="after")
    def _everybody_has_a_shard(self) -> Self:
        shards = self.elastic.shards
        if shards is not None and self.workers.max > shards:
            raise ValueError(
                f"workers.max is {self.workers.max} and elastic.shards is {shards}; every worker needs a shard"
            )
        return self

    @model_validator(mode="after")
    def _bits_can_be_kept(self) -> Self:
        if self.backend == "fsdp" and self.elastic.exactness == "bitwise":
            raise ValueError(
                "backend is fsdp and elastic.exactness is bitwise; the sums of sharded gradients depend on the number"
                " of workers, so use sample-exact, or ddp with a model that each worker holds as a whole"
            )
        return self

    @field_validator("inputs", mode="before")
    @classmethod
    def _no_inputs(cls, value: object) -> object:
        return {} if value is None else value

    @field_validator("outputs", mode="before")
    @classmethod
    def _no_outputs(cls, value: object) -> object:
        if value is None:
            return {}
        # `final:` alone is an output without a word on it.
        return (
            {name: {} if one is None else one for name, one in value.items()}
            if isinstance(value, dict)
            else value
        )

    @model_validator(mode="after")
    def _knows_its_expressions(self) -> Self:
        texts = (*self.command, *self.environment.variables.values())
        parameters = () if self.array is None else (*self.array.names, INDEX)
        texts += tuple(self.labels.values()) if parameters else ()
        if refusal := refuses_expressions(texts, self.outputs, parameters, self.inputs):
            raise ValueError(refusal)
        return self

    @model_validator(mode="after")
    def _some_size_is_allowed(self) -> Self:
        try:
            _ = self.worker_sizes
        except NoSizePossible as error:
            raise ValueError(f"workers and elastic.global_batch do not agree: {error}") from None
        return self

    @model_validator(mode="after")
    def _can_wait_for_the_one_before(self) -> Self:
        if self.array is not None and self.schedule is not None and self.schedule.overlap == "wait":
            raise ValueError(
                "schedule.overlap is wait, which is for one job, and array makes many; write skip or allow"
            )
        return self

    @field_validator("labels", mode="before")
    @classmethod
    def _are_labels(cls, value: object) -> object:
        if value is None:
            return {}
        for name, one in value.items() if isinstance(value, dict) else ():
            if refusal := refuses_label(name, one):
                raise ValueError(refusal)
        return value

    @field_validator("after", mode="before")
    @classmethod
    def _one_job_needs_no_list(cls, value: object) -> object:
        if value is None:
            return ()
        return (value,) if isinstance(value, str | Mapping) else value

    @field_validator("after")
    @classmethod
    def _names_each_job_once(cls, value: tuple[After, ...]) -> tuple[After, ...]:
        named = [one.job for one in value]
        if doubled := next((one for one in named if named.count(one) > 1), None):
            raise ValueError(f"{doubled} is there twice")
        return value

    @field_validator("code")
    @classmethod
    def _digest_is_whole(cls, value: str | None) -> str | None:
        if value is not None and value.startswith("sha256:") and not _DIGEST.fullmatch(value):
            raise ValueError
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise SpecError([SpecProblem("", "a job specification is a mapping of keys to values")])
        if too_much := exceeds(value, values=MAX_SPEC_VALUES, characters=MAX_SPEC_BYTES):
            raise SpecError([SpecProblem("", f"{too_much}; put the data into files")])
        refused = refusals(value)
        raw = without_refused(value, refused)
        refused += add_command(raw)
        if raw.get("name") is None:
            raw["name"] = _name_from_command(raw.get("entrypoint") or raw.get("command"))
        try:
            spec = handler(raw)
        except ValidationError as error:
            raise SpecError(itertools.chain(refused, problems_of(error, cls))) from None
        if refused:
            raise SpecError(refused)
        if len(json.dumps(spec.to_mapping())) > MAX_SPEC_BYTES:
            raise SpecError(
                [SpecProblem("", f"more than {MAX_SPEC_BYTES // 1024} KiB; put the data into files")]
            )
        return spec

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> JobSpec:
        """Check plain data, e.g. a parsed JSON body.  Raises SpecError."""
        return cls.model_validate(mapping)

    @classmethod
    def from_yaml(cls, source: str | Path) -> JobSpec:
        """Read YAML or JSON: a `Path` is opened, a `str` is the text itself.  Raises SpecError.

        In a file a relative `code` is relative to the file's folder, wherever it is read from.
        """
        if isinstance(source, Path):
            return cls.model_validate(read_spec_file(source, MAX_SPEC_BYTES))
        return cls.model_validate(read_yaml(source, MAX_SPEC_BYTES))

    def to_mapping(self) -> dict[str, Any]:
        """Plain data for JSON with every default written out; `from_mapping` gives an equal specification."""
        return self.model_dump(mode="json")

    def with_code(self, digest: str | None) -> JobSpec:
        """The same job with its code addressed by a bundle's digest."""
        return self.from_mapping({**self.to_mapping(), "code": digest})

    @property
    def bundle(self) -> str | None:
        """Digest of the code bundle; None when `code` is a folder or empty."""
        return self.code if self.code is not None and self.code.startswith("sha256:") else None

    @property
    def code_folder(self) -> Path | None:
        """Folder on this machine that must be packed; None when there is none or it is a bundle already."""
        return Path(self.code) if self.code is not None and self.bundle is None else None

    @property
    def min_workers(self) -> int:
        """Fewest workers that may train: the smallest possible size of `workers`."""
        return self.worker_sizes.min

    @property
    def max_workers(self) -> int:
        """Most workers that the job can use: the largest possible size of `workers`."""
        return self.worker_sizes.max

    @property
    def worker_sizes(self) -> WorkerSizes:
        """The sizes that a worker group may have."""
        said = {
            "backend": self.backend,
            "workers": {"multiple_of": self.workers.multiple_of},
            "elastic": {"global_batch": self.elastic.global_batch},
        }
        return sizes_of(said, self.workers.min, self.workers.max)

    def ray_resources(self) -> dict[str, float]:
        """What one worker asks of Ray, e.g. `{"CPU": 1.0, "GPU": 1.0, "memory": 1e9}`; zero ones left out."""
        wanted = {
            "CPU": self.resources.cpus,
            "GPU": self.resources.gpus,
            "memory": self.resources.memory or 0,
        }
        return {name: float(amount) for name, amount in wanted.items() if amount}


def _name_from_command(command: object) -> str:
    """A name for people: the script, the module, or the program."""
    is_script = False
    try:
        is_script = isinstance(command, str) and needs_shell(command)
        words = words_of(command) if isinstance(command, str) and not is_script else command
    except ValueError:
        return "job"
    if isinstance(words, str):
        words = _BREAKS.split(words)
    if not isinstance(words, list | tuple) or not words or not all(isinstance(word, str) for word in words):
        return "job"
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    modules = [after for word, after in itertools.pairwise(words) if word == "-m"]
    # The first program of a script for a shell may be any.
    if len(words) == 1 and is_entrypoint(words[0]):
        modules = [words[0].partition(":")[0].rpartition(".")[2]]
    source = Path((scripts or modules or (["job"] if is_script else words))[0])
    stem = source.stem if scripts else source.name
    return re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._")[:63] or "job"


def _dotted(model: type[BaseModel], prefix: str = "") -> list[str]:
    fields = []
    for name, field in model.model_fields.items():
        fields.append(prefix + name)
        if (section := section_of(field.annotation)) is not None:
            fields += _dotted(section, f"{prefix}{name}.")
    return fields


JobSpec.known_fields = tuple(_dotted(JobSpec))
