"""Every operation, for every mix of roles in two projects, against a table of who may do what that is written here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from remora.states import JobState
from service.api import authorisation
from service.identities.permissions import OPEN_PATHS, PAGE_FILES, PAGE_SIGN_IN, PERMISSIONS
from service.queue.profiles import ProfileRow
from service.store import profiles
from service.store.database import Database
from service.store.tables import jobs
from tests.contracts.service.two_projects import (
    COMMAND,
    PROJECTS,
    ROLES,
    Objects,
    Service,
    packed,
    routes_of,
    two_projects,
)
from trainers.profiles import profile_name
from trainers.storage import Storage

pytestmark = pytest.mark.postgresql_in_soak

RANKS = (*ROLES, "operator")


@dataclass(frozen=True)
class Rule:
    """An operation as it is asked for, and who may."""

    #: The least role in the object's project; "any": every principal; "anyone": all.
    least: str
    method: str
    #: With the fields of the objects of the project in braces.
    path: str
    #: What is sent, for the objects.
    body: Callable[[Objects], Any] | None = None
    #: `object`: others' are not there (404); `named`: others' are refused (403); `list`: others' are left out.
    kind: str = "object"
    #: Makes an object that the operation uses up, and returns the path.
    fresh: Callable[[Service, Objects], str] | None = None
    content: bytes | None = None
    #: What the operator has made here is not there for others, whatever role they have.
    is_own: bool = False


def spec(more: dict[str, Any] | None = None) -> Callable[[Objects], Any]:
    return lambda objects: {"command": COMMAND, "project": objects.project, **(more or {})}


def running_job(service: Service, objects: Objects) -> str:
    job_id = service.submit(objects.project)
    running = sa.update(jobs).where(jobs.c.id == job_id).values(state=JobState.RUNNING, world_size=1)
    service.database.transact(lambda connection: connection.execute(running))
    return f"/v1/jobs/{job_id}/stacks"


def profiled_job(service: Service, objects: Objects) -> str:
    return running_job(service, objects).replace("/stacks", "/profiles")


def made_profile(service: Service, objects: Objects) -> str:
    job_id, file = service.submit(objects.project), "a" * 32
    Storage(service.settings.storage).write_bytes(profile_name(job_id, file), b"a trace")
    place = {"job_id": job_id, "number": 1, "attempt": 1, "rank": 0, "steps": 1, "requested_at": 1.0}
    row = ProfileRow(**place, ended_at=2.0, file=file, size_bytes=7, sha256="b" * 64)
    service.database.transact(lambda connection: profiles.add(connection, row))
    return f"/v1/jobs/{job_id}/profiles/1/content"


def fresh_shell(service: Service, objects: Objects) -> str:
    path = running_job(service, objects).replace("/stacks", "/shells")
    service.made("POST", path, json={})
    return f"{path}/1"


def fresh_job(service: Service, objects: Objects) -> str:
    return f"/v1/jobs/{service.submit(objects.project)}"


def ended_job(service: Service, objects: Objects) -> str:
    path = fresh_job(service, objects)
    service.made("POST", f"{path}/cancel")
    return path


def paused_job(service: Service, objects: Objects) -> str:
    path = fresh_job(service, objects)
    service.made("POST", f"{path}/pause")
    return f"{path}/resume"


def fresh_schedule(service: Service, objects: Objects) -> str:
    made = service.made("POST", "/v1/schedules", json=spec({"schedule": {"cron": "0 3 * * *"}})(objects))
    return f"/v1/schedules/{made['id']}"


def fresh_array(service: Service, objects: Objects) -> str:
    made = service.made("POST", "/v1/arrays", json=spec({"array": {"grid": {"lr": [1]}}})(objects))
    return f"/v1/arrays/{made['id']}/cancel"


def fresh_token(service: Service, objects: Objects) -> str:
    wanted = {"name": "fresh", "grants": {objects.project: "viewer"}}
    return f"/v1/tokens/{service.made('POST', '/v1/tokens', json=wanted)['id']}"


def fresh_grant(service: Service, objects: Objects) -> str:
    path = f"/v1/grants/{objects.project}/user:fresh"
    service.made("PUT", path, json={"role": "viewer"})
    return path


def alert_of(objects: Objects) -> dict[str, Any]:
    return {
        "project": objects.project,
        "jobs": "own",
        "kinds": ["job_ended"],
        "webhook": "https://example.com/x",
    }


def fresh_alert(service: Service, objects: Objects) -> str:
    return f"/v1/alerts/{service.made('POST', '/v1/alerts', json=alert_of(objects))['id']}"


def fresh_secret(service: Service, objects: Objects) -> str:
    path = f"/v1/projects/{objects.project}/secrets/FRESH"
    service.made("PUT", path, json={"value": "a long enough value"})
    return path


DIGEST, CONTENT = packed("# of no project yet")

#: Independent of the table in the code.
RULES: dict[str, Rule] = {
    "submit_job": Rule("submitter", "POST", "/v1/jobs", spec(), kind="named"),
    "submit_array": Rule(
        "submitter", "POST", "/v1/arrays", spec({"array": {"grid": {"lr": [1]}}}), kind="named"
    ),
    "submit_schedule": Rule(
        "submitter", "POST", "/v1/schedules", spec({"schedule": {"cron": "0 3 * * *"}}), kind="named"
    ),
    "clone_job": Rule("submitter", "POST", "/v1/jobs/{done}/clone", lambda _: {"set": {}}),
    "show_job": Rule("viewer", "GET", "/v1/jobs/{done}"),
    "list_attempts": Rule("viewer", "GET", "/v1/jobs/{done}/attempts"),
    "list_events": Rule("viewer", "GET", "/v1/jobs/{done}/events"),
    "list_logs": Rule("viewer", "GET", "/v1/jobs/{done}/logs"),
    "list_metrics": Rule("viewer", "GET", "/v1/jobs/{done}/metrics"),
    "list_phases": Rule("viewer", "GET", "/v1/jobs/{done}/phases"),
    "list_worker_loads": Rule("viewer", "GET", "/v1/jobs/{done}/loads"),
    "show_ledger": Rule("viewer", "GET", "/v1/jobs/{done}/ledger"),
    "list_checkpoints": Rule("viewer", "GET", "/v1/jobs/{done}/checkpoints"),
    "download_checkpoint": Rule("viewer", "GET", "/v1/jobs/{done}/checkpoints/4/content"),
    "list_outputs": Rule("viewer", "GET", "/v1/jobs/{done}/outputs"),
    "download_output": Rule("viewer", "GET", "/v1/jobs/{done}/outputs/weights/w.pt"),
    "cancel_job": Rule("submitter", "POST", "", fresh=lambda s, o: f"{fresh_job(s, o)}/cancel"),
    "pause_job": Rule("submitter", "POST", "", fresh=lambda s, o: f"{fresh_job(s, o)}/pause"),
    "resume_job": Rule("submitter", "POST", "", fresh=paused_job),
    "request_stacks": Rule("submitter", "POST", "", fresh=running_job),
    "request_profile": Rule("submitter", "POST", "", lambda _: {"steps": 1}, fresh=profiled_job),
    "open_shell": Rule(
        "admin",
        "POST",
        "",
        lambda _: {"rank": 0},
        fresh=lambda service, objects: running_job(service, objects).replace("/stacks", "/shells"),
    ),
    "list_shells": Rule("admin", "GET", "/v1/jobs/{done}/shells"),
    "exchange_shell": Rule(
        "admin",
        "POST",
        "",
        lambda _: {"after": 0},
        fresh=lambda service, objects: f"{fresh_shell(service, objects)}/exchange",
        is_own=True,
    ),
    "close_shell": Rule("admin", "DELETE", "", fresh=fresh_shell),
    "list_profiles": Rule("viewer", "GET", "/v1/jobs/{done}/profiles"),
    "download_profile": Rule("viewer", "GET", "", fresh=made_profile),
    "resize_job": Rule("submitter", "POST", "/v1/jobs/{queued}/resize", lambda _: {"max": 2}),
    "label_job": Rule("submitter", "PATCH", "/v1/jobs/{queued}/labels", lambda _: {"seen": "yes"}),
    "delete_job": Rule("admin", "DELETE", "", fresh=ended_job),
    "show_array": Rule("viewer", "GET", "/v1/arrays/{array}"),
    "cancel_array": Rule("submitter", "POST", "", fresh=fresh_array),
    "show_schedule": Rule("viewer", "GET", "/v1/schedules/{schedule}"),
    "list_runs": Rule("viewer", "GET", "/v1/schedules/{schedule}/runs"),
    "delete_schedule": Rule("submitter", "DELETE", "", fresh=fresh_schedule),
    "list_model_versions": Rule("viewer", "GET", "/v1/models/{model}/versions"),
    "download_model_file": Rule("viewer", "GET", "/v1/models/{model}/versions/1/files/w.pt"),
    "has_bundle": Rule("viewer", "HEAD", "/v1/bundles/{bundle}"),
    "get_bundle": Rule("viewer", "GET", "/v1/bundles/{bundle}"),
    "list_jobs": Rule("any", "GET", "/v1/jobs", kind="list"),
    "list_arrays": Rule("any", "GET", "/v1/arrays", kind="list"),
    "list_schedules": Rule("any", "GET", "/v1/schedules", kind="list"),
    "create_alert": Rule("submitter", "POST", "/v1/alerts", alert_of, kind="named"),
    "list_alerts": Rule("any", "GET", "/v1/alerts"),
    "show_alert": Rule("admin", "GET", "/v1/alerts/{alert}"),
    "list_notifications": Rule("admin", "GET", "/v1/alerts/{alert}/notifications"),
    "test_alert": Rule("admin", "POST", "/v1/alerts/{alert}/test"),
    "delete_alert": Rule("admin", "DELETE", "", fresh=fresh_alert),
    "list_projects": Rule("any", "GET", "/v1/projects"),
    "list_models": Rule("any", "GET", "/v1/models", kind="list"),
    "show_cluster_ledger": Rule("any", "GET", "/v1/ledger"),
    "show_costs": Rule("submitter somewhere", "GET", "/v1/costs"),
    "show_goodput": Rule("submitter somewhere", "GET", "/v1/goodput"),
    "list_budgets": Rule("submitter somewhere", "GET", "/v1/budgets"),
    "put_bundle": Rule("submitter somewhere", "PUT", f"/v1/bundles/{DIGEST}", content=CONTENT),
    "list_nodes": Rule("any", "GET", "/v1/nodes"),
    "list_node_loads": Rule("any", "GET", "/v1/loads"),
    "show_node": Rule("any", "GET", "/v1/nodes/{node}"),
    "list_node_events": Rule("any", "GET", "/v1/nodes/{node}/events"),
    "list_pools": Rule("any", "GET", "/v1/pools"),
    "list_ray_requests": Rule("any", "GET", "/v1/ray-requests"),
    "whoami": Rule("any", "GET", "/v1/whoami"),
    "list_tokens": Rule("any", "GET", "/v1/tokens"),
    "revoke_token": Rule("admin only", "DELETE", "", fresh=fresh_token),
    "create_token": Rule(
        "admin", "POST", "/v1/tokens", lambda o: {"name": "n", "grants": {o.project: "admin"}}, kind="named"
    ),
    "list_grants": Rule("admin somewhere", "GET", "/v1/grants"),
    "put_grant": Rule(
        "admin", "PUT", "/v1/grants/{project}/user:corp/new", lambda _: {"role": "viewer"}, kind="named"
    ),
    "remove_grant": Rule("admin", "DELETE", "", kind="named", fresh=fresh_grant),
    "list_audit": Rule("admin somewhere", "GET", "/v1/audit"),
    "list_secrets": Rule("submitter", "GET", "/v1/projects/{project}/secrets", kind="named"),
    "set_secret": Rule(
        "admin",
        "PUT",
        "/v1/projects/{project}/secrets/NEW",
        lambda _: {"value": "a value of ours"},
        kind="named",
    ),
    "delete_secret": Rule("admin", "DELETE", "", kind="named", fresh=fresh_secret),
    "rotate_secrets": Rule("operator", "POST", "/v1/secrets/rotate"),
    "show_page": Rule("anyone", "GET", "/"),
    "show_page_file": Rule("anyone", "GET", "/web/page.js"),
    "list_sign_in_ways": Rule("anyone", "GET", "/v1/sign-in"),
    "begin_page_sign_in": Rule("anyone", "GET", "/v1/sign-in/corp/page"),
    "end_page_sign_in": Rule("anyone", "GET", "/v1/sign-in/corp/answer"),
    "begin_session": Rule("any", "POST", "/v1/session"),
    "show_session": Rule("any", "GET", "/v1/session"),
    "end_session": Rule("any", "DELETE", "/v1/session"),
    "reopen_pool": Rule("operator", "POST", "/v1/pools/local/reopen"),
    "drill_node": Rule("operator", "POST", "/v1/nodes/{node}/drill", lambda _: {"silent": True}),
    "drill_pool": Rule("operator", "POST", "/v1/pools/local/drill", lambda _: {"silent": True}),
    "show_drill": Rule("operator", "GET", "/v1/drills/{drill}"),
    "list_policies": Rule("operator", "GET", "/v1/policies"),
    "get_policies": Rule("operator", "GET", "/v1/policies/newest"),
    "apply_policies": Rule("operator", "POST", "/v1/policies", lambda _: {"restores": 0, "based_on": 0}),
    "check_policies": Rule("operator", "POST", "/v1/policies/check", lambda _: {"document": "pools: {}"}),
    "list_cluster_events": Rule("operator", "GET", "/v1/events"),
    "create_plan": Rule("operator", "POST", "/v1/plans", lambda _: {}),
    "get_plan": Rule("operator", "GET", "/v1/plans/plan_1"),
    "cancel_plan": Rule("operator", "DELETE", "/v1/plans/plan_1"),
    "export_trace": Rule("operator", "GET", "/v1/trace"),
    "prune": Rule("operator", "POST", "/v1/prune"),
    "metrics": Rule("any", "GET", "/metrics"),
    "health": Rule("anyone", "GET", "/healthz"),
    "ready": Rule("anyone", "GET", "/readyz"),
}

#: What an operator is answered here that is no success: nothing of the kind is there, or it is under way already.
NOT_HERE = {
    "get_plan": 404,
    "cancel_plan": 404,
    "drill_node": 409,
    "drill_pool": 409,
    "create_plan": 422,
    "show_session": 404,
    "begin_page_sign_in": 404,
    "end_page_sign_in": 404,
    "ready": 503,
}


def expected(rule: Rule, who: Any, project: str) -> int | None:
    """The status of the refusal, or None: it is done."""
    if rule.least == "anyone":
        return None
    if who == "anonymous":
        return 401
    if who == "operator":
        return None
    roles = (None, None) if who == "outsider" else who
    held = dict(zip(PROJECTS, roles, strict=True))[project]
    best = "admin" if who == "outsider" else max(roles, key=RANKS.index)
    match rule.least:
        case "any":
            return None
        case "operator":
            return 403
        case "admin somewhere":
            return None if best == "admin" else 403
        case "submitter somewhere":
            return None if best in ("submitter", "admin") else 403
        case "admin only":
            return None if held == "admin" else 404
    if RANKS.index(held) >= RANKS.index(rule.least):
        return 404 if rule.is_own else None
    # Nothing is said about what is in a project in which one has no role.
    return 404 if held is None and rule.kind == "object" else 403


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all examples: making its objects takes longer than most of them."""
    folder = tmp_path_factory.mktemp("two")
    migrated: Path = request.getfixturevalue("migrated_sqlite")
    url = f"sqlite:///{folder / 'remora.db'}"
    (folder / "remora.db").write_bytes(migrated.read_bytes())
    database = Database(url)
    with two_projects(database, url, folder / "home") as service:
        yield service
    database.close()


