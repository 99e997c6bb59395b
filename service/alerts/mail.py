"""Sends e-mail by the SMTP server that operators name."""

from __future__ import annotations

import smtplib
import ssl
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path
from typing import Literal

#: Seconds for each step of a conversation.
TIMEOUT_S = 10.0
#: Bytes of the file with the password.
_MOST_BYTES = 4096


class MailUnusable(Exception):
    """No e-mail can be sent; the message is one sentence for operators."""


@dataclass(frozen=True)
class MailServer:
    """An SMTP server, and in whose name it is spoken to."""

    host: str
    port: int
    sender: str
    tls: Literal["starttls", "tls", "none"]
    user: str = ""
    password_file: Path | None = field(default=None, repr=False)

    def send(self, message: EmailMessage) -> None:
        """Hand over one message.  Raises MailUnusable, OSError, smtplib.SMTPException."""
        if not self.host or not self.sender:
            raise MailUnusable(
                "no e-mail can be sent: an operator sets REMORA_SMTP_HOST and REMORA_SMTP_FROM"
            )
        with self._connect() as server:
            if self.tls == "starttls":
                server.starttls(context=ssl.create_default_context())
            if self.user:
                server.login(self.user, self._password())
            server.send_message(message)

    def _connect(self) -> smtplib.SMTP:
        if self.tls == "tls":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(self.host, self.port, timeout=TIMEOUT_S, context=context)
        return smtplib.SMTP(self.host, self.port, timeout=TIMEOUT_S)

    def _password(self) -> str:
        if self.password_file is None:
            return ""
        try:
            with self.password_file.open("rb") as file:
                return file.read(_MOST_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError):
            raise MailUnusable(
                f"the file {self.password_file} of REMORA_SMTP_PASSWORD_FILE cannot be read"
            ) from None
