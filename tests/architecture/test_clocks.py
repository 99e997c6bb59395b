"""Who may ask for the time of day: a length of time is measured by clocks that an operator cannot set."""

from __future__ import annotations

import ast

from tests.architecture.repository import sources, tree_of

#: Modules that may, and what they use it for.
MAY = {
    "service/steady_clock.py": "the one place where the service reads the machine's clock",
    "service/storage_broker.py": "when tokens end, by the clock of a cloud, which compares it with its own",
    "service/local_run.py": "the ids of a job that nothing stores",
    "service/api/app.py": "how old files are, by the time that the machine wrote on them",
    "trainers/driver/account.py": "when something was reported, for people",
    "trainers/driver/attempt.py": "what is written down, and deadlines that clouds give, once each",
    "trainers/driver/driver.py": "a default; the attempt and its account use it",
    "trainers/driver/commits.py": "when a checkpoint was committed, for people",
    "trainers/driver/outputs.py": "when outputs were committed, for people",
    "trainers/supervisor/supervisor.py": "deadlines that clouds give, once each",
    "trainers/processes/command_shim.py": "how old files are, by the time that the machine wrote on them",
    "trainers/supervisor/outputs_collector.py": "how old files are, by the time that the machine wrote on them",
    "cluster/node/agent/agent.py": "when the cloud takes the machine, as it says it",
    "cluster/node/agent/metadata.py": "the same",
    "cluster/node/agent/head_client.py": "when an agent reported something, for the eyes of people",
    "cluster/azure/arm.py": "a default; the service gives its own",
    "cluster/azure/region_catalogue.py": "a default; the service gives its own",
    "cluster/azure/provider.py": "a default; the service gives its own",
    "cluster/kuberay/provider.py": "a default; the service gives its own",
    "cluster/kuberay/emulator/world.py": "the emulator writes times as Kubernetes does",
    "cluster/azure/emulator/clock.py": "the emulator plays a cloud, which has a time of day",
    "cluster/azure/emulator/imds.py": "the same",
    "cluster/head/retire.py": "the deadline of a drain, which Ray compares with its clock",
    "cluster/local/certificates.py": "until when certificates are good, which other machines compare with their clocks",
    "cluster/node/__main__.py": "the same",
    "cluster/existing/member.py": "when a machine was made, for people",
    "cluster/local/head.py": "when a machine was made, for people",
    "cluster/local/provider.py": "when a machine was made, and until when there is none, as clouds say it",
}
_NAMES = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}


def asks_for_the_time(tree: ast.Module) -> bool:
    """True when a module names one of the functions that say the time of day."""
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in _NAMES
        for node in ast.walk(tree)
    )


def test_the_time_of_day_is_asked_for_where_it_is_no_length_of_time() -> None:
    asking = {name for name in sources("service", "cluster", "trainers") if asks_for_the_time(tree_of(name))}
    assert asking - MAY.keys() == set(), (
        "use time.monotonic, or CLOCK of service.steady_clock for what is stored"
    )
    assert MAY.keys() - asking == set(), "these do not ask for it any more: take them off the list"


def test_who_asks_is_found() -> None:
    assert asks_for_the_time(ast.parse("import time\nclock = time.time\n"))
    assert not asks_for_the_time(ast.parse("import time\nclock = time.monotonic\n"))
