"""The asynchronous Python client: the calls of `remora.client.Client`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2

from remora import flows, requests, what_if
from remora.errors import ApiError, ConnectionFailed, NotFound
from remora.flows import Flow, Work
from remora.requests import Answer, Request, Stream
from remora.retries import Following
from remora.shell import CHUNK, POLL_S, Shell, answer_of, check_deadline, deadline_after, item_of, within
from remora.spec import JobSpec
from remora.views import (
    Attempt,
    Checkpoint,
    ClusterEvent,
    ClusterLedger,
    Drill,
    Event,
    Health,
    Job,
    Ledger,
    LogLine,
    MetricPoint,
    ModelVersion,
    Node,
    NodeEvent,
    OutputFile,
    Policy,
    PolicyCheck,
    PolicyVersion,
    Pool,
    Pruned,
    RecordedTrace,
    WhatIf,
)

T = TypeVar("T")


class AsyncClient(Shell):
    """The asynchronous client: the same calls as `Client`, awaited; streams by `async for`."""

    def __init__(
        self,
        server: str | None = None,
        *,
        timeout_s: float = 30.0,
        retry_s: float = 30.0,
        resume_s: float = 300.0,
    ) -> None:
        """See `Client`."""
        super().__init__(server, timeout_s, retry_s, resume_s)
        self._http = httpx2.AsyncClient(**self._http_options())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def submit(
        self, job: JobSpec | Mapping[str, Any] | str | Path, *, idempotency_key: str | None = None
    ) -> Job:
        """See `Client.submit`."""
        return await self._run(flows.submit(job, idempotency_key))

    async def jobs(
        self, *, state: str | None = None, project: str | None = None, limit: int | None = None
    ) -> list[Job]:
        """See `Client.jobs`."""
        return await self._run(flows.jobs(state, project, limit))

    async def job(self, job_id: str) -> Job:
        """See `Client.job`."""
        return await self._send(requests.get_job(job_id))

    async def find(self, text: str) -> Job:
        """See `Client.find`."""
        return await self._run(flows.find_job(text))

    async def cancel(self, job_id: str) -> Job:
        """See `Client.cancel`."""
        return await self._send(requests.cancel_job(job_id))

    async def attempts(self, job_id: str) -> list[Attempt]:
        """See `Client.attempts`."""
        return await self._run(flows.all_pages(lambda cursor: requests.list_attempts(job_id, cursor)))

    async def events(self, job_id: str, *, follow: bool = False, after: int = 0) -> AsyncIterator[Event]:
        """See `Client.events`."""
        if follow:
            async for event in self._follow(requests.follow_events(job_id, after=after), job_id):
                yield event
            return
        for event in await self._run(flows.events(job_id, after)):
            yield event

    async def logs(
        self,
        job_id: str,
        *,
        follow: bool = False,
        after: int = 0,
        rank: int | None = None,
        attempt: int | None = None,
        tail: int | None = None,
    ) -> AsyncIterator[LogLine]:
        """See `Client.logs`."""
        if follow:
            stream = requests.follow_logs(job_id, after=after, rank=rank, attempt=attempt, tail=tail)
            async for line in self._follow(stream, job_id):
                yield line
            return
        for line in await self._run(flows.logs(job_id, after, rank, attempt, tail)):
            yield line

    async def metrics(
        self, job_id: str, *, after_step: int | None = None, points: int | None = None
    ) -> list[MetricPoint]:
        """See `Client.metrics`."""
        return await self._run(flows.metrics(job_id, after_step, points))

    async def checkpoints(self, job_id: str) -> list[Checkpoint]:
        """See `Client.checkpoints`."""
        return await self._run(flows.all_pages(lambda cursor: requests.list_checkpoints(job_id, cursor)))

    async def ledger(self, job_id: str) -> Ledger:
        """See `Client.ledger`."""
        return await self._send(requests.show_ledger(job_id))

    async def cluster_ledger(self, since: float | None = None, until: float | None = None) -> ClusterLedger:
        """See `Client.cluster_ledger`."""
        return await self._send(requests.show_cluster_ledger(since, until))

    async def download(self, job_id: str, target: str | Path, *, step: int | None = None) -> Checkpoint:
        """See `Client.download`."""
        return await self._run(flows.download(job_id, Path(target), step))

    async def outputs(self, job_id: str) -> list[OutputFile]:
        """See `Client.outputs`."""
        return await self._run(flows.all_pages(lambda cursor: requests.list_outputs(job_id, cursor)))

    async def download_outputs(self, job_id: str, target: str | Path) -> list[OutputFile]:
        """See `Client.download_outputs`."""
        return await self._run(flows.download_outputs(job_id, Path(target)))

    async def models(self) -> list[ModelVersion]:
        """See `Client.models`."""
        return await self._run(flows.all_pages(requests.list_models))

    async def model_versions(self, name: str) -> list[ModelVersion]:
        """See `Client.model_versions`."""
        return await self._run(flows.all_pages(lambda cursor: requests.list_model_versions(name, cursor)))

    async def download_model(
        self, name: str, target: str | Path, *, version: int | None = None
    ) -> ModelVersion:
        """See `Client.download_model`."""
        return await self._run(flows.download_model(name, Path(target), version))

    async def nodes(self) -> list[Node]:
        """See `Client.nodes`."""
        return await self._run(flows.all_pages(requests.list_nodes))

    async def pools(self) -> list[Pool]:
        """See `Client.pools`."""
        return await self._run(flows.all_pages(requests.list_pools))

    async def prune(self, *, older_than_s: float | None = None, keep_jobs: int | None = None) -> Pruned:
        """See `Client.prune`."""
        return await self._run(flows.prune(older_than_s, keep_jobs))

    async def reopen_pool(self, pool: str) -> Pool:
        """See `Client.reopen_pool`."""
        return await self._send(requests.reopen_pool(pool))

    async def policy(self, version: int | None = None) -> Policy:
        """See `Client.policy`."""
        return await self._send(requests.get_policy(version))

    async def policy_versions(self) -> list[PolicyVersion]:
        """See `Client.policy_versions`."""
        return await self._run(flows.all_pages(requests.list_policies))

    async def check_policy(self, document: str) -> PolicyCheck:
        """See `Client.check_policy`."""
        return await self._send(requests.check_policy(document))

    async def apply_policy(
        self, document: str, *, based_on: int, author: str = "", comment: str = ""
    ) -> Policy:
        """See `Client.apply_policy`."""
        return await self._send(
            requests.apply_policy(document, based_on=based_on, author=author, comment=comment)
        )

    async def roll_back_policy(
        self, version: int, *, based_on: int, author: str = "", comment: str = ""
    ) -> Policy:
        """See `Client.roll_back_policy`."""
        return await self._send(
            requests.roll_back_policy(version, based_on=based_on, author=author, comment=comment)
        )

    async def cluster_events(self, *, after: int = 0) -> list[ClusterEvent]:
        """See `Client.cluster_events`."""
        return await self._run(
            flows.all_pages(lambda cursor: requests.list_cluster_events(after=after, cursor=cursor))
        )

    async def node(self, node_id: str) -> Node:
        """See `Client.node`."""
        return await self._send(requests.get_node(node_id))

    async def node_events(self, node_id: str) -> list[NodeEvent]:
        """See `Client.node_events`."""
        return await self._run(flows.all_pages(lambda cursor: requests.list_node_events(node_id, cursor)))

    async def drill_node(self, node_id: str, *, notice_s: float | None) -> Drill:
        """See `Client.drill_node`."""
        return await self._send(requests.drill_node(node_id, notice_s))

    async def drill_pool(self, pool: str, *, notice_s: float | None) -> Drill:
        """See `Client.drill_pool`."""
        return await self._send(requests.drill_pool(pool, notice_s))

    async def drill(self, drill_id: str) -> Drill:
        """See `Client.drill`."""
        return await self._send(requests.get_drill(drill_id))

    async def what_if(
        self,
        traces: Sequence[str | Path],
        policies: Sequence[str | Path],
        *,
        seed: int = 0,
        look_s: float = 60.0,
        on_progress: Callable[[float], None] | None = None,
    ) -> WhatIf:
        """See `Client.what_if`."""
        return await self._run(what_if.what_if(traces, policies, seed, look_s, on_progress))

    async def export_trace(self, *, since: float = 0.0) -> RecordedTrace:
        """See `Client.export_trace`."""
        return await self._send(requests.export_trace(since))

    async def health(self) -> Health:
        """See `Client.health`."""
        return await self._send(requests.get_health())

    async def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """See `Client.wait`."""
        deadline = deadline_after(timeout_s)
        after = 0
        while True:
            try:
                job = await self._send(requests.get_job(job_id), deadline, self._resume_s)
            except ConnectionFailed:
                check_deadline(deadline, job_id)
                raise
            if job.terminal:
                return job
            try:
                stream = requests.follow_events(job_id, after=after)
                async for event in self._follow(stream, job_id, deadline):
                    after = event.seq
            except NotFound:
                raise
            except ApiError:  # something between does not let streams through: look now and then
                check_deadline(deadline, job_id)
                await asyncio.sleep(POLL_S)

    async def _run(self, flow: Flow[T]) -> T:
        try:
            step = next(flow)
            while True:
                try:
                    if isinstance(step, Work):
                        outcome = await asyncio.to_thread(step.call)
                    else:
                        outcome = await self._send(step)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(outcome)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _send(
        self, request: Request[T], deadline: float | None = None, budget_s: float | None = None
    ) -> T:
        patience = self._patience(deadline, self._retry_s if budget_s is None else budget_s)
        while True:
            try:
                answer = await self._exchange(request)
            except httpx2.TransportError as error:
                await asyncio.sleep(self._after_error(request, error, patience))
                continue
            pause = self._after_answer(request, answer, patience)
            if pause is None:
                return request.result(answer)
            await asyncio.sleep(pause)

    async def _exchange(self, request: Request[T]) -> Answer:
        content = _read_chunks_in_thread(request.body_file) if request.body_file else None
        async with self._http.stream(
            request.method,
            request.path,
            params=request.params,
            json=request.json,
            content=content,
            headers=request.headers,
        ) as response:
            if request.save_to is None or not response.is_success:
                body = await response.aread()
            else:
                with await asyncio.to_thread(request.save_to.open, "wb") as file:
                    async for chunk in response.aiter_bytes(CHUNK):
                        await asyncio.to_thread(file.write, chunk)
                body = b""
            return Answer(status=response.status_code, headers=response.headers, content=body)

    async def _follow(
        self, stream: Stream[T], job_id: str, deadline: float | None = None
    ) -> AsyncIterator[T]:
        following = Following(stream)
        patience = self._patience(deadline, self._retry_s)
        while not following.has_ended:
            check_deadline(deadline, job_id)
            is_open = False
            try:
                async with self._http.stream(
                    "GET",
                    stream.path,
                    params=following.params(),
                    headers=following.headers(),
                    timeout=self._stream_timeout(deadline),
                ) as response:
                    if response.status_code != 200:
                        await response.aread()
                        pause = self._after_refusal(answer_of(response), patience)
                    else:
                        is_open = True
                        patience.budget_s = self._resume_s
                        async for sent in httpx2.EventSource(response):
                            patience.reset()
                            item = item_of(following, sent)
                            if item is not None:
                                yield item
                            if following.has_ended:
                                return
                            check_deadline(deadline, job_id)
                        pause = self._after_break(None, patience)
            except httpx2.ReadTimeout as error:
                # an open stream that is only quiet is opened again at once
                pause = 0.0 if is_open else self._after_break(error, patience)
            except httpx2.SSEError as error:
                raise requests.unexpected(200) from error
            except httpx2.TransportError as error:
                pause = self._after_break(error, patience)
            await asyncio.sleep(within(deadline, pause))


async def _read_chunks_in_thread(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk
