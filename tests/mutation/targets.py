"""What is mutated, and the fast tests that have to see it: those that most faults end first come first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """Modules that are pure, and their tests; paths from the root."""

    name: str
    #: Folders and modules.
    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def has(self, path: str) -> bool:
        """The source is one of its modules."""
        return any(path == one or path.startswith(f"{one}/") for one in self.modules)


def _all(folder: str, names: str, ending: str = ".py") -> tuple[str, ...]:
    return tuple(f"{folder}{name}{ending}" for name in names.split())


TARGETS = (
    Target(
        "planning",
        ("cluster/scheduling",),
        (
            *_all(
                "tests/unit/cluster/test_",
                "planner planner_combinations planner_quotas pools_that_fail nodes_that_go keeping fitting refusals"
                " eviction_rates preparing workers_per_node planner_memory views money installed_rules"
                " demand_of_programs",
            ),
            *_all(
                "tests/unit/service/test_",
                "service_queue urgency fabric_domains quotas shares one_answer enough_later",
            ),
            "tests/unit/cluster/test_planner_properties.py",
        ),
    ),
    Target(
        "policies",
        _all(
            "cluster/policies/",
            "cron_fields policies conflicts documents policy_problems catalogue_conflicts",
        ),
        _all(
            "tests/unit/cluster/test_",
            "cron_fields policy_limits policy_documents policies_of_strangers policies_page planner"
            " eviction_rates",
        ),
    ),
    Target(
        "azure",
        # Without the catalogue, which is a table of figures.
        _all("cluster/azure/", "body error_codes prices quota"),
        _all("tests/unit/cluster/test_azure_", "error_codes quota body catalogue prices allowance domain"),
    ),
    Target(
        "kuberay",
        _all("cluster/kuberay/", "pod_claims documents nodes settings"),
        ("tests/unit/cluster/test_kuberay_claims.py",),
    ),
    Target(
        "nodes",
        _all(
            "cluster/",
            "ray/members ray/joining policies/placement policies/offerings ray/heartbeats node/agent/health"
            " node/agent/scheduled_events node/agent/watch node/boot azure/fabric_domain azure/emulator/start_up",
        ),
        (
            *_all(
                "tests/unit/cluster/test_",
                "members agent_heartbeats agent_watch gpu_health scheduled_events node_boot azure_domain"
                " azure_start_up offerings",
            ),
            "tests/unit/service/test_service_queue.py",
        ),
    ),
    Target(
        "queue",
        ("service/queue",),
        _all(
            "tests/unit/service/test_",
            "service_queue fabric_domains urgency plan_reasons ledger bill demand drill_account"
            " version_zero policy_versions service_docs list_pages service_lifecycle owners_decisions early_stop"
            " rows records listing secret_rules accounts goodput work_phases preflight_decisions alert_decisions"
            " profile_decisions spans shell_decisions budgets market",
        ),
    ),
    Target(
        "replay",
        ("cluster/simulator", "cluster/traces"),
        (
            *_all("tests/unit/cluster/test_", "traces replay"),
            *_all(
                "tests/unit/service/test_what_if",
                " _cloud_quotas _failed_starts _placement _quotas _rules _shares",
            ),
        ),
    ),
    Target(
        "identities",
        ("service/identities", "remora/roles.py"),
        ("tests/unit/service/test_granting.py",),
    ),
    Target(
        "secrets",
        ("service/secrets/encryption.py", "trainers/secret_values.py", "trainers/supervisor/redaction.py"),
        (
            "tests/unit/service/test_secret_rules.py",
            *_all("tests/unit/trainers/test_", "redaction secrets_of_a_worker"),
        ),
    ),
    Target(
        "alerts",
        ("service/alerts/bodies.py", "service/alerts/destinations.py"),
        _all("tests/unit/service/test_alert_", "bodies addresses"),
    ),
    Target(
        "driver",
        _all(
            "trainers/driver/",
            "agreement change global_batch group hang kills nominations on_demand pending phases progress regrouping"
            " rendezvous repeated_failures stragglers verdict",
        ),
        _all(
            "tests/unit/trainers/test_",
            "worker_group agreement progress regrouping verdict stragglers rendezvous hang nominations"
            " on_demand outbox driver_growth account change changes_in_place attempt driver hang_monitor phases"
            " killed_scripts clock_of_a_driver kept_batch",
        ),
    ),
    Target(
        "checkpoints",
        _all("trainers/checkpoints/", "cadence manifest selection"),
        _all("tests/unit/trainers/test_", "checkpoint_selection cadence commits catalog"),
    ),
    Target(
        "specification",
        _all(
            "remora/",
            "spec/spec spec/fields spec/problems spec/sections spec/quantities spec/worker_sizes"
            " client/retries job_commands/expressions spec/bounds job_commands/started_commands"
            " job_commands/command_texts job_commands/launchers job_commands/launcher_options client/shell"
            " job_commands/shell_quotes spec/arrays spec/array_elements spec/cron spec/entrypoint"
            " spec/overrides spec/pipeline_steps spec/secret_uses",
        ),
        _all(
            "tests/unit/remora/test_",
            "remora_spec spec_limits quantities worker_sizes remora_retries command_texts launchers spec_of_strangers"
            " terminal_text foreign array_specs cron_times entrypoints pipeline_steps foreign_sweeps remora_client"
            " secret_uses",
        ),
    ),
)  # fmt: skip


def sources_of(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Paths of the sources of each target, by its name."""
    return {target.name: sorted(path for path in texts if target.has(path)) for target in TARGETS}
