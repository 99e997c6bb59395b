"""What each operation of the API needs: the one table of who may do what (pure).

An operation that is not in it is refused to everyone: a test walks the routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from remora.roles import Role


class Where(StrEnum):
    """In which project a role is needed."""

    #: That of the object that the path names; one of another project is as if it were not there.
    OBJECT = "the project of the object"
    #: The one that the body names.
    NAMED = "the project that is named"
    #: Any at all: the list has what belongs to the projects in which one has the role.
    LISTED = "some project; the answer has what belongs to such projects"
    #: None: the whole service.
    SERVICE = "the service"


@dataclass(frozen=True)
class Permission:
    """What an operation needs."""

    #: None: nothing but to have proved who one is.
    role: Role | None
    where: Where
    #: What one submitted oneself needs only `submitter`.
    is_enough_to_own: bool = False
    #: It needs not even a proof.
    is_open: bool = False
    #: It writes nothing that the audit records, although its method could.
    is_read: bool = False


OPEN = Permission(None, Where.SERVICE, is_open=True)
ANY = Permission(None, Where.SERVICE)
OPERATOR = Permission(Role.OPERATOR, Where.SERVICE)
VIEW = Permission(Role.VIEWER, Where.OBJECT)
LIST = Permission(Role.VIEWER, Where.LISTED)
CHANGE = Permission(Role.SUBMITTER, Where.OBJECT)
SUBMIT = Permission(Role.SUBMITTER, Where.NAMED)
DELETE = Permission(Role.ADMIN, Where.OBJECT, is_enough_to_own=True)
#: What of others is for admins: where an alert is sent to, and what it has reported.
OWN = DELETE
#: A shell shows what its job's command may see, its secrets too: in jobs of others it is for admins.
ENTER = DELETE
GRANT = Permission(Role.ADMIN, Where.NAMED)
#: What one's own projects pay; what the cluster pays is for operators.
SPENT = Permission(Role.SUBMITTER, Where.LISTED)
ADMINS = Permission(Role.ADMIN, Where.LISTED)

PERMISSIONS: Mapping[str, Permission] = {
    "submit_job": SUBMIT,
    "clone_job": SUBMIT,
    "list_jobs": LIST,
    "show_job": VIEW,
    "cancel_job": CHANGE,
    "pause_job": CHANGE,
    "resume_job": CHANGE,
    "resize_job": CHANGE,
    "request_stacks": CHANGE,
    "request_profile": CHANGE,
    "open_shell": ENTER,
    "list_shells": ENTER,
    # What is typed and printed: the audit records the beginning and the end.
    "exchange_shell": Permission(Role.ADMIN, Where.OBJECT, is_enough_to_own=True, is_read=True),
    "close_shell": ENTER,
    "label_job": CHANGE,
    "delete_job": DELETE,
    "list_attempts": VIEW,
    "list_events": VIEW,
    "list_logs": VIEW,
    "list_metrics": VIEW,
    "list_phases": VIEW,
    "list_worker_loads": VIEW,
    "show_ledger": VIEW,
    "list_checkpoints": VIEW,
    "download_checkpoint": VIEW,
    "list_profiles": VIEW,
    "download_profile": VIEW,
    "list_outputs": VIEW,
    "download_output": VIEW,
    "submit_array": SUBMIT,
    "list_arrays": LIST,
    "show_array": VIEW,
    "cancel_array": CHANGE,
    "submit_schedule": SUBMIT,
    "list_schedules": LIST,
    "show_schedule": VIEW,
    "list_runs": VIEW,
    "delete_schedule": CHANGE,
    "create_alert": SUBMIT,
    "list_alerts": LIST,
    "show_alert": OWN,
    "list_notifications": OWN,
    "test_alert": OWN,
    "delete_alert": OWN,
    "list_projects": LIST,
    "list_models": LIST,
    "list_model_versions": LIST,
    "download_model_file": LIST,
    "has_bundle": Permission(Role.VIEWER, Where.LISTED),
    "get_bundle": Permission(Role.VIEWER, Where.LISTED),
    "put_bundle": Permission(Role.SUBMITTER, Where.LISTED),
    "show_cluster_ledger": LIST,
    "show_costs": SPENT,
    "show_goodput": SPENT,
    "list_budgets": SPENT,
    "list_nodes": ANY,
    "list_node_loads": ANY,
    "show_node": ANY,
    "list_node_events": ANY,
    "list_pools": ANY,
    "list_ray_requests": LIST,
    "reopen_pool": OPERATOR,
    "drill_node": OPERATOR,
    "drill_pool": OPERATOR,
    "show_drill": OPERATOR,
    "list_policies": OPERATOR,
    "get_policies": OPERATOR,
    "apply_policies": OPERATOR,
    "check_policies": Permission(Role.OPERATOR, Where.SERVICE, is_read=True),
    "list_cluster_events": OPERATOR,
    "create_plan": OPERATOR,
    "get_plan": OPERATOR,
    "cancel_plan": OPERATOR,
    "export_trace": OPERATOR,
    "prune": OPERATOR,
    # Counts of the whole cluster, without a name.
    "metrics": ANY,
    "health": OPEN,
    "ready": OPEN,
    "list_secrets": Permission(Role.SUBMITTER, Where.NAMED),
    "set_secret": GRANT,
    "delete_secret": GRANT,
    "rotate_secrets": OPERATOR,
    "list_sign_in_ways": OPEN,
    "begin_page_sign_in": OPEN,
    "end_page_sign_in": OPEN,
    "begin_session": Permission(None, Where.SERVICE, is_read=True),
    "show_session": ANY,
    "end_session": ANY,
    "whoami": ANY,
    "create_token": GRANT,
    "list_tokens": ANY,
    "revoke_token": ANY,
    "list_grants": ADMINS,
    "put_grant": GRANT,
    "remove_grant": GRANT,
    "list_audit": ADMINS,
    "show_page": OPEN,
    "show_page_file": OPEN,
}

#: Paths that are answered without a proof: those of the open operations, and the description of the API.
OPEN_PATHS = frozenset({"/", "/healthz", "/readyz", "/openapi.json", "/v1/sign-in"})
#: Below it lie the files of the page.
PAGE_FILES = "/web/"
#: Below it people sign in on the page.
PAGE_SIGN_IN = "/v1/sign-in/"


def is_open(path: str) -> bool:
    """True for the paths that are answered without a proof."""
    return path in OPEN_PATHS or path.startswith((PAGE_FILES, PAGE_SIGN_IN))
