"""Where a storage in Azure lies and how the service reaches it; no sentence repeats a credential."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.azure_storage import azure_account, azure_place, filesystem_options
from service.settings import Settings, read_settings
from service.storage_locations import close_folders, open_storage
from trainers.storage import StorageError

FULL = "abfs://models@account.dfs.core.windows.net/remora/a"
SECRET = "c2VjcmV0"


def credentials(folder: Path, said: object, mode: int = 0o600) -> Path:
    path = folder / "storage.json"
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("url", "container", "account", "root"),
    [
        (FULL, "models", "account", "remora/a"),
        ("abfss://models@account.dfs.core.windows.net", "models", "account", ""),
        ("az://models/", "models", None, ""),
        ("abfs://models/remora/", "models", None, "remora"),
    ],
)
def test_a_url_names_a_container_and_perhaps_its_account(
    url: str, container: str, account: str | None, root: str
) -> None:
    place = azure_place(url)
    assert place is not None
    assert (place.container, place.account, place.root) == (container, account, root)


@pytest.mark.parametrize("url", ["/srv/storage", "file:///srv", "s3://bucket/x", "memory://x"])
def test_other_storages_are_none_of_azure(url: str) -> None:
    assert azure_place(url) is None


@pytest.mark.parametrize(
    "url", [f"{FULL}?sv=1&sig={SECRET}", f"abfs://user:{SECRET}@host/x", "abfs://a/x", "abfs://"]
)
def test_what_is_no_place_in_azure_is_said_without_what_it_was(url: str) -> None:
    with pytest.raises(StorageError, match="is written as abfs://CONTAINER@ACCOUNT") as refused:
        azure_place(url)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ({"account_key": SECRET}, {"account_name": "account", "account_key": SECRET}),
        ({"connection_string": f"AccountKey={SECRET}"}, {"connection_string": f"AccountKey={SECRET}"}),
    ],
)
def test_the_file_says_how_an_account_is_reached(
    tmp_path: Path, said: dict[str, str], options: dict[str, str]
) -> None:
    file = credentials(tmp_path, {"account": said})
    for url in (FULL, "abfs://models/remora"):
        place = azure_place(url)
        assert place is not None
        account = azure_account(place, file)
        assert filesystem_options(account) == options
        assert SECRET not in repr(account)


def test_an_account_that_the_file_does_not_name_is_reached_as_the_identity_of_the_machine(
    tmp_path: Path,
) -> None:
    place = azure_place(FULL)
    assert place is not None
    for file in (None, credentials(tmp_path, {"other": {"account_key": SECRET}})):
        account = azure_account(place, file)
        assert account.endpoint == "https://account.blob.core.windows.net"
        options = filesystem_options(account)
        assert type(options["credential"]).__name__ == "ManagedIdentityCredential"
        assert options["account_name"] == "account"
    given = azure_account(place, credentials(tmp_path, {"account": {"client_id": "22"}}))
    assert given.client_id == "22"


@pytest.mark.parametrize(
    ("said", "mode", "why"),
    [
        ({"account": {"account_key": SECRET}}, 0o640, "readable by the service's user alone"),
        (f'{{"account": {{"account_key": "{SECRET}"}}', 0o600, "is no JSON of the form"),
        ({"account": {"account_key": SECRET, "client_id": "x"}}, 0o600, "is no JSON of the form"),
        ({"account": {"key": SECRET}}, 0o600, "is no JSON of the form"),
        ({"account": {"account_key": [SECRET]}}, 0o600, "is no JSON of the form"),
        ([SECRET], 0o600, "is no JSON of the form"),
        ("[" * 100_000, 0o600, "is no JSON of the form"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_its_content(
    tmp_path: Path, said: object, mode: int, why: str
) -> None:
    settings = Settings(home=tmp_path, storage_credentials=credentials(tmp_path, said, mode))
    with pytest.raises(StorageError, match=why) as refused:
        open_storage(settings, FULL)
    assert SECRET not in str(refused.value)


def test_a_link_is_no_file_of_credentials(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(credentials(tmp_path, {"account": {"account_key": SECRET}}))
    with pytest.raises(StorageError, match="cannot be read"):
        open_storage(Settings(home=tmp_path, storage_credentials=tmp_path / "link"), FULL)


def test_a_url_without_an_account_needs_a_file_with_one(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="'models' names no account"):
        open_storage(Settings(home=tmp_path), "abfs://models/remora")


@pytest.mark.parametrize("url", [f"{FULL}?sig={SECRET}", f"s3://key:{SECRET}@bucket/x"])
@pytest.mark.parametrize("setting", ["storage_url", "stores"])
def test_settings_take_no_url_with_a_credential(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, url: str, setting: str
) -> None:
    given = url if setting == "storage_url" else {"models": url}
    assert read_settings({"home": tmp_path, setting: given}) is None
    (line,) = [record.message for record in caplog.records]
    assert "has a credential in it; write it into the file of REMORA_STORAGE_CREDENTIALS" in line
    assert SECRET not in line


def test_folders_of_jobs_are_closed_to_others_and_what_else_is_in_a_store_is_not(tmp_path: Path) -> None:
    storage, store = tmp_path / "storage", tmp_path / "store"
    for folder in (storage / "jobs/job_1", storage / "bundles", store / "jobs", store / "images"):
        folder.mkdir(parents=True)
    close_folders(Settings(home=tmp_path, storage_url=str(storage), stores={"a": str(store), "b": FULL}))
    closed = [storage, storage / "jobs", storage / "bundles", store / "jobs"]
    assert all(not one.stat().st_mode & 0o077 for one in closed)
    assert all(one.stat().st_mode & 0o005 for one in (store, store / "images"))
