"""Where an alert sends its notifications: checked, and encrypted in its row."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from remora.alert_kinds import Channel
from service.queue.alerts import AlertRow
from service.secrets.alert_contents import open_content, seal_content
from service.secrets.encryption import Key, Sealed

#: Characters of a URL and of an e-mail address; bytes of a signing secret.
LONGEST_URL, LONGEST_ADDRESS, SECRET_BYTES = 2000, 254, 32
#: Before the secret of a webhook, in the form of Standard Webhooks.
SECRET_PREFIX = "whsec_"  # noqa: S105 - the form, and no secret
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?")


class AddressRefused(Exception):
    """Nothing can be sent there; the message is one sentence."""


@dataclass(frozen=True)
class Destination:
    """Where to, and how it is proved who sends."""

    channel: Channel
    #: A URL, or an e-mail address.
    target: str = field(repr=False)
    #: Of a webhook: what signs its requests, `whsec_` and base64.
    secret: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """What everyone who sees the alert may see: of a URL its host alone, as its path may be a secret."""
        if self.channel is Channel.EMAIL:
            return self.target
        parts = urlsplit(self.target)
        return f"{parts.scheme}://{host_and_port(self.target)}"


def new_destination(channel: Channel, target: str, allowed_hosts: Collection[str]) -> Destination:
    """A destination that was given by a user, with a new secret for a webhook.  Raises AddressRefused."""
    if channel is Channel.EMAIL:
        if len(target) > LONGEST_ADDRESS or not _ADDRESS.fullmatch(target) or ".." in target:
            raise AddressRefused("this is no e-mail address; write one, such as ann@example.com")
        return Destination(channel, target)
    check_url(target, allowed_hosts)
    if channel is Channel.SLACK:
        return Destination(channel, target)
    return Destination(
        channel, target, SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
    )


def check_url(url: str, allowed_hosts: Collection[str]) -> None:
    """Raise AddressRefused for what is no URL over TLS, unless its host is one that operators allow."""
    form = "write one such as https://example.com/hooks/remora"
    if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise AddressRefused(f"this is no URL of at most {LONGEST_URL} ASCII characters; {form}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise AddressRefused(f"this is no URL; {form}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise AddressRefused(f"this is no URL of a web server; {form}")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise AddressRefused(f"the URL has a user, a password or a fragment in it; {form}")
    if parts.scheme == "http" and not is_allowed(url, allowed_hosts):
        raise AddressRefused(
            "the URL is not over TLS; use https, or have an operator name its host in REMORA_ALERT_HOSTS"
        )


def host_and_port(url: str) -> str:
    """`host`, or `host:port` where the URL names a port."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    return host if parts.port is None else f"{host}:{parts.port}"


def is_allowed(url: str, allowed_hosts: Collection[str]) -> bool:
    """Whether operators allow the host of the URL, wherever it is; they name it with a port or for all ports."""
    whole = host_and_port(url)
    host = (urlsplit(url).hostname or "").lower()
    return whole in allowed_hosts or host in allowed_hosts


def sealed_destination(key: Key, project: str, alert_id: str, destination: Destination) -> Sealed:
    """A destination for the row of its alert, which alone it can be opened for."""
    content = json.dumps({"target": destination.target, "secret": destination.secret})
    return seal_content(key, project, alert_id, content.encode())


def opened_destination(keys: Sequence[Key], alert: AlertRow) -> Destination:
    """The destination of an alert.  Raises CannotOpen."""
    content = json.loads(open_content(keys, alert))
    return Destination(alert.channel, content["target"], content["secret"])
