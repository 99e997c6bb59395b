"""MPIJob, JAXJob and TFJob of Kubeflow become specifications, and a TrainJob is completed by its runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from remora.job_formats import Pipeline, Translation, the_jobs, translate
from remora.spec.spec import JobSpec

MPI = """\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: pi, namespace: hpc}
spec:
  slotsPerWorker: 2
  sshAuthMountPath: /run/ssh
  runPolicy: {cleanPodPolicy: Running, backoffLimit: 1}
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec:
          containers:
          - name: mpi-launcher
            image: pi
            command: [mpirun]
            args: [--allow-run-as-root, -map-by, slot, -x, LEVEL, -x, PATH, ./pi, --digits, "9"]
            env: [{name: LEVEL, value: "3"}]
            resources: {limits: {cpu: 1}}
    Worker:
      replicas: 3
      template:
        spec:
          containers:
          - name: mpi-worker
            image: pi
            command: [/usr/sbin/sshd, -De]
            resources: {limits: {cpu: 8, memory: 4Gi}}
"""


def translated(raw: Any) -> Translation:
    found = translate(yaml.safe_load(raw) if isinstance(raw, str) else raw, Path("/jobs"))
    assert isinstance(found, Translation)
    return found


def test_the_command_of_a_launcher_runs_on_every_place_of_its_workers() -> None:
    found = translated(MPI)
    assert found.problems == ()
    spec = JobSpec.from_mapping(found.spec)
    assert (spec.name, spec.project, spec.backend, spec.workers.max) == ("pi", "hpc", "mpi", 6)
    assert (spec.resources.cpus, spec.resources.memory) == (4, 2**31)
    assert spec.command[0] == "mpirun"
    assert spec.environment.variables["LEVEL"] == "3"
    assert spec.retry.limit == 1
    lost = [one.field for one in found.unhonoured]
    assert "spec.mpiReplicaSpecs.Launcher.template.spec.containers.image" in lost
    assert "-x PATH: each worker has its node's value" in [one.text for one in found.unhonoured]
    assert spec.command == ["mpirun", "--allow-run-as-root", "./pi", "--digits", "9"]


def test_mpirun_says_how_many_ranks_there_are() -> None:
    found = translated(MPI.replace("--allow-run-as-root,", '--allow-run-as-root, -np, "4",'))
    assert JobSpec.from_mapping(found.spec).workers.max == 4
    both = translated(MPI.replace("slotsPerWorker: 2", "slotsPerWorker: 2\n  runLauncherAsWorker: true"))
    assert both.spec["workers"] == 8


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "slotsPerWorker: 2",
            "mpiImplementation: Intel",
            "spec.mpiImplementation: Intel given, and ranks are",
        ),
        ("command: [mpirun]", "command: [python]", "it does not begin with mpirun"),
        ("command: [mpirun]", "command: [mpirun, --tune, x]", "mpirun's option"),
        ("-map-by, slot", "-map-by, node", "mpirun's option -map-by cannot be honoured"),
        ("Launcher:", "Starter:", "spec.mpiReplicaSpecs: there is no Launcher with a container"),
    ],
)
def test_what_open_mpi_cannot_start_is_refused(old: str, new: str, said: str) -> None:
    assert any(said in str(one) for one in translated(MPI.replace(old, new)).problems)


def replicated(kind: str, section: str, container: str, **roles: int) -> dict[str, Any]:
    pod = {"containers": [{"name": container, "command": ["python", "train.py"]}]}
    groups = {role: {"replicas": count, "template": {"spec": pod}} for role, count in roles.items()}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind,
        "metadata": {"name": "x"},
        "spec": {section: groups},
    }


def test_a_job_of_tensorflow_has_its_chief_and_workers() -> None:
    found = translated(replicated("TFJob", "tfReplicaSpecs", "tensorflow", Chief=1, Worker=3, PS=2))
    assert found.problems == ()
    assert (found.spec["backend"], found.spec["workers"]) == ("tensorflow", 4)
    assert "spec.tfReplicaSpecs.PS" in [one.field for one in found.unhonoured]


def test_a_job_of_jax_has_the_backend_for_it() -> None:
    found = translated(replicated("JAXJob", "jaxReplicaSpecs", "jax", Worker=2))
    assert (found.problems, found.spec["backend"], found.spec["workers"]) == ((), "jax", 2)


SERVICE = "{apiVersion: v1, kind: Service, metadata: {name: board}}"
RUNTIME = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: ours, labels: {trainer.kubeflow.org/framework: torch}}
spec:
  mlPolicy: {numNodes: 3, torch: {numProcPerNode: 2}}
  template:
    spec:
      replicatedJobs:
      - name: dataset-initializer
        template: {spec: {template: {spec: {containers: [{name: a, command: [fetch]}]}}}}
      - name: node
        template:
          spec:
            template:
              spec:
                containers:
                - {name: node, image: torch, command: [torchrun, train.py], env: [{name: A, value: "1"}],
                   resources: {limits: {cpu: 4}}}
"""
JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: fit}
spec:
  runtimeRef: {kind: TrainingRuntime, name: ours}
  trainer: {numNodes: 2, env: [{name: B, value: "2"}]}
