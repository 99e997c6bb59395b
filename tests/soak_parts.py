"""What `make soak` runs, in parts, and the files of the product that each part covers.

A part is stale when it has not passed on the files that it covers as they are now.  Contents are compared, not commits:
a clone without history answers as one with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRAINERS = "tests/integration/trainers"
CONTRACTS = "tests/contracts/service"
#: What every test on real nodes is built of.
LAB = (f"{TRAINERS}/conftest.py", f"{TRAINERS}/lab.py")


@dataclass(frozen=True)
class Part:
    """Test files, and the files and folders that they cover beyond what `make test` covers."""

    tests: tuple[str, ...]
    covers: tuple[str, ...]
    #: Run only the tests of these files that are marked `soak`; otherwise all, with more rounds or seeds.
    is_marked: bool = True

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of pytest."""
        return (*(("-m", "soak") if self.is_marked else ()), *self.tests)

    def digest(self, root: Path = ROOT) -> str:
        """Of the names and contents of the files that are covered, and of the tests.

        Raises FileNotFoundError when nothing has one of the names.
        """
        return digest_of((*self.covers, *self.tests), root)


@dataclass(frozen=True)
class Ran:
    """How a part ended the last time: on which files, with how many failures, after how many seconds."""

    digest: str
    failed: int
    seconds: int


@dataclass(frozen=True)
class Choice:
    """Stale parts that are run, in this order, and those that are left to `make soak`."""

    run: tuple[str, ...]
    left: tuple[str, ...]


