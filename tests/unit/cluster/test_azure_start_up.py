"""An emulated machine reads its start-up data as cloud-init does, and refuses what could not boot."""

from __future__ import annotations

import base64
import json

import pytest

from cluster.azure.body import NODE_FILE, NODE_SERVICE
from cluster.azure.emulator.start_up import (
    Service,
    StartUpFailed,
    command_below,
    read,
    read_unit,
    started_service,
)
from cluster.node.boot import parse
from tests.unit.cluster.test_azure_body import body

FILE = {"path": "/etc/x.json", "content": "{}"}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def document(**parts: object) -> str:
    return encoded("#cloud-config\n" + json.dumps(parts))


def test_what_the_provider_writes_is_what_the_machine_reads() -> None:
    start_up = read(body()["properties"]["osProfile"]["customData"])
    (file,) = start_up.files
    assert (file.path, file.mode) == (NODE_FILE, 0o644)
    node = parse(file.content)
    assert (node.node, node.head, node.resources) == ("node_01J", "10.1.0.4:6379", {"CPU": 24.0, "GPU": 1.0})
    assert started_service(start_up) == NODE_SERVICE


@pytest.mark.parametrize(
    ("custom_data", "said"),
    [
        ("", "not a cloud-init"),
        ("not base64!", "cannot be read"),
        (encoded("#!/bin/sh\n"), "not a cloud-init"),
        (encoded("#cloud-config\n[unclosed"), "cannot be read"),
        (encoded("#cloud-config\n"), "cannot be read"),
        (document(write_files=[{"path": "/etc/x"}]), "cannot be read"),
        (document(write_files=[{**FILE, "path": "/etc/../../x"}]), "no absolute path"),
        (document(write_files=[{**FILE, "path": "etc/x"}]), "no absolute path"),
        (document(write_files=[{**FILE, "permissions": "rw"}]), "cannot be read"),
        (document(packages=["curl"]), "has packages, which"),
    ],
    ids=[
        *("nothing", "no base64", "a script", "no YAML", "no document", "half a file", "a path that climbs"),
        *("a path from nowhere", "no mode", "another module"),
    ],
)
def test_what_could_not_boot_is_refused_in_a_sentence(custom_data: str, said: str) -> None:
    with pytest.raises(StartUpFailed, match=said):
        read(custom_data)


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        ([], "starts 0 services"),
        ([["systemctl", "enable", "--now", "a.service"], ["systemctl", "enable", "--now", "b.service"]], "2"),
        ([["systemctl", "enable", "a.service"]], "cannot run 'systemctl enable a.service'"),
        ([["rm", "-rf", "/"]], "cannot run 'rm -rf /'"),
    ],
)
def test_nothing_but_one_service_is_started(commands: list[list[str]], said: str) -> None:
    with pytest.raises(StartUpFailed, match=said):
        started_service(read(document(runcmd=commands)))


def test_the_units_command_runs_with_this_interpreter_and_the_files_that_were_written() -> None:
    unit = read_unit(
        "[Service]\nEnvironment=A=1\nEnvironment=B=2\nRuntimeDirectory=x\n"
        "ExecStart=/opt/remora/venv/bin/python -m it /etc/x.json /etc/y.json\n"
    )
    assert unit.runtime_folder == "x"
    command = command_below("/m1", unit, read(document(write_files=[FILE])), "/here/python")
    assert command == ("/here/python", "-m", "it", "/m1/etc/x.json", "/etc/y.json")


@pytest.mark.parametrize("text", ["", "[Service]\nType=exec\n", "[Unit]\nExecStart=x\n", "ExecStart=x\n"])
def test_a_unit_without_a_command_is_refused(text: str) -> None:
    with pytest.raises(StartUpFailed, match="no command"):
        read_unit(text)


def test_a_service_may_have_no_folder_of_its_own() -> None:
    assert read_unit("[Service]\nExecStart=a b\n") == Service(command=("a", "b"), runtime_folder="")
