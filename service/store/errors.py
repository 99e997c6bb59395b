"""What the store raises on purpose."""

from __future__ import annotations


class StoreError(Exception):
    """The database cannot be used; the message is one sentence for people."""


class Fenced(Exception):
    """Another process holds the lease now: the transaction is rolled back and the work must be dropped."""
