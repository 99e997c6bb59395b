"""Opens storages for the processes of one job, with the names that it may reach and no credential of their own."""

from __future__ import annotations

from trainers.granted_blobs import Ask, GrantedBlobs, Grants
from trainers.plan import AttemptPlan, BuildAhead
from trainers.storage import Storage, StorageError
from trainers.storage_grants import Scope, StorageAnswer, StorageGrant, StorageRequest, is_brokered


def job_scopes(plan: AttemptPlan) -> dict[str, Scope]:
    """What the processes of an attempt may reach, by the URL of the storage (pure)."""
    own = Scope(writes=(f"jobs/{plan.job_id}",))
    code = () if plan.bundle is None else (bundle_file(plan.bundle),)
    found = [(plan.storage_url, Scope(reads=code).joined(own)), (plan.checkpoint_url, own)]
    for source in plan.inputs.values():
        if source.job_id is None:
            found.append((source.url, Scope(reads=(source.path.strip("/"),))))
            continue
        outputs = Scope(reads=(f"jobs/{source.job_id}/outputs",))
        found += [(url, outputs) for url in (source.url, *source.also)]
    scopes: dict[str, Scope] = {}
    for url, scope in found:
        scopes[url] = scopes.get(url, Scope()).joined(scope)
    return scopes


def bundle_file(digest: str) -> str:
    """Where the storage keeps the code of a digest."""
    return f"bundles/{digest.removeprefix('sha256:')}.zip"


class JobStorages:
    """The storages of one attempt, as one of its processes opens them."""

    def __init__(self, plan: AttemptPlan, ask: Ask) -> None:
        """`ask` reaches the service, and raises StorageError."""
        self._scopes = job_scopes(plan)
        #: Asks the service for a grant.
        self.ask = ask

    def open(self, url: str) -> Storage:
        """One of the job's storages; names that are not the job's are refused.  Raises StorageError."""
        scope = self._scopes.get(url)
        if scope is None:
            raise StorageError("the job has nothing in that storage")
        return granted_storage(url, scope, self.ask) if is_brokered(url) else Storage(url, scope=scope)


def code_storage(build: BuildAhead, grant: StorageGrant | None) -> Storage:
    """The storage of a build's code, of which it may read that alone.  Raises StorageError."""
    scope = Scope(reads=() if build.bundle is None else (bundle_file(build.bundle),))
    if not is_brokered(build.storage_url):
        return Storage(build.storage_url, scope=scope)
    answer = StorageAnswer(refusal="the service grants no access to the code") if grant is None else None

    def ask(_: StorageRequest) -> StorageAnswer:
        return answer or StorageAnswer(grant=grant)

    return granted_storage(build.storage_url, scope, ask)


def granted_storage(url: str, scope: Scope, ask: Ask) -> Storage:
    """A storage in Azure whose grants are asked for.  Raises StorageError without Azure's clients."""
    try:
        blobs = GrantedBlobs(Grants(url, ask))
    except ImportError as error:
        raise StorageError(f"storages in Azure need its clients, install remora[azure]: {error}") from error
    return Storage(url, scope=scope, filesystem=blobs)


def no_service(_: StorageRequest) -> StorageAnswer:
    """What a process asks where there is no service, as for a job that runs without one."""
    return StorageAnswer(refusal="there is no service that grants it")
