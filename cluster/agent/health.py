"""Whether the machine's GPUs can be trusted with work, read from what its tools print (pure)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

#: Columns asked of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`, in this order.
QUERY = (
    "index",
    "uuid",
    "ecc.errors.uncorrected.volatile.total",
    "retired_pages.pending",
    "remapped_rows.pending",
    "remapped_rows.failure",
)

#: XIDs after which a GPU, or its link, has to be taken out of service; others are the program's own faults (13, 31, 43,
#: 45, 68, 94) or only to be noted.  Source: NVIDIA's XID catalogue.
SICK_XIDS = {
    48: "double-bit ECC error",
    62: "internal microcontroller halt",
    64: "failed row remapping",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained ECC error",
    119: "GSP does not answer",
    120: "GSP error",
    140: "unrecovered ECC error",
}
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+)")
#: What nvidia-smi prints instead of a table when a device is gone.
_LOST = re.compile(
    r"GPU is lost|Unable to determine the device handle|has fallen off the bus|No devices were found"
)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was seen of the GPUs."""

    #: Output of nvidia-smi, standard output and error together; None: there is no nvidia-smi, so there are no GPUs.
    text: str | None
    exit_code: int = 0
    #: New lines of the kernel's log.
    kernel: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Health:
    """A verdict, with a sentence for each thing that is wrong."""

    problems: tuple[str, ...] = ()
    gpus: int = 0

    @property
    def is_well(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems


def judge(report: Report, gpus_expected: int | None = None) -> Health:
    """What the machine's tools say about its GPUs.

    `gpus_expected` is how many it had before, or should have; None: as many as are seen.  A machine without nvidia-smi
    is well unless it should have GPUs.
    """
    problems = [*xids(report.kernel)]
    if report.text is None:
        if gpus_expected:
            problems.append(f"nvidia-smi is missing, {gpus_expected} GPUs are expected")
        return Health(problems=tuple(problems))
    if lost := _LOST.search(report.text):
        return Health(problems=(*problems, f"nvidia-smi: {lost[0]}"))
    if report.exit_code != 0:
        last = next(iter(reversed(report.text.strip().splitlines())), "it says nothing")
        return Health(problems=(*problems, f"nvidia-smi failed ({report.exit_code}): {last.strip()[:200]}"))
    rows = [
        row for row in csv.reader(io.StringIO(report.text), skipinitialspace=True) if len(row) == len(QUERY)
    ]
    for row in rows:
        problems.extend(_of_gpu(row))
    if gpus_expected is not None and len(rows) < gpus_expected:
        problems.append(f"{len(rows)} of {gpus_expected} GPUs are there")
    return Health(problems=tuple(problems), gpus=len(rows))


def xids(lines: Sequence[str]) -> list[str]:
    """A sentence for each kind of XID that makes a GPU unfit, once per device."""
    found: dict[tuple[str, int], str] = {}
    for line in lines:
        if (match := _XID.search(line)) and (number := int(match[2])) in SICK_XIDS:
            found[match[1], number] = f"XID {number} on {match[1]}: {SICK_XIDS[number]}"
    return list(found.values())


def _of_gpu(row: Sequence[str]) -> list[str]:
    """Problems of one line of the table; `[N/A]` and `[Not Supported]` are none."""
    index, _, uncorrected, retired, remapping, failure = row
    problems: list[str] = []
    if _number(uncorrected) > 0:
        problems.append(f"GPU {index}: {_number(uncorrected)} uncorrected ECC errors since its start")
    if _is_yes(retired) or _is_yes(remapping):
        problems.append(f"GPU {index}: memory waits for a reset to be taken out of use")
    if _is_yes(failure):
        problems.append(f"GPU {index}: a row of its memory could not be replaced")
    return problems


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _is_yes(text: str) -> bool:
    return text.casefold() == "yes" or _number(text) > 0
