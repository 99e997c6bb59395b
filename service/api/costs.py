"""What nodes were paid for, and goodput."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import BeforeValidator, Field
from starlette.responses import Response

from remora.roles import Role
from remora.views import CostLine, CostReport, GoodputLoss, GoodputReport, MetricPoint
from service.api.authorisation import access_of
from service.api.context import context_of, job_of
from service.api.pages import as_json
from service.api.parameters import (
    MAX_NUMBER,
    Cursor,
    Limit,
    Parameters,
    make_cursor,
    read_number_cursor,
    split_words,
)
from service.api.problem_documents import ApiProblem
from service.api.ranges import check_range, range_asked
from service.identities.principals import Access
from service.queue.accounts import Amount, shown, sums
from service.queue.cost_causes import Cause, Payer, Span, to_ms
from service.queue.costs import MOST_S, By, CostSum, cost_lines, parts_of, ranges_of
from service.queue.focus_export import COLUMNS, focus_rows
from service.queue.goodput import (
    Goodput,
    Progressed,
    fleet_scheduling_goodput,
    job_scheduling_goodput,
    losses,
    program_goodput,
    runtime_goodput,
    sentence,
)
from service.queue.rows import JobRow, NodeRow
from service.store import costs, metric_summaries

router = APIRouter()

#: Lines of one answer as CSV.
MOST_LINES = 100_000
#: Lines of all pages of one answer, as each page is found from all rows.
MOST_PAGED = 10_000
#: Parts into which full hours may cut nodes and what jobs held of them: some seconds of work.
MOST_PARTS = 100_000
#: Points of a job's steps that its rates are found from.
_POINTS = 500

Time = Annotated[float, Field(ge=0, le=MAX_NUMBER)]
JobId = Annotated[str, Field(max_length=40)]


class CostsParameters(Parameters):
    """Of what, in which range of time, and in what form."""

    by: Annotated[list[By], BeforeValidator(split_words), Field(min_length=1, max_length=len(By))] = Field(
        default_factory=lambda: [By.CAUSE]
    )
    #: Seconds since 1970: the beginning of the running month in UTC unless given, and at most 31 days before `until`.
    since: Time | None = None
    #: Now unless given; no later than that.
    until: Time | None = None
    #: What these jobs alone pay, 50 at most.
    job: Annotated[list[JobId], BeforeValidator(split_words), Field(max_length=50)] = Field(
        default_factory=list
    )
    #: `focus`: a line for each node, hour, payer and cause, as CSV with the columns of FOCUS 1.0; `by` does not count.
    format: Literal["json", "csv", "focus"] | None = None
    limit: Limit = 1000
    cursor: Cursor | None = None


class GoodputParameters(Parameters):
    """Of what, in which range of time."""

    job: JobId | None = None
    #: Of a job the time of its submission unless given, otherwise the beginning of the running month in UTC; at most 31
    #: days before `until`.
    since: Time | None = None
    #: Now unless given; no later than that, nor than the end of the job.
    until: Time | None = None


class Answer:
    """What one principal may see of the account of a range of time."""

    def __init__(
        self,
        connection: sa.Connection,
        access: Access,
        since: float,
        until: float,
        job_ids: frozenset[str] = frozenset(),
    ) -> None:
        """`job_ids` are those of jobs that it may see; none: all that it may see."""
        self.since, self.until = since, until
        self._job_ids = job_ids
        self._projects = access.principal.projects_with(Role.SUBMITTER)
        if job_ids:
            self.rows = costs.rows_of_jobs(connection, job_ids, since, until)
        else:
            self.rows = costs.rows_between(connection, since, until, self._projects)

    def spans(self, by: Sequence[By] = ()) -> Iterator[Span]:
        """The spans that it may see.  Raises ApiProblem `too_many_lines`, before any work is done."""
        ranges = ranges_of(to_ms(self.since), to_ms(self.until), by)
        if len(ranges) > 1 and parts_of(self.rows.nodes.values(), self.rows.uses, ranges) > MOST_PARTS:
            raise _too_many("the nodes and hours of this range are too many for one answer")
        return (span for span in self.rows.spans(ranges) if self._is_shown(span))

    def _is_shown(self, span: Span) -> bool:
        if self._job_ids:
            return span.payer is Payer.JOB and span.name in self._job_ids
        return self._projects is None or (span.payer is not Payer.CLUSTER and span.project in self._projects)


def by_cause_of(spans: Iterable[Span], nodes: Mapping[str, NodeRow]) -> dict[Cause, Amount]:
    """The sum of each cause."""
    return sums(spans, nodes, lambda span, _: span.cause)


@router.get(
    "/v1/costs",
    operation_id="show_costs",
    response_model=CostReport,
    responses={200: {"content": {"text/csv": {}}, "description": "As CSV where that is asked for."}},
)
async def show_costs(request: Request, query: Annotated[CostsParameters, Query()]) -> Response:
    """What nodes were paid for, by job, project, pool, capacity type, cause or hour.

    Who is no operator sees what the projects pay in which it may submit, and their jobs.
    """
    context, access = context_of(request), access_of(request)
    since, until = range_asked(context, query.since, query.until)
    is_csv = query.format in ("csv", "focus") or (
        query.format is None and "text/csv" in request.headers.get("accept", "").lower()
    )
    by = list(dict.fromkeys(query.by))
    job_ids = frozenset([(await job_of(request, one)).id for one in dict.fromkeys(query.job)])
    first = read_number_cursor(query.cursor, 0)

    provider = "Microsoft" if context.settings.cloud.startswith("azure") else context.settings.cloud

    def work(answer: Answer) -> str:
        if query.format == "focus":
            return _csv(COLUMNS, focus_rows(answer.spans([By.HOUR]), answer.rows.nodes, provider))
        spans = list(answer.spans(by))
        lines = cost_lines(spans, answer.rows.nodes, by)
        if is_csv:
            return _csv([*(one.value for one in by), "node_s", "gpu_s", "usd"], map(_cells, lines))
        if len(lines) > MOST_PAGED:
            raise _too_many(f"the answer has more lines than the {MOST_PAGED} that are given in pages")
        by_cause = by_cause_of(spans, answer.rows.nodes)
        page = lines[first : first + query.limit]
        last = first + len(page)
        view = CostReport(
            since=since,
            until=until,
            by=[one.value for one in by],
            lines=[_line(by, one) for one in page],
            node_s=sum(one.node_ms for one in lines) / 1000.0,
            gpu_s=sum(one.gpu_ms for one in lines) / 1000.0,
            cost=sum(one.micro_usd for one in lines) / 1e6,
            sentence=sentence(by_cause),
            next_cursor=make_cursor(last) if last < len(lines) else None,
        )
        return view.model_dump_json()

    answer = await context.database.read(lambda connection: Answer(connection, access, since, until, job_ids))
    # The database is not held while it is computed.
    text = await asyncio.to_thread(work, answer)
    return Response(text, media_type="text/csv; charset=utf-8") if is_csv else as_json(text)


@router.get("/v1/goodput", operation_id="show_goodput", response_model=GoodputReport)
async def show_goodput(request: Request, query: Annotated[GoodputParameters, Query()]) -> Response:
    """Which part of paid time trained: of one job, or of all that the principal may submit to."""
    context, access = context_of(request), access_of(request)
    job = None if query.job is None else await job_of(request, query.job)
    if job is None:
        since, until = range_asked(context, query.since, query.until)
    else:
        now = context.clock()
        until = min(now if query.until is None else query.until, now, job.ended_at or now)
        since = max(job.created_at, until - MOST_S if query.since is None else query.since)
        check_range(since, until)

    def read(connection: sa.Connection) -> tuple[Answer, list[MetricPoint]]:
        only = frozenset[str]() if job is None else frozenset([job.id])
        answer = Answer(connection, access, since, until, only)
        return answer, [] if job is None else metric_summaries.few_points(connection, job.id, -1, _POINTS)

    def work(answer: Answer, points: Sequence[MetricPoint]) -> str:
        by_cause = by_cause_of(answer.spans(), answer.rows.nodes)
        found = _goodput(job, answer, by_cause, points)
        return _report(job, answer, by_cause, found).model_dump_json()

    # The database is not held while it is computed.
    return as_json(await asyncio.to_thread(work, *await context.database.read(read)))


def _goodput(
    job: JobRow | None, answer: Answer, by_cause: Mapping[Cause, Amount], points: Sequence[MetricPoint]
) -> Goodput:
    if job is None:
        return Goodput(
            scheduling=fleet_scheduling_goodput(by_cause), runtime=runtime_goodput(by_cause), program=None
        )
    uses = [use for use in answer.rows.uses if use.job_id == job.id]
    progressed = [
        Progressed(step=one.step, at=one.at, attempt=one.attempt, world_size=one.world_size) for one in points
    ]
    return Goodput(
        scheduling=job_scheduling_goodput(uses, job.min_workers, answer.since, answer.until),
        runtime=runtime_goodput(by_cause),
        program=program_goodput([one for one in progressed if answer.since <= one.at <= answer.until]),
    )


def _report(
    job: JobRow | None, answer: Answer, by_cause: Mapping[Cause, Amount], found: Goodput
) -> GoodputReport:
    causes = sorted(by_cause)
    lines = dict(zip(causes, shown([by_cause[one] for one in causes]), strict=True))
    trained = lines.get(Cause.TRAINING)
    return GoodputReport(
        job_id=None if job is None else job.id,
        since=answer.since,
        until=answer.until,
        scheduling=found.scheduling,
        runtime=found.runtime,
        program=found.program,
        goodput=found.overall,
        trained_node_s=0.0 if trained is None else trained.node_ms / 1000.0,
        node_s=sum(one.node_ms for one in lines.values()) / 1000.0,
        gpu_s=sum(one.gpu_ms for one in lines.values()) / 1000.0,
        cost=sum(one.micro_usd for one in lines.values()) / 1e6,
        losses=[
            GoodputLoss(
                cause=one.cause.value,
                node_s=lines[one.cause].node_ms / 1000.0,
                gpu_s=lines[one.cause].gpu_ms / 1000.0,
                cost=lines[one.cause].micro_usd / 1e6,
                saved_cost=one.saved * one.amount.usd,
                saved_node_s=one.saved * one.amount.node_s,
                by=one.by,
            )
            for one in losses(by_cause)
        ],
        sentence=sentence(by_cause),
    )


def _line(by: Sequence[By], one: CostSum) -> CostLine:
    return CostLine(
        of={name.value: value for name, value in zip(by, one.of, strict=True)},
        node_s=one.node_ms / 1000.0,
        gpu_s=one.gpu_ms / 1000.0,
        cost=one.micro_usd / 1e6,
    )


def _csv(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A heading and the lines.  Raises ApiProblem `too_many_lines`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for number, cells in enumerate(lines):
        if number >= MOST_LINES:
            raise _too_many(f"the answer has more lines than the {MOST_LINES} that are given as CSV")
        writer.writerow([_cell(cell) for cell in cells])
    return text.getvalue()


def _too_many(detail: str) -> ApiProblem:
    return ApiProblem(
        422,
        "too_many_lines",
        detail,
        hint="ask for a shorter range of time, or by fewer names; CSV has more lines than pages",
    )


def _cells(one: CostSum) -> tuple[str, ...]:
    """Numbers as decimals that sum exactly."""
    return (
        *one.of,
        f"{one.node_ms / 1000:.3f}",
        f"{one.gpu_ms / 1000:.3f}",
        f"{one.micro_usd / 1e6:.6f}",
    )


def _cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
