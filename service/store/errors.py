"""What the store raises on purpose."""

from __future__ import annotations

from sqlalchemy.exc import OperationalError


class StoreError(Exception):
    """The database cannot be used; the message is one sentence for people."""


class Fenced(Exception):
    """Another process holds the lease now: the transaction is rolled back and the work must be dropped."""


class Unsure(OperationalError):
    """The connection broke while a transaction was being committed, and it is not known whether it was."""
