"""What alerts report, and by which channel; the words of the API, the database and the CLI.  Pure."""

from __future__ import annotations

from enum import StrEnum


class AlertKind(StrEnum):
    """What an alert may report."""

    #: A job succeeded, failed or was cancelled.
    JOB_ENDED = "job_ended"
    #: A job failed.
    JOB_FAILED = "job_failed"
    #: A job has been in the queue for longer than the alert allows.
    JOB_WAITS = "job_waits"
    #: A job trains more slowly than it did before.
    JOB_SLOW = "job_slow"
    #: Workers wait for one that computes more slowly than they do.
    STRAGGLER = "straggler"
    #: No step ended for too long, whether its attempt goes on or ends.
    HANG = "hang"
    #: A part of a budget is spent, or the cluster's budget has an effect on jobs.
    BUDGET = "budget"
    #: A node computes wrongly, or its GPU failed, or it did not pass its preflight.
    NODE_SICK = "node_sick"
    #: A checkpoint that was begun, or requested, did not come to be.
    CHECKPOINT_MISSED = "checkpoint_missed"


class Channel(StrEnum):
    """How notifications are sent."""

    #: A signed request with JSON (Standard Webhooks).
    WEBHOOK = "webhook"
    #: A message for an incoming webhook of Slack, or of what takes the same JSON.
    SLACK = "slack"
    EMAIL = "email"


class DeliveryState(StrEnum):
    """What has become of a notification."""

    PENDING = "pending"
    DELIVERED = "delivered"
    #: It was not delivered within a day, or its alert was ended by its receiver.
    FAILED = "failed"
