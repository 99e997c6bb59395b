"""What is sent of a notification: signatures as Standard Webhooks say, Slack's escapes, and headers of e-mail."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.alerts.bodies import email_of, slack_body, webhook_body, webhook_headers
from service.queue.alerts import NotificationRow
from tests.architecture.repository import blocks


def notification(message: str = "job digits failed", **data: Any) -> NotificationRow:
    return NotificationRow(
        id="ntf_1",
        alert_id="alert_1",
        key="k",
        at=1_700_000_000.5,
        created_at=1_700_000_001.0,
        kind="job_ended",
        message=message,
        data=data,
    )


class TestWebhooks:
    def test_have_the_signature_of_the_published_example(self) -> None:
        """That of the specification of Standard Webhooks, and of its libraries' tests."""
        secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
        headers = webhook_headers(
            "msg_p5jXN8AQM9LWM0D4loKWxJek", secret, b'{"test": 2432232314}', 1614265330.9
        )
        assert headers == {
            "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "webhook-timestamp": "1614265330",
            "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        }

    @given(st.binary(min_size=24, max_size=64), st.binary(max_size=200), st.integers(0, 2**33))
    def test_are_signed_with_their_id_and_time(self, key: bytes, body: bytes, now: int) -> None:
        secret = f"whsec_{base64.b64encode(key).decode()}"
        headers = webhook_headers("ntf_1", secret, body, now)
        signed = hmac.new(key, f"ntf_1.{now}.".encode() + body, hashlib.sha256).digest()
        assert base64.b64decode(headers["webhook-signature"].removeprefix("v1,")) == signed

    def test_have_a_body_that_is_the_same_at_each_try(self) -> None:
        one = notification(project="vision", job_id="job_1")
        content = json.loads(webhook_body(one))
        assert content == {
            "type": "job_ended",
            "timestamp": "2023-11-14T22:13:20.500000+00:00",
            "data": {
                "message": "job digits failed",
                "alert_id": "alert_1",
                "project": "vision",
                "job_id": "job_1",
            },
        }
        assert webhook_body(one) == webhook_body(one)


def test_the_function_of_the_page_takes_what_is_signed_and_nothing_else() -> None:
    (block,) = [one for page, one in blocks("python") if page == "docs/alerts.md" and "is_from_remora" in one]
    named: dict[str, Any] = {}
    exec(compile(block, "docs/alerts.md", "exec"), named)  # noqa: S102 - our own page
    is_from_remora = named["is_from_remora"]
    secret, body = f"whsec_{base64.b64encode(b'k' * 32).decode()}", webhook_body(notification())
    headers = webhook_headers("ntf_1", secret, body, time.time())
    assert is_from_remora(secret, headers, body)
    assert not is_from_remora(secret, headers, body + b" ")
    assert not is_from_remora(secret, {**headers, "webhook-id": "ntf_2"}, body)
    assert not is_from_remora(f"whsec_{base64.b64encode(b'x' * 32).decode()}", headers, body)
    assert not is_from_remora(secret, webhook_headers("ntf_1", secret, body, time.time() - 1000), body)


class TestSlack:
    @given(st.text(max_size=4000))
    def test_has_no_markup_of_a_job(self, text: str) -> None:
        content = json.loads(slack_body(notification(text, project="<!channel>")))
        for shown in (content["text"], *(str(block) for block in content["blocks"])):
            assert "<" not in shown
            assert ">" not in shown
        (section, context) = content["blocks"]
        assert len(section["text"]["text"]) <= 3000
        assert section["type"] == "section"
        assert context["elements"][0]["text"] == "job ended, &lt;!channel&gt;"

    def test_is_never_cut_within_an_escape(self) -> None:
        text = json.loads(slack_body(notification("<" * 3000)))["text"]
        assert text.removesuffix("...").replace("&lt;", "") == ""

    def test_reads_as_the_sentence(self) -> None:
        assert json.loads(slack_body(notification("a & b")))["text"] == "a &amp; b"


class TestMail:
    @pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\u2028", "\x00", "\x0b"])
    def test_has_no_header_of_a_job(self, end: str) -> None:
        text = f"job x{end}Bcc: eve@example.com{end}{end}a body"
        message = email_of(notification(text), "remora@example.com", "ann@example.com")
        raw = message.as_bytes()
        head = raw.partition(b"\n\n")[0]
        assert message["Bcc"] is None
        assert not any(line.lower().startswith(b"bcc") for line in head.splitlines())
        assert message["To"] == "ann@example.com"
        assert message["Message-ID"] == "<ntf_1@example.com>"

    def test_has_a_subject_of_bounded_length_and_the_whole_sentence(self) -> None:
        text = "word " * 300
        message = email_of(notification(text, project="vision"), "remora@example.com", "ann@example.com")
        assert len(message["Subject"]) < 200
        body = message.get_content()
        assert body.count("word") == 300
        assert "project: vision" in body
