"""DeepSpeed configuration files that a command names, checked at submission, and once more on the nodes.

A script may read its configuration in other ways, and only DeepSpeed knows all forms of one: what is not clear from the
command and a JSON file in the code is left for the start.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from remora.bundle_texts import texts_of
from remora.deepspeed.configuration import check, check_resizable
from remora.deepspeed.refusal import Refused

#: The last one is a switch in scripts of DeepSpeed, and names a file in those that read TrainingArguments.
_OPTIONS = ("--deepspeed_config", "--deepspeed-config", "--deepspeed")


def check_config_files(
    command: Sequence[str],
    global_batch: int | None,
    read: Callable[[str], str | None],
    *,
    is_resizable: bool = False,
) -> None:
    """Raise Refused when a configuration that the command names contradicts the job, or is not there.

    `read` gives the text of a file by its normalized name below the code, and None where there is none.
    `is_resizable`: the job may have several numbers of workers.
    """
    for name in _names(command):
        text = read(posixpath.normpath(name))
        if text is None:
            raise Refused(
                f"the command names the DeepSpeed configuration {name}, and there is no such file in the code"
            )
        if (config := _mapping(text)) is not None:
            check(config, global_batch)
            if is_resizable:
                check_resizable(config)


def check_bundle(
    bundle: IO[bytes], command: Sequence[str], global_batch: int | None, *, is_resizable: bool = False
) -> None:
    """The same for a code bundle, of which only the configuration is read.  Raises Refused."""
    with texts_of(bundle) as read:
        check_config_files(command, global_batch, read, is_resizable=is_resizable)


def _names(command: Sequence[str]) -> Iterator[str]:
    """JSON files below the code that the command names."""
    for place, word in enumerate(command):
        option, equals, value = word.partition("=")
        if option not in _OPTIONS:
            continue
        name = value if equals else "".join(command[place + 1 : place + 2])
        is_elsewhere = "$" in name or posixpath.normpath(name).startswith(("/", ".."))
        if name.endswith(".json") and not is_elsewhere:
            yield name


def _mapping(text: str) -> Mapping[str, Any] | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, Mapping) else None
