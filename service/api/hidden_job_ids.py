"""Keeps ids of jobs of other projects out of sentences about the cluster, which name the jobs that hold things up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

import sqlalchemy as sa
from fastapi import Request

from remora.views import Event, Job, Node, NodeEvent, Pool, View
from service.api.authorisation import access_of
from service.api.context import context_of
from service.api.views import job_view
from service.identities.principals import Access
from service.queue.rows import JobRow
from service.store.scoped import visible_jobs

ViewT = TypeVar("ViewT", bound=View)

_JOB = re.compile(r"job_[0-9A-HJKMNP-TV-Z]{26}")
#: What stands in place of them.
ANOTHER = "a job of another project"


async def shown_job(request: Request, row: JobRow) -> Job:
    """A job as the sender of the request sees it."""
    access, view = access_of(request), job_view(row)
    if access.projects is None:
        return view
    database = context_of(request).database
    return await database.read(lambda connection: ForeignJobs(connection, access).job(view))


class ForeignJobs:
    """Which jobs are there for one principal; asked for those that texts name, each once."""

    def __init__(self, connection: sa.Connection, access: Access) -> None:
        self._connection = connection
        self._access = access
        self._seen: dict[str, bool] = {}

    def text(self, text: str) -> str:
        """The text without ids of jobs that are not there for the principal."""
        if self._access.projects is None or "job_" not in text:
            return text
        self._look(_JOB.findall(text))
        return _JOB.sub(lambda found: found[0] if self._seen[found[0]] else ANOTHER, text)

    def texts(self, view: ViewT, *names: str) -> ViewT:
        """The view without such ids in these of its fields, which are texts or None."""
        news = {name: self.text(said) for name in names if isinstance(said := getattr(view, name), str)}
        changed = {name: text for name, text in news.items() if text != getattr(view, name)}
        return view.model_copy(update=changed) if changed else view

    def job(self, job: Job) -> Job:
        """A job that is there, whose sentences may name one that is ahead of it."""
        return self.texts(job, "message", "why_short")

    def event(self, event: Event) -> Event:
        """An event of such a job."""
        return self.texts(event, "message")

    def node(self, node: Node) -> Node:
        """A node, bought for a job or held by one; its fabric domain is named after the job."""
        shown = self.texts(node, "message", "reason", "fabric")
        jobs = [one for one in node.jobs if self.text(one) == one]
        return shown if len(jobs) == len(node.jobs) else shown.model_copy(update={"jobs": jobs})

    def node_event(self, event: NodeEvent) -> NodeEvent:
        """What happened to a node."""
        return self.texts(event, "message")

    def pool(self, pool: Pool) -> Pool:
        """A pool and what holds it up."""
        waits = [self.texts(one, "reason") for one in pool.waits]
        refused = [self.texts(one, "reason") for one in pool.refused]
        return pool.model_copy(update={"waits": waits, "refused": refused})

    def look(self, job_ids: Iterable[str]) -> None:
        """Learn of all these jobs at once whether they are there, and not of each alone."""
        if self._access.projects is not None:
            self._look(job_ids)

    def _look(self, job_ids: Iterable[str]) -> None:
        unknown: Sequence[str] = [one for one in job_ids if one not in self._seen]
        if unknown:
            visible = visible_jobs(self._connection, self._access, unknown)
            self._seen.update({one: one in visible for one in unknown})
