"""Requests about alerts.  Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from remora.alert_kinds import AlertKind, Channel
from remora.alert_views import Alert, NewAlert, Notification
from remora.client.requests import Answer, Request
from remora.errors import ConfigurationError, NotFound
from remora.views import Page, View

ViewT = TypeVar("ViewT", bound=View)

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def target_of(given: Mapping[Channel, str | None]) -> tuple[Channel, str]:
    """Where to, of what was given for each channel.  Raises ConfigurationError unless it is one."""
    found = [(channel, target) for channel, target in given.items() if target is not None]
    if len(found) != 1:
        raise ConfigurationError("an alert has one destination: give one of webhook, slack and email")
    return found[0]


def create_alert(
    project: str | None,
    kinds: Sequence[AlertKind | str],
    channel: Channel | str,
    target: str,
    *,
    all_jobs: bool,
    options: dict[str, Any],
) -> Request[NewAlert]:
    """A new alert; sent once, as a second one would be another.  Options that are None are left to the service."""
    given = {name: value for name, value in options.items() if value is not None}
    body = {
        "project": project,
        "jobs": "all" if all_jobs else "own",
        "kinds": [str(kind) for kind in kinds],
        str(channel): target,
        **given,
    }
    return Request(method="POST", path="/v1/alerts", json=body, parse=_one(NewAlert))


def list_alerts(cursor: str | None = None) -> Request[Page[Alert]]:
    """One page of alerts, newest first."""
    return Request(method="GET", path="/v1/alerts", params=_params(cursor), parse=_one(Page[Alert]))


def get_alert(alert_id: str) -> Request[Alert]:
    """One alert."""
    return Request(method="GET", path=_path(alert_id), parse=_one(Alert))


def list_notifications(alert_id: str, cursor: str | None = None) -> Request[Page[Notification]]:
    """One page of an alert's notifications, newest first."""
    path = f"{_path(alert_id)}/notifications"
    return Request(method="GET", path=path, params=_params(cursor), parse=_one(Page[Notification]))


def test_alert(alert_id: str) -> Request[Notification]:
    """Send a notification that reports nothing."""
    return Request(method="POST", path=f"{_path(alert_id)}/test", parse=_one(Notification))


def delete_alert(alert_id: str) -> Request[Alert]:
    """Delete an alert with its notifications."""
    return Request(method="DELETE", path=_path(alert_id), parse=_one(Alert))


def _path(alert_id: str) -> str:
    if not _ID.fullmatch(alert_id):
        hint = "remora alerts list shows those that there are"
        raise NotFound(404, "alert_not_found", f"there is no alert {alert_id[:80]!r}", hint=hint)
    return f"/v1/alerts/{alert_id}"


def _params(cursor: str | None) -> dict[str, str]:
    return {} if cursor is None else {"cursor": cursor}


def _one(view: type[ViewT]) -> Callable[[Answer], ViewT]:
    return lambda answer: view.model_validate_json(answer.content)
