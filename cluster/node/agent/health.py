"""Whether the machine's GPUs can be trusted with work, read from what its tools print (pure)."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

#: Columns asked of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`, in this order; those after the first may
#: be left out where the driver does not know them.
QUERY = (
    "index",
    "uuid",
    "ecc.errors.uncorrected.volatile.total",
    "retired_pages.pending",
    "remapped_rows.pending",
    "remapped_rows.failure",
)
#: Columns that count nothing.
_NAMES = ("index", "uuid")

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
_UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
#: A line of the table, whole or not.
_ROW = re.compile(r"\s*\d+\s*,")
#: Cells that say nothing about the GPU: the model does not count this, or the agent's user may not read it.
_NO_VALUE = frozenset({"n/a", "[n/a]", "not supported", "[not supported]", "[insufficient permissions]"})
#: What stands where the counters of a GPU were that waits for a reset, or is broken.  Any other word is none: drivers
#: have words of their own for what they do not count any more, and a new one would make a whole fleet sick.
_SICK_WORDS = re.compile(r"requires re(?:set|start)|unknown error|\berr!", re.IGNORECASE)

#: Looks in a row at which the tool itself failed that make the machine sick: one may be slow on a busy machine.
FAILED_LOOKS = 3


@dataclass(frozen=True, kw_only=True)
class GpuReport:
    """What was seen of the GPUs at one look."""

    #: Output of nvidia-smi, standard output and error together; None: there is no nvidia-smi.
    text: str | None
    exit_code: int = 0
    #: Why nvidia-smi did not run to its end, a sentence; empty: it did.
    unfinished: str = ""
    #: The columns that it was asked for.
    query: Sequence[str] = QUERY
    #: Lines of the kernel's log.
    kernel: Sequence[str] = ()

    @property
    def is_refused(self) -> bool:
        """Nvidia-smi rejects its arguments, which says nothing about the GPUs."""
        return self.exit_code == 2


@dataclass(frozen=True, kw_only=True)
class Health:
    """A verdict, with a sentence for each thing that is wrong."""

    problems: tuple[str, ...] = ()
    gpus: int = 0
    #: Why the tool did not report the GPUs' health, a sentence; empty: it did.
    failure: str = ""
    #: Words where counters should be that are known neither for a sickness nor for none, a sentence; empty: none.
    unread: str = ""

    @property
    def is_well(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems


@dataclass(frozen=True, kw_only=True)
class HealthHistory:
    """What is kept from look to look."""

    #: How many GPUs there have to be: given at the start, or the most that were seen; None: neither yet.
    gpus: int | None = None
    #: Looks in a row, up to the newest, at which the tool itself failed.
    failed_looks: int = 0


def follow(history: HealthHistory, report: GpuReport) -> tuple[HealthHistory, Health]:
    """The verdict after one more look: what is wrong with the GPUs counts at once, a tool that fails only in a row."""
    health = judge(report, history.gpus)
    if not health.failure:
        return HealthHistory(gpus=max(history.gpus or 0, health.gpus)), health
    history = replace(history, failed_looks=history.failed_looks + 1)
    if history.failed_looks >= FAILED_LOOKS:
        health = replace(
            health, problems=(*health.problems, f"{health.failure}, {FAILED_LOOKS} times in a row")
        )
    return history, health


def judge(report: GpuReport, gpus_expected: int | None = None) -> Health:
    """What the machine's tools say about its GPUs at one look.

    `gpus_expected` is how many it had before, or should have; None: as many as are seen.  A machine without nvidia-smi
    is well unless it should have GPUs.
    """
    problems = xids(report.kernel)
    if report.unfinished:
        return Health(problems=tuple(problems), failure=report.unfinished)
    if report.text is None:
        missing = f"nvidia-smi is missing, {gpus_expected} GPUs are expected" if gpus_expected else ""
        return Health(problems=tuple(problems), failure=missing)
    if report.is_refused:
        # A fleet with another driver is not a fleet of sick machines.
        return Health(problems=tuple(problems))
    if lost := _LOST.search(report.text):
        return Health(problems=(*problems, f"nvidia-smi: {lost[0]}"))
    if report.exit_code != 0:
        last = next(iter(reversed(report.text.strip().splitlines())), "it says nothing")
        return Health(
            problems=tuple(problems), failure=f"nvidia-smi failed ({report.exit_code}): {last.strip()[:200]}"
        )
    # It may print warnings beside its table.
    lines = [line for line in report.text.splitlines() if _ROW.match(line)]
    rows = list(csv.reader(lines, skipinitialspace=True))
    if not rows or any(len(row) != len(report.query) for row in rows):
        said = report.text.strip()[:200] or "nothing"
        return Health(problems=tuple(problems), failure=f"nvidia-smi printed what cannot be read: {said!r}")
    tables = [dict(zip(report.query, row, strict=True)) for row in rows]
    for cells in tables:
        problems.extend(_of_gpu(cells))
    if gpus_expected is not None and len(rows) < gpus_expected:
        problems.append(f"{len(rows)} of {gpus_expected} GPUs are there")
    return Health(problems=tuple(problems), gpus=len(rows), unread=_unread(tables))


def unknown_field(report: GpuReport) -> str | None:
    """The column that this driver does not know, and the GPUs can be watched without; None: there is none such."""
    found = _UNKNOWN_FIELD.search(report.text or "")
    return found[1] if found and found[1] in report.query[1:] else None


def xids(lines: Sequence[str]) -> list[str]:
    """A sentence for each kind of XID that makes a GPU unfit, once per device."""
    found: dict[tuple[str, int], str] = {}
    for line in lines:
        if (match := _XID.search(line)) and (number := int(match[2])) in SICK_XIDS:
            found[match[1], number] = f"XID {number} on {match[1]}: {SICK_XIDS[number]}"
    return list(found.values())


def _of_gpu(cells: Mapping[str, str]) -> list[str]:
    """Problems of one line of the table, by column; `[N/A]` and `[Not Supported]` are none."""
    gpu = f"GPU {cells['index']}"
    counted = _counted(cells)
    problems = [
        f"{gpu}: nvidia-smi says {text[:80]!r} for {name}"
        for name, text in counted.items()
        if _SICK_WORDS.search(text)
    ]
    uncorrected = _number(counted.get("ecc.errors.uncorrected.volatile.total", ""))
    if uncorrected > 0:
        problems.append(f"{gpu}: {uncorrected} uncorrected ECC errors since its start")
    if any(_is_yes(counted.get(name, "")) for name in ("retired_pages.pending", "remapped_rows.pending")):
        problems.append(f"{gpu}: memory waits for a reset to be taken out of use")
    if _is_yes(counted.get("remapped_rows.failure", "")):
        problems.append(f"{gpu}: a row of its memory could not be replaced")
    return problems


def _unread(tables: Sequence[Mapping[str, str]]) -> str:
    """A sentence about what cannot be read, the same for all GPUs; empty: everything can."""
    said = {
        f"{text[:80]!r} for {name}"
        for cells in tables
        for name, text in _counted(cells).items()
        if not _is_counter(text) and not _SICK_WORDS.search(text)
    }
    return f"nvidia-smi says {', '.join(sorted(said))}, which says nothing about the GPU" if said else ""


def _counted(cells: Mapping[str, str]) -> dict[str, str]:
    return {name: text.strip() for name, text in cells.items() if name not in _NAMES}


def _is_counter(text: str) -> bool:
    word = text.casefold()
    return (word.isascii() and word.isdigit()) or word in ("yes", "no") or word in _NO_VALUE


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _is_yes(text: str) -> bool:
    return text.casefold() == "yes" or _number(text) > 0
