"""E-mail of alerts, by a real SMTP server on the loopback."""

from __future__ import annotations

import email
import email.policy
from pathlib import Path
from typing import Any

import pytest

from remora.alert_kinds import Channel
from service.alerts.destinations import Destination
from service.alerts.sending import Sender
from service.queue.deliveries import TryResult
from service.settings import Settings
from tests.unit.service.smtp_server import smtp_server
from tests.unit.service.test_alert_bodies import notification

ANN = Destination(Channel.EMAIL, "ann@example.com")


def sender_of(home: Path, port: int, **settings: Any) -> Sender:
    given = {
        "smtp_host": "127.0.0.1",
        "smtp_port": port,
        "smtp_tls": "none",
        "smtp_from": "remora@example.com",
    }
    return Sender.of(Settings(home=home, **{**given, **settings}))


def test_a_message_is_handed_over_with_the_id_of_the_notification(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("hunter2 hunter2\n")
    with smtp_server() as box:
        sender = sender_of(tmp_path, box.port, smtp_user="remora", smtp_password_file=password)
        one = notification("job x: Grüße", project="vision")
        assert sender.send(ANN, one, 1.0).answer is TryResult.TAKEN
        ((recipients, content),) = box.messages
        assert box.logins == [("remora", "hunter2 hunter2")]
    assert recipients == ["ann@example.com"]
    message = email.message_from_bytes(content, policy=email.policy.default)
    assert message["Message-ID"] == "<ntf_1@example.com>"
    assert message["Subject"] == "[remora] job x: Grüße"
    assert "project: vision" in message.get_content()


@pytest.mark.parametrize("answer", ["451 try later", "552 too much", "554 secret-of-theirs"])
def test_a_message_that_is_not_taken_is_tried_again(tmp_path: Path, answer: str) -> None:
    with smtp_server() as box:
        box.answers.append(answer)
        sender = sender_of(tmp_path, box.port)
        first = sender.send(ANN, notification(), 1.0)
        assert (first.answer, first.error) == (TryResult.REFUSED, f"the mail server answered {answer[:3]}")
        assert sender.send(ANN, notification(), 2.0).answer is TryResult.TAKEN
        assert len(box.messages) == 1


def test_a_recipient_that_is_refused_is_said(tmp_path: Path) -> None:
    with smtp_server() as box:
        box.refused.add("ann@example.com")
        found = sender_of(tmp_path, box.port).send(ANN, notification(), 1.0)
    assert (found.answer, found.error) == (TryResult.REFUSED, "the mail server refused the recipient")


def test_what_operators_have_not_set_is_said(tmp_path: Path) -> None:
    found = Sender.of(Settings(home=tmp_path)).send(ANN, notification(), 1.0)
    assert found.answer is TryResult.REFUSED
    assert "REMORA_SMTP_HOST" in (found.error or "")
    with smtp_server() as box:
        missing = sender_of(tmp_path, box.port, smtp_user="u", smtp_password_file=tmp_path / "none")
        assert "REMORA_SMTP_PASSWORD_FILE" in (missing.send(ANN, notification(), 1.0).error or "")


def test_a_server_that_is_not_there_is_said(tmp_path: Path) -> None:
    with smtp_server() as box:
        port = box.port
    found = sender_of(tmp_path, port).send(ANN, notification(), 1.0)
    assert found.answer is TryResult.REFUSED
    assert "cannot be reached" in (found.error or "")


def test_a_server_without_tls_gets_no_message_where_tls_is_asked_for(tmp_path: Path) -> None:
    with smtp_server() as box:
        found = sender_of(tmp_path, box.port, smtp_tls="starttls").send(ANN, notification(), 1.0)
        assert found.answer is TryResult.REFUSED
        assert box.messages == []