PARTS: Mapping[str, Part] = {
    "rounds": Part(
        ("tests/chaos/test_soak.py",),
        ("service", "trainers", "cluster/local", "cluster/ray", "cluster/node", "tests/chaos"),
    ),
    "seeds": Part(
        ("tests/chaos/test_chaos.py",),
        ("remora/script", "remora/torch", "trainers", "cluster/ray", "tests/chaos", *LAB),
        is_marked=False,
    ),
    "scale-sets": Part(
        ("tests/contracts/cluster/test_azure_set_storm.py",),
        ("cluster/azure", "tests/contracts/cluster/azure_rig.py"),
    ),
    "cloud-storms": Part(
        ("tests/contracts/service/test_azure_chaos.py", "tests/contracts/service/test_bill_of_a_day.py"),
        (
            "cluster/azure",
            "cluster/policies",
            "cluster/scheduling",
            "service/clouds",
            "service/loops",
            "service/queue",
            "tests/contracts/cluster/azure_rig.py",
            "tests/contracts/service/*storm*.py",
        ),
    ),
    "postgresql": Part(
        (
            f"{CONTRACTS}/test_alerts.py",
            f"{CONTRACTS}/test_arrays.py",
            f"{CONTRACTS}/test_clusters.py",
            f"{CONTRACTS}/test_exits_of_sick_nodes.py",
            f"{CONTRACTS}/test_stored_ends.py",
            f"{CONTRACTS}/test_traces_of_jobs.py",
            f"{CONTRACTS}/test_existing_nodes.py",
            f"{CONTRACTS}/test_issued_tokens.py",
            f"{CONTRACTS}/test_nodes_for_programs.py",
            f"{CONTRACTS}/test_programs_beside_jobs.py",
            f"{CONTRACTS}/test_schedules.py",
            f"{CONTRACTS}/test_checkpoint_lists.py",
            f"{CONTRACTS}/test_budgets_shown.py",
            f"{CONTRACTS}/test_clocks_that_jump.py",
            f"{CONTRACTS}/test_clones.py",
            f"{CONTRACTS}/test_clusters_that_buy.py",
            f"{CONTRACTS}/test_drills.py",
            f"{CONTRACTS}/test_fabric_on_azure.py",
            f"{CONTRACTS}/test_hostile_submitter.py",
            f"{CONTRACTS}/test_identities.py",
            f"{CONTRACTS}/test_labels_and_deletion.py",
            f"{CONTRACTS}/test_loads.py",
            f"{CONTRACTS}/test_metrics_of_nodes.py",
            f"{CONTRACTS}/test_missing_files.py",
            f"{CONTRACTS}/test_migration_of_identities.py",
            f"{CONTRACTS}/test_newest_entries.py",
            f"{CONTRACTS}/test_nodes_that_compute_wrongly.py",
            f"{CONTRACTS}/test_owners_pauses.py",
            f"{CONTRACTS}/test_paused_jobs.py",
            f"{CONTRACTS}/test_policies_api.py",
            f"{CONTRACTS}/test_preflights.py",
            f"{CONTRACTS}/test_preparations.py",
            f"{CONTRACTS}/test_profiles.py",
            f"{CONTRACTS}/test_projects_shown.py",
            f"{CONTRACTS}/test_reasons_shown.py",
            f"{CONTRACTS}/test_requested_stacks.py",
            f"{CONTRACTS}/test_resized_jobs.py",
            f"{CONTRACTS}/test_retry_rules.py",
            f"{CONTRACTS}/test_rights_of_schedules.py",
            f"{CONTRACTS}/test_alert_requests.py",
            f"{CONTRACTS}/test_secrets_of_projects.py",
            f"{CONTRACTS}/test_service_api.py",
            f"{CONTRACTS}/test_service_buying.py",
            f"{CONTRACTS}/test_service_fabric.py",
            f"{CONTRACTS}/test_service_kept_nodes.py",
            f"{CONTRACTS}/test_service_retention.py",
            f"{CONTRACTS}/test_settled_lists.py",
            f"{CONTRACTS}/test_shells.py",
            f"{CONTRACTS}/test_slow_cloud.py",
            f"{CONTRACTS}/test_strays.py",
            f"{CONTRACTS}/test_trace_export.py",
            f"{CONTRACTS}/test_what_is_kept.py",
            f"{CONTRACTS}/test_who_may_do_what.py",
        ),
        (
            "service/api",
            "service/identities",
            "service/loops",
            "service/queue",
            "service/secrets",
            "service/store",
            "tests/service_fakes.py",
        ),
    ),
    "description": Part(
        (f"{CONTRACTS}/test_api_description.py",),
        ("remora/views.py", "service/api", "service/identities", "requirements/schemathesis.txt"),
    ),
    "constructs": Part(
        ("tests/golden/test_constructs.py",),
        (
            "remora/torch",
            "tests/golden/beside_constructs.py",
            "tests/golden/constructs.py",
            "tests/golden/constructs_of_models.py",
            "tests/golden/sampler_constructs.py",
            "tests/golden/sharded_constructs_of_models.py",
            "tests/golden/stream_constructs.py",
            "tests/golden/subjects.py",
        ),
    ),
    "preflights": Part(
        ("tests/integration/cluster/test_preflights_on_nodes.py",),
        (
            "trainers/preflight",
            "trainers/network_interface.py",
            "service/loops/preflights.py",
            "service/queue/preflights.py",
            "service/queue/preflight_neighbours.py",
        ),
    ),
    "existing-cluster": Part(
        ("tests/e2e/test_existing_cluster.py",),
        (
            "cluster/existing",
            "cluster/ray",
            "service/clouds",
            "service/embedded",
            "service/up.py",
            "remora/ray_labels.py",
            "trainers/existing_nodes.py",
            "trainers/ray_train/liveness.py",
            "tests/e2e/embedded.py",
        ),
    ),
    "azure-storage": Part(
        ("tests/e2e/test_storage_in_azure.py", "tests/unit/trainers/test_mounts.py"),
        (
            "requirements/azurite",
            "service/azure_storage.py",
            "service/storage_broker.py",
            "service/storage_locations.py",
            "tests/azurite.py",
            "trainers/driver/storage_requests.py",
            "trainers/granted_blobs.py",
            "trainers/inputs",
            "trainers/job_storage.py",
            "trainers/storage.py",
            "trainers/storage_grants.py",
            "trainers/storage_server.py",
        ),
    ),
    "azure-template": Part(
        ("tests/contracts/deploy/test_azure_lint.py", "tests/contracts/deploy/test_azure_installer.py"),
        ("deploy/azure", "cluster/azure/emulator/deployments", "requirements/checkov.txt"),
    ),
    "kubernetes": Part(
        (
            "tests/contracts/deploy/test_kubernetes_manifests.py",
            "tests/contracts/deploy/test_kubernetes_admission.py",
        ),
        ("deploy/kubernetes", "requirements/kubernetes.txt", "cluster/kuberay/documents.py"),
    ),
    "zones": Part(
        ("tests/e2e/test_emulated_azure.py", "tests/integration/cluster/test_zone_cut_off.py"),
        (
            "cluster/azure/emulator",
            "cluster/scheduling",
            "service/loops",
            "tests/integration/cluster/zoned_service.py",
            "tests/integration/network",
        ),
    ),
    "demos": Part(
        (
            "tests/e2e/test_demo.py",
            "tests/e2e/test_demo_azure.py",
            "tests/e2e/test_demo_huggingface.py",
            "tests/e2e/test_demo_server.py",
            "tests/e2e/test_demo_team.py",
        ),
        (
            "examples/demo_server.py",
            "examples/installed_server.py",
            "examples/demo_team.py",
            "examples/team",
            "examples/demo.py",
            "examples/demo_azure.py",
            "examples/demo_huggingface.py",
            "examples/azure",
            "examples/digits",
            "examples/huggingface",
            "remora/integrations",
            "cluster/azure",
            "cluster/head",
            "cluster/ray",
            "service/embedded",
            "service/installation",
        ),
    ),
    "frameworks": Part(
        (
            "tests/e2e/test_keras_example.py",
            f"{TRAINERS}/test_accelerate.py",
            f"{TRAINERS}/test_frameworks_go_on.py",
            f"{TRAINERS}/test_jax.py",
            f"{TRAINERS}/test_ray_train_scripts.py",
            f"{TRAINERS}/test_trackers_of_jobs.py",
            f"{TRAINERS}/test_tensorflow.py",
            "tests/frameworks/test_lightning_loop.py",
            "tests/frameworks/test_trackers.py",
        ),
        (
            "remora/integrations",
            "requirements/transformers.txt",
            "tests/frameworks/lightning_scenarios.py",
            "tests/frameworks/lightning_worker.py",
            "tests/frameworks/transformers_environment.py",
            "examples/jax",
            "examples/keras",
            "examples/ray_train",
            "examples/tensorflow",
            "requirements/jax.txt",
            "requirements/trackers.txt",
            "requirements/tensorflow.txt",
            "trainers/backends/jax.py",
            "trainers/backends/mpi",
            "trainers/backends/tensorflow.py",
            "trainers/supervisor/tracker_variables.py",
            "tests/frameworks/trackers_environment.py",
            f"{TRAINERS}/jax_environment.py",
            f"{TRAINERS}/tensorflow_environment.py",
            *LAB,
        ),
    ),
    "transformers": Part(
        ("tests/frameworks/test_stream_states.py", "tests/frameworks/test_transformers_loop.py"),
        (
            "remora/integrations",
            "remora/torch",
            "requirements/transformers.txt",
            "tests/frameworks/stream_scenarios.py",
            "tests/frameworks/trainer_worker.py",
        ),
    ),
    "sharded-steps": Part(
        (
            "tests/golden/test_evaluated.py",
            "tests/golden/test_resume_on_nodes.py",
            "tests/golden/test_sharded.py",
            "tests/golden/test_sharded_exports.py",
            "tests/golden/test_sharded_steps.py",
            "tests/golden/test_streamed.py",
        ),
        (
            "remora/script",
            "remora/torch",
            "tests/golden/sharded_worker.py",
            "trainers/checkpoints/parts.py",
            "examples/steps",
        ),
    ),
    "deepspeed-layouts": Part(
        ("tests/golden/test_deepspeed_layouts.py", "tests/golden/test_deepspeed_resize.py"),
        (
            "remora/deepspeed",
            "requirements/deepspeed.txt",
            "tests/golden/deepspeed_worker.py",
            "tests/golden/layouts_worker.py",
        ),
    ),
    "deepspeed-nodes": Part(
        (f"{TRAINERS}/test_deepspeed.py",),
        (
            "remora/deepspeed",
            "requirements/deepspeed.txt",
            "trainers/backends/deepspeed.py",
            f"{TRAINERS}/deepspeed_scripts.py",
            *LAB,
        ),
    ),
    "deepspeed-trainer": Part(
        (f"{TRAINERS}/test_deepspeed_trainer.py",),
        (
            "remora/deepspeed",
            "requirements/deepspeed.txt",
            "trainers/backends/deepspeed.py",
            "trainers/driver/global_batch.py",
            "tests/frameworks/transformers_environment.py",
            *LAB,
        ),
    ),
    "sharded": Part(
        (
            "tests/golden/test_many_regroupings.py",
            f"{TRAINERS}/test_fsdp_on_nodes.py",
            f"{TRAINERS}/test_sharded_on_nodes.py",
        ),
        (
            "examples/fsdp",
            "remora/torch",
            "tests/golden/sharded_worker.py",
            f"{TRAINERS}/fsdp_scripts.py",
            *LAB,
        ),
    ),
    "changes": Part(
        (
            f"{TRAINERS}/test_changes_on_nodes.py",
            f"{TRAINERS}/test_diverged.py",
            f"{TRAINERS}/test_elastic.py",
            f"{TRAINERS}/test_hangs.py",
            f"{TRAINERS}/test_kept_nodes.py",
            f"{TRAINERS}/test_left_alone.py",
            f"{TRAINERS}/test_notices.py",
            f"{TRAINERS}/test_owners_changes.py",
            f"{TRAINERS}/test_placement_on_nodes.py",
            f"{TRAINERS}/test_straggling.py",
            f"{TRAINERS}/test_stuck_aborts.py",
            f"{TRAINERS}/test_wrong_machine.py",
        ),
        (
            "remora/torch/communicators.py",
            "remora/torch/group.py",
            "trainers/driver",
            "trainers/ray_train",
            f"{TRAINERS}/elastic_script.py",
            *LAB,
        ),
    ),
    "attempts": Part(
        (
            "tests/e2e/test_job_images.py",
            "tests/e2e/test_job_inputs.py",
            f"{TRAINERS}/test_attempts.py",
            f"{TRAINERS}/test_builds_ahead.py",
            f"{TRAINERS}/test_checkpoints_kept_on_nodes.py",
            f"{TRAINERS}/test_hand_over.py",
            f"{TRAINERS}/test_horovod.py",
            f"{TRAINERS}/test_mpi.py",
            f"{TRAINERS}/test_profiles_of_attempts.py",
            f"{TRAINERS}/test_ready.py",
        ),
        ("trainers", *LAB),
    ),
    "examples": Part(
        (
            "tests/e2e/test_azureml_pipeline.py",
            "tests/e2e/test_bad_input.py",
            "tests/e2e/test_deepspeed_example.py",
            "tests/e2e/test_examples.py",
            "tests/e2e/test_huggingface_example.py",
            "tests/e2e/test_mpi_example.py",
            "tests/e2e/test_sharded_example.py",
            "tests/foreign/test_example_counts.py",
        ),
        ("examples", "remora/cli", "remora/job_formats", "remora/spec", "remora/torch"),
    ),
    "nodes": Part(
        (
            "tests/integration/cluster/test_azure_evictions.py",
            "tests/integration/cluster/test_azure_machines.py",
            "tests/integration/cluster/test_hostile_head.py",
            "tests/integration/cluster/test_local_cluster.py",
            "tests/integration/cluster/test_member_of_a_server.py",
            "tests/integration/cluster/test_nodes_for_a_gang.py",
            "tests/integration/cluster/test_pod_joins.py",
            "tests/integration/cluster/test_up_whole.py",
        ),
        (
            *(
                "cluster/azure",
                "cluster/head",
                "cluster/kuberay",
                "cluster/local",
                "cluster/node",
                "cluster/ray",
            ),
            "tests/integration/cluster/buying_cluster.py",
        ),
    ),
    "ray-programs": Part(
        (
            "tests/integration/cluster/test_ray_libraries.py",
            "tests/integration/cluster/test_submitted_programs.py",
        ),
        (
            "cluster/local/head.py",
            "cluster/ray/job_api.py",
            "cluster/ray/programs.py",
            "cluster/ray/start.py",
            "cluster/scheduling/ray_programs.py",
            "requirements/ray-programs.txt",
            "service/loops/ray_programs.py",
            "service/loops/scale.py",
            "tests/integration/cluster/buying_cluster.py",
            "tests/integration/cluster/ray_environment.py",
        ),
    ),
    "head": Part(
        (
            "tests/e2e/test_ray_tls.py",
            "tests/integration/cluster/test_drivers_retired.py",
            "tests/integration/cluster/test_head_started_again.py",
            f"{TRAINERS}/test_driver_protocols.py",
        ),
        (
            "cluster/head",
            "cluster/local",
            "cluster/ray",
            "remora/ray_resources.py",
            f"{TRAINERS}/recorded_driver.py",
            "trainers/driver_actors.py",
            "trainers/driver_protocol.py",
            "trainers/launch.py",
            "trainers/spoken_protocols.py",
            "trainers/ready_drivers.py",
            "trainers/ray_train/coordinator.py",
            "trainers/ray_train/start_limit.py",
            "trainers/ray_train/starting.py",
        ),
    ),
    "service-of-a-machine": Part(
        (
            "tests/architecture/test_make_venv.py",
            "tests/e2e/test_drill.py",
            "tests/e2e/test_head_lost.py",
            "tests/e2e/test_home_removed.py",
            "tests/e2e/test_installed_wheel.py",
            "tests/e2e/test_owners.py",
            "tests/e2e/test_two_clusters.py",
        ),
        (
            "cluster/local",
            "deploy/make-venv",
            "examples/demo.py",
            "service/embedded",
            "service/loops",
            "service/up.py",
        ),
    ),
    "containers": Part(
        ("tests/e2e/test_container_image.py", "tests/e2e/test_containers.py"),
        (
            "cluster/head",
            "cluster/local",
            "deploy/containers",
            "deploy/wheel_contents.py",
            "requirements/lock.txt",
            "requirements/torch.txt",
            "service/controller",
            "service/installation",
            "tests/e2e/composed.py",
        ),
    ),
    "isolation": Part(
        ("tests/e2e/test_hostile_job.py", "tests/unit/trainers/test_child.py"),
        (
            *("trainers/isolation", "trainers/processes", "trainers/supervisor", "remora/isolation.py"),
            *("remora/machine_isolation.py", "remora/network_filter.py", "remora/network_rules.py"),
            *("examples/team", "tests/e2e/hostile_stage.py", "tests/rootless.py", "trainers/backends"),
        ),
    ),
    "commands": Part(
        (
            "tests/e2e/test_losses.py",
            "tests/e2e/test_outages.py",
            "tests/e2e/test_remora_shell.py",
            "tests/e2e/test_scripts.py",
            "tests/e2e/test_secrets.py",
            f"{TRAINERS}/test_launcher_commands.py",
            f"{TRAINERS}/test_outputs_folder.py",
        ),
        ("trainers/outputs", "trainers/processes", "trainers/supervisor", "tests/e2e/scripts.py", *LAB),
    ),
}


