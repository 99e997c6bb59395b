"""Sizes that operators add to the built-in table, or replace in it, by a file of their own (pure)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cluster.azure.catalogue import BY_NAME, Size
from cluster.policies.amd_sizes import why_refused
from remora.errors import SpecError
from remora.spec.problems import parse_yaml, short

#: Characters of a file, sizes in it, and problems that are named at once.
MAX_FILE = 256 * 1024
MAX_SIZES = 500
_MAX_PROBLEMS = 20
_NAME = r"^Standard_[A-Za-z0-9_-]{1,60}$"
_FORM = (
    "a catalogue is a mapping `sizes:` of names of machine sizes, each with cpus, memory_gib and on_demand_usd, as"
    " docs/azure.md shows"
)

Usd = Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)]


class CatalogueRefused(Exception):
    """A catalogue cannot be used; the message has one sentence for each problem."""


class _SizeEntry(BaseModel):
    """One size as operators write it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    cpus: int = Field(ge=1, le=4096)
    memory_gib: int = Field(ge=1, le=65_536)
    gpus: int = Field(default=0, ge=0, le=64)
    #: Model of the GPUs; a value of the label `azure-gpu`.
    gpu: str = Field(default="", pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,38}[A-Za-z0-9])?)?$")
    gpu_memory_gib: int = Field(default=0, ge=0, le=4096)
    #: USD per hour, in the region of the nodes.
    on_demand_usd: Usd
    spot_usd: Usd | None = None
    #: False: it is not sold as spot.
    spot: bool = True
    #: Name of its on-demand quota.
    family: str = Field(default="", max_length=100)
    fabric: bool = False
    zones: list[Literal["1", "2", "3"]] | None = None

    @model_validator(mode="after")
    def _agree(self) -> _SizeEntry:
        if self.gpus and not self.gpu:
            raise ValueError("it has gpus, so that gpu has to name their model")
        if not self.gpus and (self.gpu or self.gpu_memory_gib):
            raise ValueError("gpu and gpu_memory_gib are of a size with gpus")
        if self.spot_usd is not None and not self.spot:
            raise ValueError("spot_usd is of a size with spot")
        return self


def read_sizes(text: str) -> tuple[Size, ...]:
    """The sizes of a file's text, YAML or JSON, in their order.  Raises CatalogueRefused with every problem."""
    try:
        data, _ = parse_yaml(text, MAX_FILE, "the catalogue")
    except SpecError as error:
        raise CatalogueRefused("; ".join(one.message for one in error.problems)) from None
    if not isinstance(data, dict) or list(data) != ["sizes"] or not isinstance(data["sizes"], dict):
        raise CatalogueRefused(_FORM)
    entries: dict[Any, Any] = data["sizes"]
    if len(entries) > MAX_SIZES:
        raise CatalogueRefused(f"there are {len(entries)} sizes; write at most {MAX_SIZES}")
    found: list[Size] = []
    problems: list[str] = []
    for name, entry in entries.items():
        if len(problems) > _MAX_PROBLEMS:
            break
        try:
            found.append(_size(_name(name), entry))
        except ValidationError as error:
            problems.extend(_sentences(name, error))
        except ValueError as error:
            problems.append(f"sizes: {error}")
    if len(twice := {size.name.lower() for size in found}) < len(found):
        problems.append(f"sizes: {len(found) - len(twice)} of the names differ in the case of letters alone")
    if problems:
        more = ["and more"] if len(problems) > _MAX_PROBLEMS else []
        raise CatalogueRefused("; ".join([*problems[:_MAX_PROBLEMS], *more]))
    return tuple(found)


def with_own(own: tuple[Size, ...]) -> Mapping[str, Size]:
    """The built-in table with the operators' own sizes, which replace those of the same name, by name."""
    return {**BY_NAME, **{size.name: size for size in own}}


def _name(name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(_NAME, name):
        raise ValueError(
            f"{short(name)} is no name of a size; names begin with Standard_, as Azure writes them"
        )
    near = {known.lower(): known for known in BY_NAME}.get(name.lower(), name)
    if near != name:
        raise ValueError(f"{name} is {near} in another case; write {near} to replace it")
    return name


def _size(name: str, entry: object) -> Size:
    one = _SizeEntry.model_validate(entry)
    if (why := why_refused(name, one.gpu)) is not None:
        raise ValueError(why)
    return Size(
        name=name,
        gpu=one.gpu,
        gpus=one.gpus,
        vcpus=one.cpus,
        memory_gib=one.memory_gib,
        on_demand_usd=one.on_demand_usd,
        spot_usd=one.spot_usd,
        has_fabric=one.fabric,
        family=one.family,
        gpu_memory_gib=one.gpu_memory_gib,
        zones=frozenset(one.zones) if one.zones is not None else frozenset("123"),
        has_spot=one.spot,
        is_priced_here=True,
    )


def _sentences(name: object, error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        place = ".".join(["sizes", str(name)[:80], *map(str, detail["loc"])])
        if detail["type"] == "extra_forbidden":
            key = str(detail["loc"][-1])[:80]
            near = difflib.get_close_matches(key, _SizeEntry.model_fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_SizeEntry.model_fields)}"
            yield f"{place[:200]}: unknown key; {hint}"
        elif detail["type"] == "missing":
            yield f"{place}: missing"
        elif detail["type"] == "value_error":
            yield f"{place}: {detail['ctx']['error']}"
        else:
            said = detail["msg"].partition(" should ")[2] or detail["msg"]
            yield f"{place}: {short(detail['input'])} given, it should {said}"
