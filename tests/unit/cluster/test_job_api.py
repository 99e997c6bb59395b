"""Ray's job API of a head: on loopback alone, when it is asked for, and where its packages are."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.head.commands import Part, flags, variables
from cluster.local.environment import is_of_machines
from cluster.local.head import start_head
from cluster.provider import ProviderError
from cluster.ray import job_api
from cluster.ray.joining import RAY_SETTINGS
from service.installation.releases import packages_beside
from service.settings import Settings


def of(part: Part, jobs_port: int = 0) -> list[str]:
    return flags(
        part,
        name=str(part),
        address="10.0.0.4",
        head="10.0.0.4:6379",
        temporary=Path("/tmp/ray"),
        client_port=9,
        jobs_port=jobs_port,
        agent_port=7,
    )


def test_a_head_serves_it_on_loopback_alone_and_only_where_a_port_is_set() -> None:
    served = of(Part.HEAD, 8265)
    assert {"--include-dashboard=true", "--dashboard-host=127.0.0.1", "--dashboard-port=8265"} <= {*served}
    assert "--dashboard-agent-listen-port=7" in served
    assert not [flag for flag in of(Part.HEAD) if "dashboard" in flag and flag != "--include-dashboard=false"]
    assert not [flag for flag in of(Part.DRIVERS, 8265) if "dashboard" in flag]
    # What Ray measures is not served to everyone beside it.
    assert RAY_SETTINGS["RAY_enable_metrics_collection"] == "0"
    more = {"DASHBOARD_METRIC_PORT": "-1"}
    assert more.items() <= variables(Part.HEAD, Path("gcs"), 8265).items()
    assert not more.keys() & variables(Part.HEAD, Path("gcs")).keys()


@pytest.mark.parametrize(("said", "port"), [("", 0), ("0", 0), (" 8265 ", 8265)])
def test_the_port_is_read(said: str, port: int) -> None:
    assert job_api.port_of({job_api.PORT_VARIABLE: said}) == port
    assert packages_beside({job_api.PORT_VARIABLE: said}) == (["ray[default]"] if port else [])


@pytest.mark.parametrize("said", ["65536", "-1", "8265x", "²"])
def test_what_is_no_port_is_refused(said: str) -> None:
    with pytest.raises(job_api.JobApiMissing, match="it is a port, 0 for none"):
        job_api.port_of({job_api.PORT_VARIABLE: said})


def test_the_heads_process_gets_the_setting_that_the_service_has() -> None:
    assert is_of_machines(job_api.PORT_VARIABLE)
    assert Settings(ray_jobs_port=8265).ray_jobs_port == 8265
    assert "REMORA_" + "ray_jobs_port".upper() == job_api.PORT_VARIABLE


@pytest.mark.parametrize(
    ("said", "needed", "is_free", "why"),
    [
        ("8265", "json", True, ""),
        ("8265", "no_such_package.of_ray", True, "cannot be imported"),
        ("8265", "json", False, "port 8265 of REMORA_RAY_JOBS_PORT is taken"),
        ("8265x", "json", True, "it is a port, 0 for none"),
        ("", "no_such_package.of_ray", False, ""),
    ],
)
def test_a_head_that_cannot_serve_it_starts_without_it(
    said: str, needed: str, is_free: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_api, "_NEEDED", (needed,))
    reports: list[str] = []
    port = job_api.usable_port({job_api.PORT_VARIABLE: said}, lambda _: is_free, reports.append)
    assert port == (8265 if said == "8265" and not why else 0)
    assert [why in one and one.endswith("starts without Ray's job API") for one in reports] == (
        [True] if why else []
    )


def test_a_head_without_the_packages_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_api, "_NEEDED", ("json", "no_such_package.of_ray"))
    with pytest.raises(ProviderError) as refused:
        start_head(tmp_path / "home", jobs_port=8265)
    assert str(refused.value).startswith("REMORA_RAY_JOBS_PORT needs the packages of Ray's job API")
    assert "of which no_such_package.of_ray cannot be imported: pip install 'ray[default]==" in str(
        refused.value
    )
