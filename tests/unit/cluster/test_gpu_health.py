"""Whether GPUs can be trusted, by what their tools print; and a machine without tools is well."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.agent.gpus import Gpus
from cluster.agent.health import Health, Report, judge, xids

WELL = """\
0, GPU-6a1c0000-0000-0000-0000-000000000001, 0, No, No, No
1, GPU-6a1c0000-0000-0000-0000-000000000002, 0, [N/A], [N/A], [N/A]
"""


def table(*cells: str) -> Report:
    return Report(text=f"0, GPU-1, {', '.join(cells)}\n")


def test_healthy_gpus_are_counted() -> None:
    assert judge(Report(text=WELL)) == Health(gpus=2)
    assert judge(table("[Not Supported]", "[Not Supported]", "[N/A]", "[N/A]")) == Health(gpus=1)


def test_a_machine_without_the_tool_is_well_unless_it_should_have_gpus() -> None:
    assert judge(Report(text=None)).is_well
    assert judge(Report(text=None), 0).is_well
    assert judge(Report(text=None), 8).problems == ("nvidia-smi is missing, 8 GPUs are expected",)


def test_a_gpu_that_is_missing_is_noticed() -> None:
    assert judge(Report(text=WELL), 2).is_well
    assert judge(Report(text=WELL), 4).problems == ("2 of 4 GPUs are there",)


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        (("3", "No", "No", "No"), "GPU 0: 3 uncorrected ECC errors since its start"),
        (("0", "Yes", "No", "No"), "GPU 0: memory waits for a reset to be taken out of use"),
        (("0", "[N/A]", "1", "0"), "GPU 0: memory waits for a reset to be taken out of use"),
        (("0", "[N/A]", "0", "Yes"), "GPU 0: a row of its memory could not be replaced"),
    ],
)
def test_failing_memory_is_a_problem(cells: tuple[str, ...], problem: str) -> None:
    assert judge(table(*cells)).problems == (problem,)


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [
        ("Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.\n", 15, "nvidia-smi: Unable"),
        ("No devices were found\n", 6, "nvidia-smi: No devices were found"),
        ("NVIDIA-SMI has failed because it couldn't talk to the driver.\n", 9, r"nvidia-smi failed \(9\): NVIDIA"),
        ("", 255, r"nvidia-smi failed \(255\): it says nothing"),
    ],
)  # fmt: skip
def test_a_tool_that_fails_means_a_sick_machine(text: str, code: int, problem: str) -> None:
    (said,) = judge(Report(text=text, exit_code=code)).problems
    assert re.match(problem, said), said


def test_only_xids_that_end_a_gpu_count_and_each_of_them_once() -> None:
    lines = [
        "[1.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        "[1.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        "[1.2] NVRM: Xid (PCI:0000:af:00): 31, pid=99, name=python, MMU Fault",
        "[1.3] NVRM: Xid (PCI:0000:af:00): 95, uncontained",
        "[1.4] something else",
    ]
    assert xids(lines) == [
        "XID 79 on 0000:3b:00: GPU has fallen off the bus",
        "XID 95 on 0000:af:00: uncontained ECC error",
    ]
    assert len(judge(Report(text=WELL, kernel=lines)).problems) == 2


def script(folder: Path, text: str) -> list[str]:
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return [str(file)]


def test_a_gpu_that_was_there_once_is_missed(tmp_path: Path) -> None:
    gpus = Gpus(script(tmp_path, f"cat {tmp_path / 'table'}"), kernel=["true"])
    (tmp_path / "table").write_text(WELL)
    assert gpus.look() == Health(gpus=2)
    (tmp_path / "table").write_text(WELL.splitlines()[0])
    assert gpus.look().problems == ("1 of 2 GPUs are there",)
    (tmp_path / "nvidia-smi").unlink()
    assert gpus.look().problems == ("nvidia-smi is missing, 2 GPUs are expected",)


def test_tools_that_are_not_there_or_not_allowed_say_nothing(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    assert Gpus([missing], kernel=[missing]).look() == Health()
    assert Gpus([missing], kernel=["false"]).look() == Health()
