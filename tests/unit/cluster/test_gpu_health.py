"""Whether GPUs can be trusted, by what their tools print; and a machine without tools is well."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from cluster.node.agent import __main__ as agent_main
from cluster.node.agent import gpus as gpus_module
from cluster.node.agent.gpus import Gpus
from cluster.node.agent.health import (
    FAILED_LOOKS,
    QUERY,
    GpuReport,
    Health,
    HealthHistory,
    follow,
    judge,
    xids,
)

WELL = """\
0, GPU-6a1c0000-0000-0000-0000-000000000001, 0, No, No, No
1, GPU-6a1c0000-0000-0000-0000-000000000002, 0, [N/A], [N/A], [N/A]
"""


def table(*cells: str) -> GpuReport:
    return GpuReport(text=f"0, GPU-1, {', '.join(cells)}\n")


def test_healthy_gpus_are_counted() -> None:
    assert judge(GpuReport(text=WELL)) == Health(gpus=2)
    assert judge(table("[Not Supported]", "[Not Supported]", "[N/A]", "[N/A]")) == Health(gpus=1)


def test_a_machine_without_the_tool_is_well_unless_it_should_have_gpus() -> None:
    assert judge(GpuReport(text=None)).is_well
    assert judge(GpuReport(text=None), 0).is_well
    assert judge(GpuReport(text=None), 8).failure == "nvidia-smi is missing, 8 GPUs are expected"


def test_a_machine_that_has_no_gpus_is_well_however_often_it_is_looked_at() -> None:
    history = HealthHistory()
    for _ in range(2 * FAILED_LOOKS):
        history, health = follow(history, GpuReport(text=None))
        assert health == Health(), "none is missed"


def test_a_gpu_that_is_missing_is_noticed() -> None:
    assert judge(GpuReport(text=WELL), 2).is_well
    assert judge(GpuReport(text=WELL), 4).problems == ("2 of 4 GPUs are there",)


@pytest.mark.parametrize(
    "cell", ["[GPU requires reset]", "[Unknown Error]", "ERR!", "[GPU requires restart]"]
)
@pytest.mark.parametrize("place", range(4))
def test_words_of_a_broken_gpu_where_a_counter_was_are_a_problem(cell: str, place: int) -> None:
    cells = ["0", "No", "[N/A]", "[Not Supported]"]
    cells[place] = cell
    said = f"GPU 0: nvidia-smi says {cell!r} for {QUERY[place + 2]}"
    assert judge(table(*cells)) == Health(problems=(said,), gpus=1)


@pytest.mark.parametrize("cell", ["[Requested functionality has been deprecated]", "[Not Found]", "", "-1"])
@pytest.mark.parametrize("place", range(4))
def test_words_that_are_not_known_make_no_fleet_sick(cell: str, place: int) -> None:
    cells = ["0", "No", "[N/A]", "[Not Supported]"]
    cells[place] = cell
    unread = f"nvidia-smi says {cell!r} for {QUERY[place + 2]}, which says nothing about the GPU"
    history, report = HealthHistory(gpus=1), table(*cells)
    for _ in range(2 * FAILED_LOOKS):
        history, health = follow(history, report)
        assert health == Health(gpus=1, unread=unread)


def test_words_that_are_not_known_hide_no_other_problem_and_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retired = "[Requested functionality has been deprecated]"
    rows = f"0, GPU-1, 0, {retired}, No, No\n1, GPU-2, 3, {retired}, No, No"
    gpus = Gpus(script(tmp_path, f"echo '{rows}'"), kernel=["true"], expected=2)
    problems = ("GPU 1: 3 uncorrected ECC errors since its start",)
    assert [gpus.look().problems for _ in range(2 * FAILED_LOOKS)] == [problems] * 2 * FAILED_LOOKS
    (record,) = caplog.records
    assert (
        record.getMessage() == f"nvidia-smi says '{retired}' for {QUERY[3]}, which says nothing about the GPU"
    )


def test_spaces_around_what_is_printed_mean_nothing() -> None:
    report = GpuReport(text="   0,   GPU-1,  3 , No ,No,  No  \n")
    assert judge(report).problems == ("GPU 0: 3 uncorrected ECC errors since its start",)


def test_what_the_agent_may_not_read_is_no_sickness() -> None:
    assert judge(table(*["[Insufficient Permissions]"] * 4)) == Health(gpus=1)


def test_warnings_beside_the_table_do_not_hide_it() -> None:
    text = f"WARNING: infoROM is corrupted at gpu 0000:3B:00.0, 1\n{WELL}"
    assert judge(GpuReport(text=text), 2) == Health(gpus=2)


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
        (
            "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.\n",
            15,
            "nvidia-smi: Unable",
        ),
        ("No devices were found\n", 6, "nvidia-smi: No devices were found"),
    ],
)
def test_a_device_that_the_tool_has_lost_is_a_problem_at_once(text: str, code: int, problem: str) -> None:
    (said,) = judge(GpuReport(text=text, exit_code=code)).problems
    assert re.match(problem, said), said


#: Each of the ways in which the tool itself says nothing, and what is said of it.
FAILURES = [
    (
        GpuReport(text="NVIDIA-SMI has failed because it couldn't talk to the driver.\n", exit_code=9),
        "failed (9): NVIDIA",
    ),
    (GpuReport(text="", exit_code=255), "failed (255): it says nothing"),
    (GpuReport(text=""), "printed what cannot be read: 'nothing'"),
    (GpuReport(text="Bus error\n"), "printed what cannot be read: 'Bus error'"),
    (GpuReport(text=f"{WELL}2, GPU-6a1c"), "printed what cannot be read: '0, GPU-6a1c"),
    (GpuReport(text="", unfinished="nvidia-smi did not answer within 20 s"), "did not answer within 20 s"),
]  # fmt: skip


@pytest.mark.parametrize(("failing", "said"), FAILURES)
def test_a_tool_that_fails_makes_the_machine_sick_only_when_it_goes_on_failing(
    failing: GpuReport, said: str
) -> None:
    history = HealthHistory(gpus=2)
    for report in [*[failing] * (FAILED_LOOKS - 1), GpuReport(text=WELL)] * 3:
        history, health = follow(history, report)
        assert health.is_well, "a look between them went well"
    for _ in range(FAILED_LOOKS - 1):
        history, health = follow(history, failing)
        assert (health.is_well, health.failure.startswith("nvidia-smi")) == (True, True)
    history, health = follow(history, failing)
    (problem,) = health.problems
    assert problem.startswith(f"nvidia-smi {said}")
    assert problem.endswith(", 3 times in a row")
    assert follow(history, failing)[1].problems == (problem,), "and stays so"


def test_a_failing_tool_does_not_hide_what_the_kernel_says() -> None:
    lines = ["[1.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."]
    _, health = follow(HealthHistory(), GpuReport(text="", exit_code=9, kernel=lines))
    assert health.problems == ("XID 79 on 0000:3b:00: GPU has fallen off the bus",)


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
    assert len(judge(GpuReport(text=WELL, kernel=lines)).problems) == 2


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
    said = [gpus.look().problems for _ in range(FAILED_LOOKS)]
    assert said == [(), (), ("nvidia-smi is missing, 2 GPUs are expected, 3 times in a row",)]


def test_a_gpu_that_should_be_there_is_missed_from_the_first_look_on(tmp_path: Path) -> None:
    gpus = Gpus(script(tmp_path, f"echo '{WELL}'"), kernel=["true"], expected=8)
    assert gpus.look().problems == ("2 of 8 GPUs are there",)


def test_where_no_gpus_are_expected_nothing_is_asked(tmp_path: Path) -> None:
    was_asked = tmp_path / "asked"
    tool = script(tmp_path, f"touch {was_asked}; echo 'it has failed'; exit 9")
    gpus = Gpus(tool, kernel=["touch", str(was_asked)], expected=0)
    assert [gpus.look() for _ in range(2 * FAILED_LOOKS)] == [Health()] * 2 * FAILED_LOOKS
    assert not was_asked.exists()
    assert Gpus(tool, kernel=["true"], expected=1).look().failure == "nvidia-smi failed (9): it has failed"
    assert was_asked.exists()


@pytest.mark.parametrize(
    "answer",
    [None, "echo 'No devices were found'; exit 6", "echo 'NVIDIA-SMI has failed'; exit 9"],
    ids=["no tool", "it sees none", "no driver for it"],
)
def test_gpus_of_another_maker_are_not_missed_whether_the_tool_is_there_or_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: str | None
) -> None:
    (kfd := tmp_path / "kfd").touch()
    tool = [str(tmp_path / "none")] if answer is None else script(tmp_path, answer)
    gpus = Gpus(tool, kernel=["true"], expected=8, other_maker=kfd)
    assert [gpus.look() for _ in range(2 * FAILED_LOOKS)] == [Health()] * 2 * FAILED_LOOKS
    (record,) = caplog.records
    assert record.getMessage() == f"these GPUs are of a maker that is not watched ({kfd})"


#: An old nvidia-smi, which knows no rows that are remapped and prints what it was asked for.
OLD = """
for field in $(echo "${1#--query-gpu=}" | tr , ' '); do
    case $field in
        remapped_rows.*) echo "Field \\"$field\\" is not a valid field to query."; exit 2 ;;
        index|ecc.*) row="$row, 1" ;;
        *) row="$row, No" ;;
    esac
