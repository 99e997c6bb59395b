"""What is encrypted of an alert: bound to its row, as secrets are to theirs."""

from __future__ import annotations

from collections.abc import Sequence

from service.queue.alerts import AlertRow
from service.queue.secrets import SecretPlace, SecretSource
from service.secrets.encryption import Key, Sealed, seal, unseal


def seal_content(key: Key, project: str, alert_id: str, content: bytes) -> Sealed:
    """Encrypt the content of an alert for its row."""
    return seal(key, _place(project, alert_id), content)


def open_content(keys: Sequence[Key], alert: AlertRow) -> bytes:
    """What is encrypted in the row.  Raises CannotOpen, KeyUnknown."""
    return unseal(keys, _place(alert.project, alert.id), Sealed(alert.key_id, alert.ciphertext))


def _place(project: str, alert_id: str) -> SecretPlace:
    # The name of a project's secret has no colon.
    return SecretPlace(project, f"alert:{alert_id}", 1, SecretSource.VALUE)
