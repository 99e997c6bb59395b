"""What the API answers about alerts, as typed values."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from remora.alert_kinds import AlertKind, Channel, DeliveryState
from remora.views import View


class Alert(View):
    """Whom the service notifies of what."""

    id: str
    #: None: of the whole cluster.
    project: str | None
    #: Of its owner's own jobs, or of all jobs of the project.
    jobs: Literal["own", "all"]
    kinds: list[AlertKind]
    channel: Channel
    #: An e-mail address, or of a URL the part without its path, which may be a secret.
    address: str
    #: Who created it; what it reports is what its owner may see at that time.
    owner: str
    #: Seconds after which a job that waits is reported.
    wait_s: float
    #: Parts of a budget in percent that are reported.
    budget_percents: list[int]
    #: Times as long as before that a step of a slow job takes.
    slow_factor: float
    created_at: float
    #: Tries that failed in a row, and why the last one did, or why nothing is reported.
    failures: int = 0
    error: str | None = None
    #: When its receiver answered 410, so that nothing is sent any more.
    ended_at: float | None = None


class NewAlert(Alert):
    """A new alert, with what is shown only now."""

    #: Of a webhook: with it the receiver verifies that a request is from the service (`whsec_...`).
    secret: str | None = None


class Notification(View):
    """One message of an alert."""

    #: Sent with every try as `webhook-id`: by it receivers recognize what they have already.
    id: str
    alert_id: str
    #: When what it reports happened, and when this was stored.
    at: float
    created_at: float
    #: A word of `Alert.kinds`, or `test`.
    kind: str
    #: One sentence for people.
    message: str
    data: dict[str, Any] = Field(default_factory=dict)
    state: DeliveryState
    #: Tries that have ended.
    tries: int = 0
    #: Why the last one failed.
    error: str | None = None
    #: When it was delivered, or given up.
    settled_at: float | None = None