"""


def test_a_runtime_in_the_same_file_says_what_its_job_does_not() -> None:
    job, remarks = the_jobs([*yaml.safe_load_all(f"{RUNTIME}---\n{JOB}")])
    found = translated(job)
    assert found.problems == ()
    spec = JobSpec.from_mapping(found.spec)
    assert (spec.command, spec.backend, spec.workers.max) == (["torchrun", "train.py"], "ddp", 4)
    assert (spec.environment.variables, spec.resources.cpus) == ({"A": "1", "B": "2"}, 2)
    assert [str(one.text) for one in remarks] == ["only what it says of the container that trains is taken"]


def test_another_runtime_says_nothing_of_the_jobs() -> None:
    job, remarks = the_jobs(
        [*yaml.safe_load_all(f"{RUNTIME.replace('name: ours', 'name: theirs')}---\n{JOB}")]
    )
    (problem,) = translated(job).problems
    assert str(problem).startswith("spec.trainer.command: missing; what the runtime would start")
    assert [str(one.text) for one in remarks] == ["only the job of the file is taken"]


def test_several_jobs_of_a_file_become_jobs_of_which_none_waits_for_another() -> None:
    second = JOB.replace("name: fit", "name: other")
    jobs, remarks = the_jobs([*yaml.safe_load_all(f"{JOB}---\n{RUNTIME}---\n{second}---\n{SERVICE}")])
    found = translate(jobs, Path("/jobs"))
    assert isinstance(found, Pipeline)
    assert (found.source, found.problems) == ("a file with 2 Kubeflow jobs", ())
    assert [step.name for step in found.steps] == ["fit", "other"]
    assert [JobSpec.from_mapping(step.spec).command for step in found.steps] == [["torchrun", "train.py"]] * 2
    assert [step.needs for step in found.steps] == [(), ()]
    assert [one.text for one in remarks] == [
        "only what it says of the container that trains is taken",
        "only the jobs of the file are taken",
    ]


def test_problems_of_several_jobs_are_named_after_their_jobs() -> None:
    jobs, _ = the_jobs([*yaml.safe_load_all(f"{JOB}---\n{JOB}")])
    found = translate(jobs, Path("/jobs"))
    fields = [problem.field for problem in found.problems]
    assert len(fields) == 2
    assert len(set(fields)) == 2
    assert all(field.endswith(".spec.trainer.command") for field in fields)


@pytest.mark.parametrize(
    ("runtime", "backend"), [("flux-distributed", "mpi"), ("torch-tune", "ddp"), ("tensorflow", "tensorflow")]
)
def test_the_name_of_a_runtime_says_the_backend(runtime: str, backend: str) -> None:
    raw = yaml.safe_load(JOB)
    raw["spec"] |= {"runtimeRef": {"name": runtime}, "trainer": {"command": ["a"]}}
    assert translated(raw).spec["backend"] == backend
