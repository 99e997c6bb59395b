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
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from remora.backends import BACKEND_WORDS, BackendName
from remora.errors import SpecError, SpecProblem
from remora.expressions import refuses_expressions
from remora.launchers import check_launcher, unwrap
from remora.quantities import DURATION_FORM, SIZE_FORM, parse_duration, parse_size
from remora.refusals import refusals, without_refused
from remora.spec_problems import problems_of, read_spec_file, read_yaml, section_of
from remora.worker_sizes import WorkerSizes

#: Bytes of a whole specification as JSON.
MAX_SPEC_BYTES = 256 * 1024
MAX_WORKERS = 4096

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_NAME_FORM = "1 to 63 of a-z, 0-9, '-', '_' and '.', beginning with a letter or a digit"
_OUTPUT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Variables that the supervisor sets for every worker.
_OUR_VARIABLES = frozenset(
    f"{group}{word}"
    for group, words in {
        "": ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        "LOCAL_": ("RANK", "WORLD_SIZE"),
        "GROUP_": ("RANK", "WORLD_SIZE"),
        "ROLE_": ("RANK", "WORLD_SIZE"),
        "NODE_": ("RANK",),
    }.items()
    for word in words
)
_OUR_PREFIXES = ("REMORA_", "TORCHELASTIC_")


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is not int:  # a bool is an int to isinstance
        raise ValueError
    return value


def _number(value: object) -> object:
    if type(value) not in (int, float):
        raise ValueError
    return value


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError
    return value


def _positive(value: float) -> float:
    if value <= 0:
        raise ValueError("expected more than 0 seconds")
    return value


def _interval(value: object) -> float | str:
    return "auto" if value == "auto" else _positive(parse_duration(value))


def _passable(value: str) -> str:
    if "\0" in value:
        raise ValueError("a null character cannot be passed to a process")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("half a character (a lone surrogate) has no bytes; remove it") from None
    return value


def refuses_variable(name: str) -> str | None:
    """Why an environment variable of this name cannot be given; None when it can."""
    if not _VARIABLE.fullmatch(name):
        return f"{name[:80]!r} is not a variable's name; use letters, digits and '_'"
    if name in _OUR_VARIABLES or name.startswith(_OUR_PREFIXES):
        return f"{name} is set by Remora for every worker; choose another name"
    return None


Whole = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_number)]
Name = Annotated[StrictStr, AfterValidator(_name)]
Duration = Annotated[float, BeforeValidator(parse_duration)]
PositiveDuration = Annotated[float, BeforeValidator(parse_duration), AfterValidator(_positive)]
Interval = Annotated[float | Literal["auto"], PlainValidator(_interval)]
Size = Annotated[int, BeforeValidator(parse_size)]
Text = Annotated[StrictStr, AfterValidator(_passable)]
_SHARE_FORM = "a whole number from 1 to 2**31"
Share = Annotated[Whole, Field(ge=1, le=2**31, description=_SHARE_FORM)]
WorkerCount = Annotated[
    Whole, Field(ge=1, le=MAX_WORKERS, description=f"a whole number from 1 to {MAX_WORKERS}")
]


