"""A job's processes reach their own names in Azurite: what they are granted opens nothing else, and ends by itself."""

from __future__ import annotations

import io
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs

import jwt
import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobClient, BlobServiceClient, UserDelegationKey
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from fsspec.implementations.memory import MemoryFileSystem

from service.azure_storage import AzureAccount
from service.storage_broker import StorageBroker
from tests.azurite import CONTAINER, KEY, Azurite, azurite
from trainers.granted_blobs import GrantedBlobs, Grants
from trainers.job_storage import granted_storage
from trainers.storage import Storage, StorageError
from trainers.storage_grants import (
    MOST_NAMES,
    RENEWED_S,
    TOKEN_S,
    Action,
    Scope,
    StorageAnswer,
    StorageGrant,
    StorageRequest,
)

OWN = Scope(reads=("bundles/code.zip",), writes=("jobs/job_1",))


@pytest.fixture
def url(azurite_server: Azurite) -> str:
    return azurite_server.url()


@pytest.fixture
def broker(azurite_server: Azurite, tmp_path: Path) -> StorageBroker:
    return StorageBroker(azurite_server.credentials(tmp_path))


@pytest.fixture
def everything(broker: StorageBroker, url: str) -> Storage:
    """The whole storage, with files of two jobs."""
    scope = Scope(writes=("",))
    storage = granted_storage(url, scope, lambda asked: broker.answer({url: scope}, asked))
    for name in (
        "jobs/job_1/own",
        "jobs/job_2/other",
        "jobs/job_12/near",
        "bundles/code.zip",
        "bundles/other.zip",
    ):
        storage.write_bytes(name, name.encode())
    return storage


def granted(broker: StorageBroker, url: str, name: str, action: Action) -> StorageGrant:
    answer = broker.answer({url: OWN}, StorageRequest(url=url, action=action, names=(name,)))
    assert answer.grant is not None, answer.refusal
    return answer.grant


def blob(grant: StorageGrant, name: str, token: str | None) -> BlobClient:
    return BlobClient(grant.endpoint, grant.container, f"{grant.root}/{name}", credential=token)


@pytest.mark.usefixtures("everything")
def test_a_token_opens_the_file_that_it_is_for_and_nothing_else(broker: StorageBroker, url: str) -> None:
    grant = granted(broker, url, "jobs/job_1/own", "read")
    token = grant.token("jobs/job_1/own")
    assert blob(grant, "jobs/job_1/own", token).download_blob().readall() == b"jobs/job_1/own"
    attacks: list[Callable[[], object]] = [
        lambda: blob(grant, "jobs/job_2/other", token).download_blob(),
        lambda: blob(grant, "jobs/job_12/near", token).download_blob(),
        lambda: blob(grant, "jobs/job_1/own", token).upload_blob(b"x", overwrite=True),
        lambda: blob(grant, "jobs/job_1/own", token).delete_blob(),
        lambda: blob(grant, "jobs/job_1/own", None).download_blob(),
        lambda: list(
            BlobServiceClient(grant.endpoint, credential=token).get_container_client(CONTAINER).list_blobs()
        ),
    ]
    for attack in attacks:
        with pytest.raises(HttpResponseError) as refused:
            attack()
        assert refused.value.status_code in (401, 403, 404, 409), refused.value


@pytest.mark.parametrize("action", ["read", "write", "list"])
@pytest.mark.parametrize(
    "name",
    [
        "jobs/job_2/other",
        "jobs/job_12/near",
        "jobs",
        "jobs/job_1/../job_2/other",
        "/jobs/job_1/own",
        "jobs//job_1",
        "bundles/other.zip",
        "",
        "..",
    ],
)
def test_names_of_others_are_not_granted(broker: StorageBroker, url: str, name: str, action: Action) -> None:
    answer = broker.answer({url: OWN}, StorageRequest(url=url, action=action, names=(name,)))
    assert answer.refusal
    assert (answer.grant, answer.entries) == (None, None)


