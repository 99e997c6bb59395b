"""What is sent of a notification: a signed body, Slack's JSON, or an e-mail (pure)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime

from remora.terminal_text import printable
from service.alerts.destinations import SECRET_PREFIX
from service.queue.alerts import NotificationRow

#: Characters of a section of Slack, after escapes, and of a subject.
_LONGEST_SECTION, _LONGEST_SUBJECT = 2900, 150
#: Of a fact that is sent by `remora alerts test`.
TEST = "test"


def webhook_body(notification: NotificationRow) -> bytes:
    """JSON as Standard Webhooks recommend: a type, the time of the fact, and its data."""
    content = {
        "type": notification.kind,
        "timestamp": datetime.fromtimestamp(notification.at, UTC).isoformat(),
        "data": {"message": notification.message, "alert_id": notification.alert_id, **notification.data},
    }
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()


def webhook_headers(notification_id: str, secret: str, body: bytes, now: float) -> dict[str, str]:
    """Id, time and signature of a try: HMAC-SHA256 of `id.timestamp.body` (Standard Webhooks 1.0)."""
    timestamp = str(int(now))
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = hmac.new(key, f"{notification_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": notification_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }


def slack_body(notification: NotificationRow) -> bytes:
    """A message of Slack, in which no text of a job can be a link, a mention or a command."""
    text = slack_escaped(notification.message)
    if len(text) > _LONGEST_SECTION:
        # Not within an escape.
        text = text[:_LONGEST_SECTION].rpartition("&")[0] + "..."
    where = [notification.kind.replace("_", " "), str(notification.data.get("project") or "cluster")]
    context = slack_escaped(", ".join(where))
    blocks = [
        {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}},
        {"type": "context", "elements": [{"type": "mrkdwn", "text": context, "verbatim": True}]},
    ]
    return json.dumps({"text": text, "blocks": blocks}, ensure_ascii=False).encode()


def slack_escaped(text: str) -> str:
    """Text with the three characters of Slack's markup as entities."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def email_of(notification: NotificationRow, sender: str, recipient: str) -> EmailMessage:
    """A message whose id is the notification's, so that a mail server can drop doubles."""
    line = " ".join(printable(notification.message).split())
    subject = line if len(line) <= _LONGEST_SUBJECT else line[: _LONGEST_SUBJECT - 3] + "..."
    message = EmailMessage()
    message["Subject"] = f"[remora] {subject}"
    message["From"] = sender
    message["To"] = recipient
    message["Date"] = format_datetime(datetime.fromtimestamp(notification.at, UTC))
    message["Message-ID"] = f"<{notification.id}@{sender.rpartition('@')[2].rstrip('>')}>"
    # RFC 3834: no vacation notice answers it.
    message["Auto-Submitted"] = "auto-generated"
    facts = [f"{name}: {value}" for name, value in notification.data.items() if isinstance(value, str | int)]
    message.set_content("\n".join([line, "", *facts, f"alert: {notification.alert_id}", ""]))
    return message