class Section(BaseModel):
    """A part of a specification: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


class Workers(Section):
    """How many workers the job may have."""

    min: WorkerCount
    max: WorkerCount
    multiple_of: WorkerCount = 1

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: object) -> object:
        if isinstance(value, Mapping | cls):
            return value
        count = _whole(value)
        if not isinstance(count, int) or not 1 <= count <= MAX_WORKERS:
            raise ValueError
        return {"min": count, "max": count}

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min} and max is {self.max}; min must not be above max")
        for name, count in (("min", self.min), ("max", self.max)):
            if count % self.multiple_of:
                raise ValueError(
                    f"{name} is {count} and multiple_of is {self.multiple_of}; {count} workers cannot be cut into"
                    f" whole copies of the model, so write a multiple of {self.multiple_of}"
                )
        return self


Device = Literal["auto", "cpu", "cuda", "xpu"]
Precision = Literal["full", "bf16"]


class Resources(Section):
    """What one worker needs."""

    gpus: Number = Field(0, ge=0, le=1024, description="0, a share below 1, or a whole number of GPUs")
    cpus: Number = Field(1, gt=0, le=4096, description="a number of CPUs above 0")
    memory: Size | None = Field(None, description=SIZE_FORM)
    #: What the command must find on its node; `auto` asks for nothing.
    device: Device = Field("auto", description="auto, cpu, cuda or xpu")
    #: How exactly processors multiply: `bf16` lets oneDNN round the factors.
    precision: Precision = Field("full", description="full or bf16")

    @field_validator("gpus")
    @classmethod
    def _whole_above_one(cls, value: float) -> float:
        if value > 1 and not value.is_integer():
            raise ValueError
        return value

    @model_validator(mode="after")
    def _device_fits(self) -> Self:
        if self.device == "cpu" and self.gpus:
            raise ValueError(f"device is cpu and gpus is {self.gpus:g}; write gpus: 0, or another device")
        if self.device in ("cuda", "xpu") and not self.gpus:
            raise ValueError(f"device is {self.device} and gpus is 0; write gpus: 1, or leave device out")
        if self.precision == "bf16" and self.gpus:
            raise ValueError(
                f"precision is bf16, which is for processors, and gpus is {self.gpus:g}; "
                "use torch.autocast in the script instead"
            )
        return self


class Environment(Section):
    """What surrounds the command."""

    variables: dict[StrictStr, Text] = Field(
        {}, description="names with text values; put quotes around numbers"
    )

    @field_validator("variables")
    @classmethod
    def _allowed(cls, variables: dict[str, str]) -> dict[str, str]:
        for name in variables:
            if refusal := refuses_variable(name):
                raise ValueError(refusal)
        return variables


class Elastic(Section):
    """What holds when the number of workers changes; `remora.torch.Loop` takes it from here."""

    exactness: Literal["none", "sample-exact", "bitwise"] = Field(
        "none", description="none, sample-exact or bitwise"
    )
    global_batch: Share | None = Field(None, description=_SHARE_FORM)
    shards: Share | None = Field(None, description=_SHARE_FORM)

    @model_validator(mode="after")
    def _cut(self) -> Self:
        if self.shards and self.global_batch and self.shards > self.global_batch:
            raise ValueError(
                f"shards is {self.shards} and global_batch is {self.global_batch}; every shard needs a sample"
            )
        return self

    def variables(self) -> dict[str, str]:
        """Environment variables that tell a script what its job asks for."""
        asked = {"EXACTNESS": self.exactness, "GLOBAL_BATCH": self.global_batch, "SHARDS": self.shards}
        return {f"REMORA_{name}": str(value) for name, value in asked.items() if value not in (None, "none")}


class Best(Section):
    """Which metric chooses the best checkpoint."""

    metric: Annotated[Text, Field(min_length=1)] = Field(
        description="the name of a metric that the script reports"
    )
    mode: Literal["min", "max"] = Field("min", description="min or max")


class CheckpointPolicy(Section):
    """When scripts are asked for a checkpoint, and how many are kept."""

    interval: Interval | None = Field(60.0, description=f"{DURATION_FORM}, auto, or none")
    keep: Whole = Field(3, ge=1, le=100, description="a whole number from 1 to 100")
    best: Best | None = Field(None, description="{metric: a name, mode: min or max}")
    store: Annotated[Text, Field(min_length=1)] | None = Field(None, description="a folder or a URL")

    @field_validator("interval", mode="before")
    @classmethod
    def _none(cls, value: object) -> object:
        return None if value == "none" else value

    @property
    def interval_s(self) -> float | None:
        """Seconds between two requests for a checkpoint, if they are fixed; None asks only before planned stops."""
        return None if self.interval == "auto" else self.interval

    @property
    def is_interval_auto(self) -> bool:
        """True when what checkpoints cost decides how often they are asked for."""
        return self.interval == "auto"


class Retry(Section):
    """What happens after the job's own code failed."""

    limit: Whole = Field(3, ge=0, le=100, description="a whole number from 0 to 100")
    backoff: Duration = Field(1.0, description=DURATION_FORM)

    @property
    def backoff_s(self) -> float:
        """Seconds before the first new attempt; doubled for each further one."""
        return self.backoff


class Limits(Section):
    """Where the job ends by itself."""

    run_time: PositiveDuration | None = Field(None, description=DURATION_FORM)
    wait_time: PositiveDuration | None = Field(None, description=DURATION_FORM)
    step_time: PositiveDuration = Field(600.0, description=DURATION_FORM)

    @property
    def run_time_s(self) -> float | None:
        """Seconds that the job may train, over all attempts; None sets no limit."""
        return self.run_time

    @property
    def wait_time_s(self) -> float | None:
        """Seconds that the job may wait for its first attempt; None sets no limit."""
        return self.wait_time

    @property
    def step_time_s(self) -> float:
        """Seconds that a step may take however short the others are; see the end reason `hang`."""
        return self.step_time


class Output(Section):
    """A folder that the script fills."""

    model: Name | None = Field(None, description=_NAME_FORM)
    path: Text | None = Field(None, description="a folder below the one in which the command runs")

    @field_validator("path")
    @classmethod
    def _inside(cls, value: str | None) -> str | None:
        if value is None:
            return None
        path = PurePosixPath(value)
        if path.is_absolute() or not path.parts or ".." in path.parts:
            raise ValueError(f"{value[:80]!r} is no folder below the one in which the command runs")
        return str(path)


def _output(value: object) -> object:
    return {} if value is None else value


Outputs = dict[StrictStr, Annotated[Output, BeforeValidator(_output)]]