def test_what_may_be_read_is_not_written_and_other_storages_are_not_the_jobs(
    broker: StorageBroker, url: str, azurite_server: Azurite
) -> None:
    def refusal(**asked: object) -> str | None:
        request = StorageRequest(**({"url": url, "action": "read", "names": ("jobs/job_1/a",)} | asked))  # type: ignore[arg-type]
        return broker.answer({url: OWN}, request).refusal

    assert refusal() is None
    assert "may not write" in str(refusal(action="write", names=("bundles/code.zip",)))
    assert "nothing in that storage" in str(refusal(url=azurite_server.url()))
    assert "is no action" in str(refusal(action="delete"))
    assert "1 to 1000 names" in str(refusal(names=()))
    assert "1 to 1000 names" in str(refusal(names=("jobs/job_1/a",) * (MOST_NAMES + 1)))
    assert "1 to 1 names" in str(refusal(action="list", names=("jobs/job_1", "jobs/job_1")))


def test_a_job_sees_its_own_files_alone(broker: StorageBroker, url: str, everything: Storage) -> None:
    own = granted_storage(url, OWN, lambda asked: broker.answer({url: OWN}, asked))
    assert own.sizes("jobs/job_1") == {"own": 14}
    assert own.read_bytes("bundles/code.zip") == b"bundles/code.zip"
    for name in ("jobs/job_2/other", "jobs/job_12/near", "bundles/other.zip"):
        for attack in (own.read_bytes, own.names, own.delete, own.exists):
            with pytest.raises(StorageError, match="may not"):
                attack(name)
        assert everything.exists(name)
    with pytest.raises(StorageError, match="may not write"):
        own.delete("bundles/code.zip")
    with pytest.raises(StorageError, match="may not"):
        own.entries("")


def test_a_token_ends_within_an_hour_and_is_asked_for_again_long_before(
    broker: StorageBroker, url: str
) -> None:
    asked, now = list[StorageRequest](), 0.0

    def ask(request: StorageRequest) -> StorageAnswer:
        asked.append(request)
        return broker.answer({url: OWN}, request)

    grants = Grants(url, ask, lambda: now)
    token = parse_qs(str(grants.grant("jobs/job_1/a", "read").token("jobs/job_1/a")))
    ends = datetime.strptime(token["se"][0], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert timedelta(minutes=59) < ends - datetime.now(UTC) <= timedelta(hours=1)
    assert "st" not in token, "it is valid at once, also by a clock that is slow"
    assert RENEWED_S <= TOKEN_S / 2

    now = RENEWED_S - 1
    grants.grant("jobs/job_1/a", "read")
    assert len(asked) == 1
    grants.grant("jobs/job_1/a", "write")
    now = RENEWED_S
    grants.grant("jobs/job_1/a", "read")
    assert [one.action for one in asked] == ["read", "write", "read"]


def test_names_are_asked_for_together(broker: StorageBroker, url: str) -> None:
    asked = list[int]()

    def ask(request: StorageRequest) -> StorageAnswer:
        asked.append(len(request.names))
        return broker.answer({url: OWN}, request)

    found = Grants(url, ask).grants((f"jobs/job_1/{number}" for number in range(MOST_NAMES + 5)), "read")
    assert len(found) == MOST_NAMES + 5
    assert asked == [MOST_NAMES, 5]


def test_an_account_with_folders_grants_the_jobs_folder(
    azurite_server: Azurite, url: str, tmp_path: Path
) -> None:
    """Azurite has no folders, so what Azure makes of such a token is not tested; the token itself is."""

    class WithFolders(BlobServiceClient):
        def get_account_information(self, **_: object) -> dict[str, str]:
            return {"is_hns_enabled": True}  # type: ignore[dict-item]

    def connect(account: AzureAccount) -> BlobServiceClient:
        return WithFolders.from_connection_string(account.connection_string)

    broker = StorageBroker(azurite_server.credentials(tmp_path), connect=connect)
    grant = granted(broker, url, "jobs/job_1/a/b", "write")
    (token,) = grant.tokens.values()
    said = parse_qs(token)
    assert (said["sr"], said["sdd"], said["sp"]) == (["d"], ["3"], ["rcwd"])
    assert grant.token("jobs/job_1/other/file") == token
    assert grant.token("jobs/job_12/near") is None
    assert parse_qs(str(granted(broker, url, "bundles/code.zip", "read").token("bundles/code.zip")))[
        "sr"
    ] == ["b"]


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Azurite]:
    with azurite(tmp_path) as server:
        yield server


