"""One try to send a notification, and what became of it in one sentence that has no secret in it."""

from __future__ import annotations

import asyncio
import smtplib
from collections.abc import Collection
from dataclasses import dataclass

import httpx2

from remora.alert_kinds import Channel
from service.alerts.bodies import email_of, slack_body, webhook_body, webhook_headers
from service.alerts.destinations import AddressRefused, Destination
from service.alerts.mail import MailServer, MailUnusable
from service.alerts.public_hosts import TIMEOUT_S, post
from service.queue.alerts import NotificationRow
from service.queue.deliveries import Try, TryResult
from service.settings import Settings

_GONE = 410


@dataclass(frozen=True)
class Sender:
    """What operators set for all alerts."""

    allowed_hosts: Collection[str]
    mail: MailServer

    @classmethod
    def of(cls, settings: Settings) -> Sender:
        """What the settings say."""
        mail = MailServer(
            settings.smtp_host,
            settings.smtp_port,
            settings.smtp_from,
            settings.smtp_tls,
            settings.smtp_user,
            settings.smtp_password_file,
        )
        return cls(settings.allowed_alert_hosts, mail)

    def send(self, destination: Destination, notification: NotificationRow, now: float) -> Try:
        """Send it once, within seconds; `now` is the time of the try, in seconds since 1970."""
        try:
            if destination.channel is Channel.EMAIL:
                self.mail.send(email_of(notification, self.mail.sender, destination.target))
                return Try(notification.id, TryResult.TAKEN)
            status = asyncio.run(self._post(destination, notification, now))
        except (AddressRefused, MailUnusable) as error:
            return Try(notification.id, TryResult.REFUSED, str(error))
        except (OSError, httpx2.HTTPError, smtplib.SMTPException, ValueError) as error:
            return Try(notification.id, TryResult.REFUSED, _why(error))
        if 200 <= status < 300:
            return Try(notification.id, TryResult.TAKEN)
        answer = TryResult.GONE if status == _GONE else TryResult.REFUSED
        return Try(notification.id, answer, f"the receiver answered {status}")

    async def _post(self, destination: Destination, notification: NotificationRow, now: float) -> int:
        if destination.channel is Channel.SLACK:
            headers, body = {"webhook-id": notification.id}, slack_body(notification)
        else:
            body = webhook_body(notification)
            assert destination.secret is not None
            headers = webhook_headers(notification.id, destination.secret, body, now)
        return await post(destination.target, headers, body, self.allowed_hosts)


def _why(error: Exception) -> str:
    """Without the texts of others, in which a URL or a password may be."""
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return f"the receiver did not answer within {TIMEOUT_S:.0f} s"
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return "the mail server refused the recipient"
    if isinstance(error, smtplib.SMTPResponseException):
        return f"the mail server answered {error.smtp_code}"
    if isinstance(error, httpx2.ConnectError | OSError):
        return f"the receiver cannot be reached ({type(error).__name__})"
    return f"the receiver gave no answer ({type(error).__name__})"