class JobSpec(Section):
    """A job as its owner describes it.  Raises SpecError, however it is made."""

    #: The fields of this version, dotted, for "did you mean".
    known_fields: ClassVar[tuple[str, ...]]

    name: Name = Field(description=_NAME_FORM)
    project: Name = Field("default", description=_NAME_FORM)
    #: A folder on the client's machine, `sha256:...` once it is uploaded, or None for an empty folder.
    code: Annotated[Text, Field(min_length=1)] | None = Field(
        None, description="a folder, or sha256: and 64 hexadecimal digits"
    )
    command: list[Text] = Field(min_length=1, description="a command line, or a list of texts")
    backend: BackendName = Field("ddp", description=BACKEND_WORDS)
    workers: Workers = Field(
        Workers(min=1, max=1),
        description=f"a whole number from 1 to {MAX_WORKERS}, or {{min: .., max: .., multiple_of: ..}}",
    )
    resources: Resources = Field(Resources(), description="keys gpus, cpus, memory")
    environment: Environment = Field(Environment(), description="the key variables")
    #: Folders below `REMORA_OUTPUTS_DIR`, by name.
    outputs: Outputs = Field({}, description="names, each with {} or the keys model, path")
    elastic: Elastic = Field(Elastic(), description="keys exactness, global_batch, shards")
    checkpoint: CheckpointPolicy = Field(CheckpointPolicy(), description="keys interval, keep, best, store")
    priority: Whole = Field(50, ge=0, le=100, description="a whole number from 0 to 100")
    retry: Retry = Field(Retry(), description="keys limit, backoff")
    limits: Limits = Field(Limits(), description="keys run_time, wait_time, step_time")

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return shlex.split(value)
        except ValueError as error:
            raise ValueError(f"the command line cannot be split into words: {error}") from None

    @field_validator("command")
    @classmethod
    def _has_program(cls, value: list[str]) -> list[str]:
        if not value[0].strip():
            raise ValueError("the first word of the command is empty; write the program to run")
        for name in unwrap(value).variables:
            if refusal := refuses_variable(name):
                raise ValueError(f"its launcher is told to set a variable: {refusal}")
        return value

    @model_validator(mode="after")
    def _launcher_agrees(self) -> Self:
        check_launcher(self.command, self.backend, self.workers.min, self.workers.max)
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

    @field_validator("outputs", mode="before")
    @classmethod
    def _no_outputs(cls, value: object) -> object:
        return {} if value is None else value

    @field_validator("outputs")
    @classmethod
    def _named(cls, value: Outputs) -> Outputs:
        for name in value:
            if not _OUTPUT.fullmatch(name):
                raise ValueError(
                    f"{name[:80]!r} is no name of an output; use letters, digits, '-', '_' and '.'"
                )
        models = [output.model for output in value.values() if output.model is not None]
        if doubled := next((name for name in models if models.count(name) > 1), None):
            raise ValueError(f"two outputs become the model {doubled}; give them different names")
        paths = [PurePosixPath(output.path) for output in value.values() if output.path is not None]
        for one, other in itertools.permutations(paths, 2):
            if one.is_relative_to(other):
                raise ValueError(f"the folders {other} and {one} of two outputs lie in each other")
        return value

    @model_validator(mode="after")
    def _knows_its_expressions(self) -> Self:
        texts = (*self.command, *self.environment.variables.values())
        if refusal := refuses_expressions(texts, self.outputs):
            raise ValueError(refusal)
        return self

    @model_validator(mode="after")
    def _some_size_is_allowed(self) -> Self:
        sizes = self.worker_sizes
        if not sizes.fit(sizes.max):
            raise ValueError(
                f"elastic.global_batch is {sizes.dealt}, which no number of workers from {sizes.min} to {sizes.max}"
                " deals in equal parts; change one of them"
            )
        return self

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
        refused = refusals(value)
        raw = without_refused(value, refused)
        if raw.get("name") is None:
            raw["name"] = _name_from_command(raw.get("command"))
        try:
            spec = handler(raw)
        except ValidationError as error:
            raise SpecError([*refused, *problems_of(error, cls)]) from None
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
        """Fewest workers that may train."""
        return self.workers.min

    @property
    def max_workers(self) -> int:
        """Most workers that the job can use."""
        return self.workers.max

    @property
    def worker_sizes(self) -> WorkerSizes:
        """The sizes that a worker group may have."""
        workers = self.workers
        # DeepSpeed deals a batch in equal parts only.
        dealt = self.elastic.global_batch if self.backend == "deepspeed" else None
        return WorkerSizes(workers.min, workers.max, workers.multiple_of, dealt)

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
    try:
        words = shlex.split(command) if isinstance(command, str) else command
    except ValueError:
        return "job"
    if not isinstance(words, list | tuple) or not words or not all(isinstance(word, str) for word in words):
        return "job"
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    modules = [after for word, after in itertools.pairwise(words) if word == "-m"]
    source = Path((scripts or modules or words)[0])
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