def check(service: Service, operation: str, who: Any, project: str) -> None:
    """Ask as this principal for the operation on what is in the project, and compare with the table."""
    rule, objects = RULES[operation], service.objects[project]
    path = rule.fresh(service, objects) if rule.fresh is not None else rule.path
    path = path.format(**vars(objects), node=service.node, drill=service.drill)
    options: dict[str, Any] = {} if rule.body is None else {"json": rule.body(objects)}
    if rule.content is not None:
        options["content"] = rule.content
    token = None if who == "anonymous" else service.tokens[who]
    answer = service.ask(token, rule.method, path, **options)
    refusal = expected(rule, who, project)
    said = f"{operation} in {project} by {who}: {answer.status_code} {answer.text[:300]}"
    if refusal is not None:
        assert answer.status_code == refusal, said
        secret = (objects.done, objects.queued, objects.array, objects.model, objects.alert, "a secret")
        named = [one for one in secret if one in answer.text and one not in path]
        assert named == [] or refusal != 404, said
    elif operation in NOT_HERE:
        assert answer.status_code == NOT_HERE[operation], said
    else:
        assert answer.status_code < 300, said
        check_list(service, rule, who, answer)


def check_list(service: Service, rule: Rule, who: Any, answer: Any) -> None:
    """A list has all that the principal sees, and nothing else; sentences name no job of others."""
    hidden = [one for one in service.objects.values() if not sees(who, one.project)]
    for one in hidden:
        for text in (one.done, one.queued, one.array, one.schedule, one.model, one.token, one.alert):
            assert text not in answer.text
    if rule.kind == "list":
        projects = {
            one.get("project") or one["name"].removeprefix("model-") for one in answer.json()["items"]
        }
        assert projects == {project for project in PROJECTS if sees(who, project)}