def test_no_error_shows_a_token_or_a_key(
    stopped: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.granted_blobs._RETRIES", 0)

    def connect(account: AzureAccount) -> BlobServiceClient:
        return BlobServiceClient.from_connection_string(account.connection_string, retry_total=0)

    url, broker = stopped.url(), StorageBroker(stopped.credentials(tmp_path), connect=connect)
    own = granted_storage(url, OWN, lambda asked: broker.answer({url: OWN}, asked))
    own.write_bytes("jobs/job_1/a", b"x")
    grant = granted(broker, url, "jobs/job_1/a", "write")
    stopped.stop()
    with pytest.raises(StorageError, match="cannot reach the storage") as unlisted:
        own.names("jobs/job_1")
    with pytest.raises(StorageError, match="refused") as unwritten:
        own.write_bytes("jobs/job_1/a", b"y")
    token = str(grant.token("jobs/job_1/a"))
    for error in (unlisted, unwritten):
        shown = "".join(traceback.format_exception(error.value))
        assert KEY not in shown
        assert "sig=" not in shown
    assert parse_qs(token)["sig"][0] not in f"{grant} {grant!r}"


def test_an_error_that_quotes_an_address_loses_the_token_in_it() -> None:
    token = "se=2026-11-26T03%3A00%3A00Z&sp=r&sv=2026-10-06&sr=b&sig=c2VjcmV0%2Bx%3D"

    class Quoting(MemoryFileSystem):  # type: ignore[misc]
        def exists(self, path: str, **_: object) -> bool:
            raise OSError(f"Max retries exceeded with url: /account/container{path}?{token} (refused)")

    with pytest.raises(StorageError, match=r"sr=b&sig=\*\*\* \(refused") as failed:
        Storage("abfs://container/x", filesystem=Quoting()).exists("a")
    assert "c2VjcmV0" not in "".join(traceback.format_exception(failed.value))


class Identity:
    """A managed identity as Azurite takes it: it reads what a token says, and does not know who signed it."""

    def get_token(self, *scopes: str, **_: object) -> AccessToken:
        now = int(datetime.now(UTC).timestamp())
        said = {
            "iss": "https://sts.windows.net/tenant/",
            "aud": "https://storage.azure.com",
            "iat": now - 60,
            "nbf": now - 60,
            "exp": now + 3600,
            "oid": "11111111-1111-1111-1111-111111111111",
            "tid": "22222222-2222-2222-2222-222222222222",
        }
        return AccessToken(jwt.encode(said, "x" * 32), now + 3600)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of the loopback address, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(
            name, name, key.public_key(), 1, now - timedelta(days=1), now + timedelta(days=1)
        )
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "certificate.pem"
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + signed.public_bytes(Encoding.PEM)
    )
    return path


