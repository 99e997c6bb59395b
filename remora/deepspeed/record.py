"""The record that Remora writes beside the files of a DeepSpeed checkpoint, to know how to read them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path, PurePath, PurePosixPath

from remora.deepspeed.refusal import Refused

NAME = "remora-deepspeed.json"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One checkpoint."""

    #: Name of the folder in the checkpoint that holds DeepSpeed's files.
    tag: str
    #: Workers that wrote it, and copies of the model among them.
    world_size: int
    copies: int
    #: Stage of ZeRO, 0 to 3.
    stage: int
    #: Samples of one step, of all workers together.
    global_batch: int
    #: Folder in which the script saves, relative to its working folder; None: elsewhere.
    folder: str | None
    #: Values of the parameters that rank 0 takes part in, and a digest of their names and shapes.
    parameters: int
    model: str

    @property
    def together(self) -> int:
        """Workers that hold one copy of the model together."""
        return self.world_size // self.copies


def write(record: Record, folder: Path) -> None:
    """Put it beside the checkpoint's files."""
    (folder / NAME).write_text(json.dumps({"version": 1, **asdict(record)}, indent=1))


def read(folder: Path, step: str) -> Record:
    """The record of a checkpoint; raises Refused when DeepSpeed under Remora did not write it."""
    try:
        fields = json.loads((folder / NAME).read_text())
        fields.pop("version")
        record = Record(**fields)
    except FileNotFoundError:
        raise Refused(
            f"the checkpoint of step {step} was not written by DeepSpeed; resume it with the framework that wrote it,"
            " or submit the job again"
        ) from None
    except (ValueError, TypeError, AttributeError, KeyError, OSError) as error:
        raise Refused(f"the checkpoint of step {step} has a {NAME} that cannot be read: {error}") from None
    for name in (record.tag, record.folder):
        if name is not None and not _is_inside(name):
            raise Refused(
                f"the checkpoint of step {step} has a {NAME} that names a folder elsewhere: {name!r:.200}"
            )
    if not (folder / record.tag).is_dir():
        raise Refused(f"the checkpoint of step {step} lacks the folder {record.tag!r}; submit the job again")
    return record


def _is_inside(name: object) -> bool:
    """True for a relative name that cannot mean another place: a script may have written the record itself."""
    if not isinstance(name, str) or "\0" in name:
        return False
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def digest_of(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    """A digest of the names and shapes of parameters, in any order."""
    lines = sorted(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes)
    return sha256("\n".join(lines).encode()).hexdigest()[:16]


def relative_folder(folder: str, working_folder: Path) -> str | None:
    """`folder` relative to the working folder; None when it lies elsewhere."""
    whole = PurePath(os.path.normpath(working_folder / folder))
    if whole == working_folder or not whole.is_relative_to(working_folder):
        return None
    return whole.relative_to(working_folder).as_posix()


def check_fits(record: Record, present: Record, step: str) -> None:
    """Raise Refused when `present`, the job as it is now, cannot go on from that checkpoint."""
    if record.together != present.together:
        raise Refused(
            f"the checkpoint of step {step} holds a model that {record.together} workers share, and here"
            f" {present.together} share it; the layout of a model cannot change within a job"
        )
    if record.model != present.model:
        raise Refused(
            f"the checkpoint of step {step} is of another model: it has {record.parameters:,} parameters of other"
            f" names or shapes than the {present.parameters:,} of this one; submit the changed model as a new job"
        )
    if record.stage != present.stage:
        raise Refused(
            f"the checkpoint of step {step} was written by stage {record.stage} of ZeRO, and here it is stage"
            f" {present.stage}; the stage cannot change within a job"
        )
    if record.global_batch != present.global_batch:
        raise Refused(
            f"the checkpoint of step {step} was written with a global batch of {record.global_batch}, and here it is"
            f" {present.global_batch}; give both the same, in elastic.global_batch"
        )