done
echo "${row#, }"
"""


def test_what_a_driver_does_not_know_is_not_asked_again_and_the_rest_is_watched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpus = Gpus(script(tmp_path, OLD), kernel=["true"], expected=1)
    health = Health(problems=("GPU 1: 1 uncorrected ECC errors since its start",), gpus=1)
    assert [gpus.look() for _ in range(FAILED_LOOKS)] == [health] * FAILED_LOOKS
    assert [record.getMessage() for record in caplog.records] == [
        f"this driver does not report remapped_rows.{what}, so it is not watched" for what in ("pending", "failure")
    ]  # fmt: skip


def test_a_tool_that_refuses_the_question_is_reported_and_makes_no_node_sick(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpus = Gpus(
        script(tmp_path, "echo 'Invalid combination of input arguments.'; exit 2"), ["true"], expected=8
    )
    assert [gpus.look() for _ in range(2 * FAILED_LOOKS)] == [Health()] * 2 * FAILED_LOOKS
    assert [record.getMessage() for record in caplog.records] == [
        "nvidia-smi refuses what it is asked, so no GPU is watched"
    ]


def test_a_tool_that_cannot_be_ended_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus_module, "TIMEOUT_S", 0.2)
    stuck: list[subprocess.Popen[str]] = []
    # As in a system call of a driver that hangs: the signal comes when that ends, if it ends.
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: stuck.append(process))
    gpus = Gpus(script(tmp_path, "exec sleep 600"), kernel=["true"], expected=1)
    try:
        looks = [gpus.look() for _ in range(FAILED_LOOKS)]
    finally:
        monkeypatch.undo()
        for process in stuck:
            process.kill()
            process.wait()
    assert len(stuck) == 1, "no second one is started beside it"
    assert [look.failure for look in looks] == [
        "nvidia-smi did not answer within 0 s", *["nvidia-smi hangs and cannot be ended"] * 2
    ]  # fmt: skip
    assert [look.is_well for look in looks] == [True, True, False]
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{WELL}'\n")
    assert gpus.look() == Health(gpus=2), "it is asked again once that has ended"


def test_tools_that_are_not_there_or_not_allowed_say_nothing(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    assert Gpus([missing], kernel=[missing]).look() == Health()
    assert Gpus([missing], kernel=["false"]).look() == Health()


@pytest.mark.parametrize(
    ("words", "failure"),
    [
        (["--gpus", "0"], ""),
        (["--gpus", "2"], "nvidia-smi failed (9): it says nothing"),
        ([], "nvidia-smi failed (9): it says nothing"),
    ],
)
def test_the_agent_s_command_line_says_how_many_there_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], failure: str
) -> None:
    script(tmp_path, "exit 9")
    monkeypatch.setenv("PATH", str(tmp_path))
    agent = MagicMock()
    monkeypatch.setattr(agent_main, "Agent", agent)
    monkeypatch.setattr(agent_main, "RayHead", MagicMock())
    monkeypatch.setattr(agent_main.signal, "signal", MagicMock())
    assert agent_main.main(["--head", "127.0.0.1:1", "--node-id", "node_a", *words]) == 0
    look: Callable[[], Health] = agent.call_args.args[4]
    assert look().failure == failure