def test_an_identity_lists_and_signs_with_a_key_that_the_account_gives_it(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    options = ("--oauth", "basic", "--cert", str(certificate), "--key", str(certificate))
    keys = list[object]()
    now = 0.0

    class Counting(BlobServiceClient):
        def get_user_delegation_key(self, *times: datetime, **_: object) -> UserDelegationKey:  # type: ignore[override]
            keys.append(times)
            return super().get_user_delegation_key(*times)

    with azurite(tmp_path, *options, scheme="https") as server:
        client = Counting(server.endpoint, credential=Identity())
        client.create_container(CONTAINER)
        url = server.url()
        client.get_blob_client(CONTAINER, f"{url.rpartition('/')[2]}/jobs/job_1/a").upload_blob(b"x")
        broker = StorageBroker(server.credentials(tmp_path), lambda: now, connect=lambda _: client)
        own = granted_storage(url, OWN, lambda asked: broker.answer({url: OWN}, asked))
        assert own.names("jobs/job_1") == ["a"]
        # This Azurite does not know the newest form of what is signed with such a key, so nothing is read with it.
        token = parse_qs(str(granted(broker, url, "jobs/job_1/a", "read").token("jobs/job_1/a")))
        assert (token["sr"], token["sp"], token["spr"]) == (["b"], ["r"], ["https"])
        assert {"skoid", "sktid", "ske"} <= token.keys()
        assert token["se"] < token["ske"], "the key outlasts what it signs"
        assert len(keys) == 1, "one key for all of an hour"
        now = 3601.0
        granted(broker, url, "jobs/job_1/a", "read")
        assert len(keys) == 2


def test_an_upload_goes_on_when_its_first_token_has_ended(
    broker: StorageBroker, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tokens of two seconds, and a file whose second part comes when the token of the first one has ended."""
    monkeypatch.setattr("service.storage_broker.TOKEN_S", 2.0)
    monkeypatch.setattr("trainers.granted_blobs.RENEWED_S", 1.0)
    monkeypatch.setattr("trainers.granted_blobs._BLOCK_BYTES", 1000)
    tokens: list[str] = []

    def ask(request: StorageRequest) -> StorageAnswer:
        answer = broker.answer({url: OWN}, request)
        if answer.grant is not None:
            tokens.append(str(answer.grant.token("jobs/job_1/large")))
        return answer

    content = bytes(range(250)) * 14

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() == 2000:
                # Its end is a whole second, by the clock of the account.
                ends = datetime.strptime(parse_qs(tokens[0])["se"][0], "%Y-%m-%dT%H:%M:%SZ").replace(
                    tzinfo=UTC
                )
                until_moment(ends + timedelta(seconds=1.1))
            return super().read(size)

    grants = Grants(url, ask)
    grants.grant("jobs/job_1/large", "write")
    blobs = GrantedBlobs(grants)
    blobs._upload("/jobs/job_1/large", Slow(content), may_replace=True)
    assert len(set(tokens)) >= 2
    assert blobs.cat_file("/jobs/job_1/large") == content
    with pytest.raises(FileExistsError):
        blobs.pipe_file("/jobs/job_1/large", b"x" * 2500, mode="create")
    blobs.pipe_file("/jobs/job_1/new", b"y" * 2500, mode="create")
    assert blobs.cat_file("/jobs/job_1/new") == b"y" * 2500


def until_moment(moment: datetime) -> None:
    """Wait for a moment of the clock: a token ends by nothing else."""
    threading.Event().wait(max(0.0, (moment - datetime.now(UTC)).total_seconds()))


def test_an_account_that_does_not_answer_holds_up_no_other(
    azurite_server: Azurite, url: str, tmp_path: Path
) -> None:
    file = azurite_server.credentials(tmp_path)
    may_answer, is_asked = threading.Event(), threading.Event()

    def connect(account: AzureAccount) -> BlobServiceClient:
        if not is_asked.is_set():
            is_asked.set()
            assert may_answer.wait(30.0)
        return BlobServiceClient.from_connection_string(account.connection_string)

    broker = StorageBroker(file, connect=connect)
    slow, other = f"{url}-slow", url
    request = StorageRequest(url=slow, action="read", names=("bundles/code.zip",))
    asking = threading.Thread(target=lambda: broker.answer({slow: OWN}, request), daemon=True)
    asking.start()
    assert is_asked.wait(30.0)
    assert granted(broker, other, "bundles/code.zip", "read").tokens
    may_answer.set()
    asking.join(30.0)
    assert not asking.is_alive()
