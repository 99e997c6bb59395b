"""Operators say where stores lie, and jobs name them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import Settings, read_settings
from service.storage_locations import UnknownStore, check_name, open_location, url_of

MODELS = "abfs://models/remora"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, stores={"models": MODELS, "disk": str(tmp_path / "disk")})


def test_stores_are_named_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REMORA_STORES", f'{{"models": "{MODELS}"}}')
    assert Settings(home=tmp_path).stores == {"models": MODELS}
    monkeypatch.setenv("REMORA_STORES", "")
    assert Settings(home=tmp_path).stores == {}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("models=abfs://models", "it is no JSON; write it as"),
        ('{"models": "http://host/x"}', "to which nothing can be written"),
        ('{"models": "checkpoints"}', "needs an absolute folder or a URL"),
        ('{"models": ""}', "needs an absolute folder or a URL"),
        ('{"Models": "/srv"}', "is no name of a store"),
        ('{"a/b": "/srv"}', "is no name of a store"),
        ('["models"]', "valid dictionary"),
    ],
)
def test_what_names_no_store_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, said: str, why: str
) -> None:
    monkeypatch.setenv("REMORA_STORES", said)
    assert read_settings({}) is None
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("the setting stores is wrong: ")
    assert why in line
    with pytest.raises(ValidationError):
        Settings()


def test_a_name_leads_to_its_store_and_no_name_to_the_services_own(settings: Settings) -> None:
    assert url_of(settings, None) == settings.storage
    assert url_of(settings, "models") == MODELS
    check_name(settings, None)
    check_name(settings, "models")


def test_a_job_of_before_goes_on_only_where_an_operator_has_named_its_place(settings: Settings) -> None:
    assert url_of(settings, f"{MODELS}/") == MODELS
    with pytest.raises(UnknownStore, match="expected the name of a store"):
        check_name(settings, MODELS)
    for url in (
        "abfs://models/other",
        "/srv/canary",
        "file:///srv/canary",
        "http://127.0.0.1:1/",
        f"{MODELS}/../x",
    ):
        with pytest.raises(UnknownStore, match=r"expected the name of a store.*there are: disk, models"):
            url_of(settings, url)
    with pytest.raises(UnknownStore, match="there is no store 'gone'"):
        url_of(settings, "gone")


def test_locations_are_opened_below_jobs_of_a_known_storage_only(settings: Settings, tmp_path: Path) -> None:
    for root in (settings.storage, str(tmp_path / "disk")):
        assert open_location(settings, f"{root}/jobs/job_1/outputs").local_root == Path(
            f"{root}/jobs/job_1/outputs"
        )
    for location in (
        "/srv/canary",
        f"{settings.storage}/bundles",
        f"{settings.storage}/jobs/../../canary",
        f"{settings.storage}/jobs",
        f"{settings.storage}-other/jobs/x",
        "http://127.0.0.1:1/jobs/x",
    ):
        with pytest.raises(UnknownStore, match="no storage that the service knows"):
            open_location(settings, location)
