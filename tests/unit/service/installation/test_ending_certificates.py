"""Certificates of Ray's processes that end soon are said by `remora-server status` and by the controller."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

import pytest

from cluster.local.certificates import begin, machine_variables
from cluster.local.folders import ClusterFolders
from cluster.ray.certificates import MACHINE_DAYS, issue, make_authority
from service.api_certificate import api_ends_soon
from service.controller import controller
from service.installation.__main__ import main
from service.installation.layout import Installation, Layout
from service.settings import Settings
from service.store.database import Database

DAY_S = 86_400.0
DAYS_LEFT = [(300.0, ""), (10.2, "ends in 10 days"), (-3.1, "ended 3 days ago")]


@pytest.mark.parametrize(("days_left", "said"), DAYS_LEFT)
def test_a_certificate_of_the_api_that_ends_soon_is_said(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    days_left: float,
    said: str,
) -> None:
    layout, file = Layout(tmp_path / "remora"), tmp_path / "tls.pem"
    layout.home.mkdir(parents=True)
    began = time.time() - (MACHINE_DAYS - days_left) * DAY_S
    authority = make_authority(began)
    file.write_bytes(issue(authority, "api", ["example.com"], began).joined() + authority.certificate)
    Installation(
        supervisor="supervisord", apis=1, port=1, controllers=1, head="127.0.0.2:1", has_head=True
    ).write(layout.record)
    layout.current.symlink_to(layout.releases / "1.0-a")
    layout.settings.parent.mkdir()
    layout.settings.write_text(f"REMORA_TLS_CERTIFICATE={file}\n")
    assert main(["status", "--prefix", str(layout.prefix)]) == 0
    sentence = f'the certificate of the API {said}: replace it, as docs/day-two.md says under "Each year"'
    assert (sentence in capsys.readouterr().out) is bool(said)

    settings = Settings(home=layout.home, tls_certificate=file)
    with contextlib.closing(Database(settings.database)) as database, caplog.at_level(logging.WARNING):
        process = controller.Process(settings, database, lambda *_: pytest.fail("there is no head"))
        assert process._look_at_certificates() == DAY_S
    assert [record.message for record in caplog.records] == [sentence] * bool(said)


@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"\xff" * 100])
def test_a_file_of_the_api_that_holds_no_certificate_says_nothing(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "tls.pem"
    if content is not None:
        file.write_bytes(content)
    assert api_ends_soon(file, time.time()) is None
    assert api_ends_soon(None, time.time()) is None


def with_head(home: Path, days_left: float) -> None:
    """A head of this home, whose certificate ends after this number of days."""
    folders = ClusterFolders(home)
    folders.make()
    began = time.time() - (MACHINE_DAYS - days_left) * DAY_S
    begin(folders, encrypted=True, clock=lambda: began)
    machine_variables(folders, "head", "127.0.0.2", folders.temporary_of("head"), lambda: began)


@pytest.mark.parametrize(("days_left", "is_said"), [(300.0, False), (10.2, True)])
def test_what_ends_soon_is_said(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    days_left: float,
    is_said: bool,
) -> None:
    layout = Layout(tmp_path / "remora")
    with_head(layout.home, days_left)
    Installation(
        supervisor="supervisord", apis=1, port=1, controllers=1, head="127.0.0.2:1", has_head=True
    ).write(layout.record)
    layout.current.symlink_to(layout.releases / "1.0-a")
    assert main(["status", "--prefix", str(layout.prefix)]) == 0
    assert ("the certificate of head ends in 10 days" in capsys.readouterr().out) is is_said

    settings = Settings(home=layout.home)
    with contextlib.closing(Database(settings.database)) as database, caplog.at_level(logging.WARNING):
        process = controller.Process(
            settings, database, lambda *_: pytest.fail("there is no head to connect to")
        )
        assert process._look_at_certificates() == DAY_S
    said = [record.message for record in caplog.records]
    assert [one.partition(",")[0] for one in said] == [
        "the certificate of Ray's head ends in 10 days"
    ] * is_said