def digest_of(names: Iterable[str], root: Path = ROOT) -> str:
    """SHA-256 over the path and content of every file, and of every file below a folder; in no particular order."""
    lines = {
        f"{path.relative_to(root).as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for name in names
        for path in _files(name, root)
    }
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _files(name: str, root: Path) -> Iterator[Path]:
    found = list(root.glob(name))
    if not found:
        raise FileNotFoundError(name)
    for one in found:
        below = one.rglob("*") if one.is_dir() else (one,)
        yield from (path for path in below if path.is_file() and not _is_left_over(path.relative_to(root)))


def _is_left_over(path: Path) -> bool:
    """What Python and editors leave beside the sources."""
    return any(part == "__pycache__" or part.startswith(".") for part in path.parts)


def stale(digests: Mapping[str, str], ran: Mapping[str, Ran]) -> tuple[str, ...]:
    """Parts that have not passed on the files of these digests, by name."""
    return tuple(
        name
        for name, digest in sorted(digests.items())
        if name not in ran or ran[name].failed or ran[name].digest != digest
    )


def choose(names: Sequence[str], ran: Mapping[str, Ran], budget_s: int) -> Choice:
    """The cheapest of these parts first, as long as their seconds fit into the budget together.

    How long one takes that never ran is not known, and it is left.
    """
    run: list[str] = []
    spent = 0
    for name in sorted(filter(ran.__contains__, names), key=lambda name: (ran[name].seconds, name)):
        spent += ran[name].seconds
        if spent > budget_s:
            break
        run.append(name)
    return Choice(tuple(run), tuple(name for name in names if name not in run))
