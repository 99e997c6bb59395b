"""Sections of a specification, each immutable and checked by itself; `docs/job-spec.md` explains every field."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
    field_validator,
    model_validator,
)

from remora.spec.cron import next_after, parse_cron, zone_of
from remora.spec.fields import (
    EXIT_CODES_FORM,
    IMAGE_FORM,
    JOB_ID_FORM,
    LONGEST_PATTERN,
    MAX_EXIT_CODES,
    MAX_PATTERNS,
    MAX_PLACES,
    MAX_WORKERS,
    NAME_FORM,
    SHARE_FORM,
    Budget,
    Duration,
    ExitCodes,
    Image,
    Interval,
    JobId,
    Moment,
    Name,
    Number,
    PositiveDuration,
    Share,
    Size,
    Text,
    Whole,
    WorkerCount,
    Zone,
    refuses_variable,
    whole,
)
from remora.spec.quantities import BUDGET_FORM, DURATION_FORM, MOMENT_FORM, SIZE_FORM
from remora.spec.secret_uses import MAX_SECRETS, SECRETS_FORM, SecretUse, refuses_uses

#: Characters of a path in a specification.
LONGEST_PATH = 1024
_OUTPUT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")
#: A path that ends like a file: `snapshot.pt`, but not `runs`, `v1.2` or `conf.d/`.
_FILE = re.compile(r"(?:.*/)?[^/]+\.[A-Za-z][A-Za-z0-9_]*", re.DOTALL)


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
        count = whole(value)
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


#: Inputs of a job.
MAX_INPUTS = 50
#: Requirements of an environment, and characters of one.
MAX_REQUIREMENTS, LONGEST_REQUIREMENT = 500, 1000
#: Characters of the commands that finish one.
LONGEST_SETUP = 10_000
_PYTHON = re.compile(r"3\.\d{1,2}")


class Environment(Section):
    """What surrounds the command: an image or its Python packages, and its variables."""

    #: The image of a container in which the command runs; None: it runs on the node itself.
    image: Image | None = Field(None, description=IMAGE_FORM)
    #: Version of Python; None: that of the nodes.
    python: StrictStr | None = Field(None, description='a version of Python in quotes, e.g. "3.12"')
    #: Requirements as pip writes them.
    pip: tuple[Text, ...] = Field(
        (), max_length=MAX_REQUIREMENTS, description="a list of requirements, e.g. [transformers==5.*]"
    )
    #: A file of the code that lists requirements.
    requirements: Text | None = Field(
        None,
        max_length=LONGEST_PATH,
        description="a file in `code`: requirements.txt, uv.lock, pylock.toml or pyproject.toml",
    )
    #: Commands of a shell that finish it, in the folder of the code.
    setup: Text | None = Field(
        None, max_length=LONGEST_SETUP, description="commands for bash, which run once when it is built"
    )
    #: Whether the environment is layered on the nodes' packages; None: where that is possible.
    inherit: StrictBool | None = Field(None, description="true or false")
    variables: dict[StrictStr, Text] = Field(
        {}, description="names with text values; put quotes around numbers"
    )
    #: Secrets of the job's project that its workers get.
    secrets: tuple[SecretUse, ...] = Field((), max_length=MAX_SECRETS, description=SECRETS_FORM)

    @field_validator("secrets", mode="before")
    @classmethod
    def _one_secret_needs_no_list(cls, value: object) -> object:
        if value is None:
            return ()
        return (value,) if isinstance(value, str | Mapping) else value

    @model_validator(mode="after")
    def _secrets_are_distinct(self) -> Self:
        if refusal := refuses_uses(self.secrets, self.variables):
            raise ValueError(f"secrets: {refusal}")
        return self

    @field_validator("python")
    @classmethod
    def _is_a_version(cls, value: str | None) -> str | None:
        if value is not None and not _PYTHON.fullmatch(value):
            raise ValueError
        return value

    @field_validator("pip", mode="before")
    @classmethod
    def _none_is_empty(cls, value: object) -> object:
        return () if value is None else value

    @field_validator("pip")
    @classmethod
    def _are_requirements(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        for line in lines:
            if not line.strip() or line.lstrip().startswith("-") or len(line) > LONGEST_REQUIREMENT:
                raise ValueError(
                    f"{line[:60]!r} is no requirement; write packages such as transformers==5.*, and options of pip"
                    " into the file of environment.requirements"
                )
        return lines

    @field_validator("requirements")
    @classmethod
    def _is_within_the_code(cls, value: str | None) -> str | None:
        if value is None:
            return None
        path = PurePosixPath(value)
        is_known = path.suffix in (".txt", ".in", ".toml") or path.name == "uv.lock"
        if path.is_absolute() or ".." in path.parts or not is_known:
            raise ValueError(
                f"{value[:60]!r} is no file of requirements below `code`; write the path of a requirements.txt,"
                " uv.lock, pylock.toml or pyproject.toml, relative to `code`"
            )
        return value

    @model_validator(mode="after")
    def _image_is_alone(self) -> Self:
        wanted = {"inherit: true": self.inherit, "python": self.python, "pip": self.pip}
        wanted |= {"requirements": self.requirements, "setup": self.setup}
        if self.image is not None and (named := [name for name, value in wanted.items() if value]):
            raise ValueError(
                f"{' and '.join(named)} cannot be combined with image, whose own Python and packages the command has;"
                " put what it needs into the image, or leave image out"
            )
        return self

    @property
    def is_built(self) -> bool:
        """The job has a Python environment of its own, which is built on its nodes."""
        return bool(self.python or self.pip or self.requirements or self.setup)

    @field_validator("variables")
    @classmethod
    def _allowed(cls, variables: dict[str, str]) -> dict[str, str]:
        for name in variables:
            if refusal := refuses_variable(name):
                raise ValueError(refusal)
        return variables


class Placement(Section):
    """Which nodes the job accepts; what is left out asks for nothing."""

    #: In order of preference.
    pools: tuple[Name, ...] = Field((), max_length=MAX_PLACES, description=f"a list of names: {NAME_FORM}")
    #: `prefer-spot` and `mixed` say what is bought first.
    capacity: Literal["spot", "on-demand", "prefer-spot", "mixed"] | None = Field(
        None, description="spot, on-demand, prefer-spot or mixed"
    )
    zones: tuple[Zone, ...] = Field((), max_length=MAX_PLACES, description='a list of zones, e.g. ["1", "2"]')
    #: `infiniband`: all workers in one domain of machines that are joined by it.
    fabric: Literal["any", "infiniband"] = Field("any", description="any or infiniband")

    @field_validator("pools", "zones", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        """One alone needs no list, and an empty one asks for nothing."""
        if value is None:
            return ()
        return (value,) if isinstance(value, str | int) else value

    @field_validator("fabric", mode="before")
    @classmethod
    def _nothing_asked(cls, value: object) -> object:
        return "any" if value is None else value

    @field_validator("pools", "zones")
    @classmethod
    def _once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if doubled := next((one for one in value if value.count(one) > 1), None):
            raise ValueError(f"{doubled} is there twice")
        return value


def _output_name(value: str) -> str:
    if not _OUTPUT.fullmatch(value):
        raise ValueError
    return value


class Input(Section):
    """What the job reads: a folder or file of a store, or an output of another job."""

    store: Annotated[Text, Field(min_length=1)] | None = Field(
        None, description="the name of a store that the service's operators have set up"
    )
    path: Text | None = Field(
        None, max_length=LONGEST_PATH, description="a folder or file in the store, e.g. images/train"
    )
    job: JobId | None = Field(None, description=JOB_ID_FORM)
    output: Annotated[StrictStr, AfterValidator(_output_name)] | None = Field(
        None, description="the name of an output of that job"
    )
    mode: Literal["download", "mount"] = Field("download", description="download or mount")

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        if (self.store is None) == (self.job is None):
            raise ValueError("write either {store: a name, path: ..} or {job: an id, output: a name}")
        if self.job is not None and (self.path is not None or self.mode == "mount"):
            raise ValueError(
                "an output of a job has neither path nor mode: mount; write {job: an id, output: a name}"
            )
        if self.store is not None and self.output is not None:
            raise ValueError("output is for an input of another job; write path for one of a store")
        return self

    @field_validator("path")
    @classmethod
    def _is_within_the_store(cls, value: str | None) -> str | None:
        parts = () if value is None else PurePosixPath(value).parts
        if ".." in parts or "/" in parts or (value is not None and "\0" in value):
            raise ValueError(f"{value!r:.60} is no path below the store; write it relative and without `..`")
        return None if value is None else PurePosixPath(value).as_posix()


class Verify(Section):
    """How often workers compute shards of each other again."""

    every: Share = Field(description="steps from one check to the next")


class Elastic(Section):
    """What holds when the number of workers changes; `remora.torch.Loop` takes it from here."""

    exactness: Literal["none", "sample-exact", "bitwise"] = Field(
        "none", description="none, sample-exact or bitwise"
    )
    global_batch: Share | None = Field(None, description=SHARE_FORM)
    shards: Share | None = Field(None, description=SHARE_FORM)
    nonfinite: Literal["none", "stop", "skip", "rollback"] = Field(
        "none", description="none, stop, skip or rollback"
    )
    verify: Verify | None = Field(None, description="key every, in steps; with exactness bitwise")

    @model_validator(mode="after")
    def _cut(self) -> Self:
        if self.verify is not None and self.exactness != "bitwise":
            raise ValueError("verify compares bits; write exactness: bitwise beside it")
        if self.shards and self.global_batch and self.shards > self.global_batch:
            raise ValueError(
                f"shards is {self.shards} and global_batch is {self.global_batch}; every shard needs a sample"
            )
        return self

    def variables(self) -> dict[str, str]:
        """Environment variables with what the job asks of its script."""
        asked = {
            "EXACTNESS": self.exactness,
            "GLOBAL_BATCH": self.global_batch,
            "SHARDS": self.shards,
            "NONFINITE": self.nonfinite,
            "VERIFY_EVERY": None if self.verify is None else self.verify.every,
        }
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
    store: Annotated[Text, Field(min_length=1)] | None = Field(
        None, description="the name of a store that the service's operators have set up"
    )

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
    #: Exit codes that are retried; with both lists empty all are.
    on_exit_codes: tuple[ExitCodes, ...] = Field((), max_length=MAX_EXIT_CODES, description=EXIT_CODES_FORM)
    #: Texts in a line of the log after which any exit code is retried.
    on_log_patterns: tuple[Text, ...] = Field(
        (), max_length=MAX_PATTERNS, description='a list of texts, e.g. ["CUDA error: unspecified"]'
    )

    @field_validator("on_exit_codes", "on_log_patterns", mode="before")
    @classmethod
    def _one_needs_no_list(cls, value: object) -> object:
        if value is None:
            return ()
        return (value,) if isinstance(value, int | str) else value

    @field_validator("on_log_patterns")
    @classmethod
    def _are_within_a_line(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if not text.strip() or len(text) > LONGEST_PATTERN or "\n" in text:
                raise ValueError(
                    f"{text[:60]!r} is no text to look for in a line of the log; write 1 to {LONGEST_PATTERN}"
                    " characters of one line, which are compared as they are"
                )
        return value

    @model_validator(mode="after")
    def _retries_something(self) -> Self:
        if not self.limit and (self.on_exit_codes or self.on_log_patterns):
            raise ValueError(
                "limit is 0, so that nothing is retried; set it to at least 1, or leave on_exit_codes and"
                " on_log_patterns out"
            )
        return self

    @property
    def backoff_s(self) -> float:
        """Seconds before the first new attempt; doubled for each further one."""
        return self.backoff


#: Jobs that one job may wait for.
MAX_AFTER = 100
AFTER_FORM = "whole ids of jobs, job_ and 26 characters, or {job: an id, when: success, failure or any}"


class After(Section):
    """The end of another job that comes first."""

    job: JobId = Field(description=JOB_ID_FORM)
    when: Literal["success", "failure", "any"] = Field("success", description="success, failure or any")

    @model_validator(mode="before")
    @classmethod
    def _from_id(cls, value: object) -> object:
        return {"job": value} if isinstance(value, str) else value


SCHEDULE_FORM = 'a time of cron, e.g. "0 3 * * mon-fri", or {cron: .., zone: .., missed: .., overlap: ..}'


class ScheduleRules(Section):
    """When the job is submitted, again and again."""

    cron: StrictStr = Field(description='a time of cron, e.g. "0 3 * * mon-fri"')
    zone: StrictStr = Field("UTC", description="the name of a time zone, e.g. Europe/Berlin")
    #: What follows times at which no controller ran.
    missed: Literal["latest", "skip"] = Field("latest", description="latest or skip")
    #: What follows a time at which the job of the one before has not ended.
    overlap: Literal["skip", "wait", "allow"] = Field("skip", description="skip, wait or allow")

    @model_validator(mode="before")
    @classmethod
    def _from_time(cls, value: object) -> object:
        return {"cron": value} if isinstance(value, str) else value

    @field_validator("cron")
    @classmethod
    def _is_a_time(cls, value: str) -> str:
        if len(value) > LONGEST_PATH:
            raise ValueError(f"more than {LONGEST_PATH} characters")
        parse_cron(value)
        return value

    @field_validator("zone")
    @classmethod
    def _is_a_zone(cls, value: str) -> str:
        zone_of(value)
        return value

    @model_validator(mode="after")
    def _comes(self) -> Self:
        if next_after(self.cron, self.zone, 0.0) is None:
            raise ValueError(f"{self.cron!r} is no time that ever comes")
        return self


class Limits(Section):
    """Where the job ends by itself."""

    run_time: PositiveDuration | None = Field(None, description=DURATION_FORM)
    wait_time: PositiveDuration | None = Field(None, description=DURATION_FORM)
    step_time: PositiveDuration = Field(600.0, description=DURATION_FORM)
    #: USD.
    budget: Budget | None = Field(None, description=BUDGET_FORM)
    deadline: Moment | None = Field(None, description=MOMENT_FORM)

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
    """A folder that the script fills, or one file of the working folder."""

    model: Name | None = Field(None, description=NAME_FORM)
    path: Text | None = Field(None, description="a file or folder below the folder in which the command runs")
    commit: Text | None = Field(None, description="the name of a file in the output")

    @property
    def is_file(self) -> bool:
        """True when the path is that of a file: it ends like one, `snapshot.pt`, and without a slash."""
        return self.path is not None and _FILE.fullmatch(self.path) is not None

    @field_validator("path")
    @classmethod
    def _inside(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if len(value) > LONGEST_PATH:
            raise ValueError(f"a path of more than {LONGEST_PATH} characters")
        if not (path := _below(value)):
            raise ValueError(f"{value[:80]!r} is no file or folder below the one in which the command runs")
        # The slash alone says that `conf.d/` is a folder.
        return f"{path}/" if value.endswith("/") and _FILE.fullmatch(path) else path

    @field_validator("commit")
    @classmethod
    def _in_the_output(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if len(value) > LONGEST_PATH:
            raise ValueError(f"a path of more than {LONGEST_PATH} characters")
        if not (path := _below(value)) or value.endswith("/"):
            raise ValueError(f"{value[:80]!r} is no name of a file in the output")
        return path


def _below(value: str) -> str | None:
    """The path in its shortest form; None when it is not below the folder that it is relative to."""
    path = PurePosixPath(value)
    return None if path.is_absolute() or not path.parts or ".." in path.parts else str(path)


def _output(value: object) -> object:
    return {} if value is None else value


def _named(value: dict[str, Output]) -> dict[str, Output]:
    for name in value:
        if not _OUTPUT.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no name of an output; use letters, digits, '-', '_' and '.'")
    models = Counter(output.model for output in value.values() if output.model is not None)
    if doubled := next((name for name, count in models.items() if count > 1), None):
        raise ValueError(f"two outputs become the model {doubled}; give them different names")
    # `conf.d/` and `conf.d` are one place.
    paths = Counter(output.path.rstrip("/") for output in value.values() if output.path is not None)
    for one, count in paths.items():
        above = {str(folder) for folder in PurePosixPath(one).parents}
        if other := one if count > 1 else next(iter(above & paths.keys()), None):
            raise ValueError(f"the folders {other} and {one} of two outputs lie in each other")
    return value


Outputs = Annotated[dict[StrictStr, Annotated[Output, BeforeValidator(_output)]], AfterValidator(_named)]