def sees(who: Any, project: str) -> bool:
    return who == "operator" or (
        who not in ("outsider", "anonymous") and dict(zip(PROJECTS, who, strict=True))[project] is not None
    )


WHO = st.sampled_from(
    ["anonymous", "operator", "outsider", *[(a, b) for a in ROLES for b in ROLES if (a, b) != (None, None)]]
)


@given(operation=st.sampled_from(sorted(RULES)), who=WHO, project=st.sampled_from(PROJECTS))
@hypothesis_settings(max_examples=200)
def test_what_a_principal_may_do_is_what_the_table_says(
    shared: Service, operation: str, who: Any, project: str
) -> None:
    check(shared, operation, who, project)


@pytest.mark.parametrize("who", [("viewer", None), "outsider"])
def test_who_sees_one_project_or_none_learns_nothing_of_the_other(shared: Service, who: Any) -> None:
    for operation in sorted(RULES):
        for project in PROJECTS:
            check(shared, operation, who, project)


@pytest.mark.soak
@pytest.mark.parametrize("operation", sorted(RULES))
def test_every_operation_for_every_principal(shared: Service, operation: str) -> None:
    for project in PROJECTS:
        for who in ["anonymous", *shared.tokens]:
            check(shared, operation, who, project)


def test_every_route_is_in_the_table_of_permissions(shared: Service) -> None:
    routes = routes_of(shared.client)
    operations = [one.operation_id for one in routes]
    assert sorted(map(str, operations)) == sorted(PERMISSIONS)
    assert sorted(RULES) == sorted(PERMISSIONS), "the table of this test"
    open_ones = {one.path for one in routes if PERMISSIONS[str(one.operation_id)].is_open}
    signing_in = {f"{PAGE_SIGN_IN}{{issuer}}/{end}" for end in ("page", "answer")}
    assert open_ones == OPEN_PATHS - {"/openapi.json"} | {f"{PAGE_FILES}{{name:path}}"} | signing_in


def test_a_route_that_is_in_no_table_is_refused_to_operators_too(
    shared: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = {name: permission for name, permission in PERMISSIONS.items() if name != "list_pools"}
    monkeypatch.setattr(authorisation, "PERMISSIONS", without)
    assert shared.ask(shared.operator, "GET", "/v1/pools").status_code == 403
