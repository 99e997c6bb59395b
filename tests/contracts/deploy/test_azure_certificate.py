"""The certificate of a team's API, which deploy/azure/up makes, renews, or takes from a file."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from cluster.azure.emulator.deployments.kinds import ASSIGNMENTS, VAULTS
from cluster.azure.emulator.faults import EmulatorFault, FaultPoint
from cluster.ray.certificates import issue, make_authority
from deploy.azure.client.certificate import MOST_BYTES, CertificateOfApi, is_due, read_certificate
from deploy.azure.client.resource_manager import Refused, ResourceManager
from tests.contracts.deploy.subscription import Subscription

TLS, AUTHORITY = "remora-remora-tls", "remora-remora-api-authority"
DAY_S = 86_400.0


def host_of(azure: Subscription) -> str:
    return str(azure.outputs()["serviceName"]["value"])


def pem_of(azure: Subscription, name: str = TLS) -> str:
    value = azure.resources.secret(name)
    assert value is not None
    return value


def shakes_hands(client: ssl.SSLContext, pem: str, host: str, folder: Path) -> bool:
    """Whether a client accepts a server that has this file, in memory."""
    file = folder / "tls.pem"
    file.write_text(pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file, file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return bool(sides[0].version())


def of_client(monkeypatch: pytest.MonkeyPatch, trusted: Path | None) -> ssl.SSLContext:
    """The context of a client of Remora, as strict as that of later versions of Python."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if trusted is not None:
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    context = httpx2.create_ssl_context()
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


# --- made here


def test_a_team_has_a_certificate_that_clients_accept_who_trust_its_authority(
    azure: Subscription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert azure.up("team") == 0
    host = host_of(azure)
    (line,) = [one for one in azure.said if one.startswith("next: ")]
    assert line == f"next: SSL_CERT_FILE={azure.authority} remora login --server https://{host}:7265"
    client = of_client(monkeypatch, azure.authority)
    assert shakes_hands(client, pem_of(azure), host, tmp_path)
    assert not shakes_hands(client, pem_of(azure), "other.example.com", tmp_path)
    assert not shakes_hands(of_client(monkeypatch, None), pem_of(azure), host, tmp_path)
    assert "PRIVATE" not in azure.authority.read_text()


def test_a_second_call_keeps_it_and_writes_the_file_for_clients_again(azure: Subscription) -> None:
    azure.up("team")
    before, file = pem_of(azure), azure.authority.read_text()
    azure.authority.unlink()
    assert azure.up("team") == 0
    assert (pem_of(azure), azure.authority.read_text()) == (before, file)


def test_a_trial_has_none(azure: Subscription) -> None:
    azure.up()
    assert azure.resources.secret(TLS) is None
    assert not azure.authority.exists()


def test_its_authority_is_not_that_of_ray_which_nodes_read(azure: Subscription) -> None:
    azure.up("team")
    assert pem_of(azure, AUTHORITY) != pem_of(azure, "remora-remora-ray-authority")
    assert not [one["id"] for one in azure.resources.of_type(ASSIGNMENTS) if "api-authority" in one["id"]]


def test_no_key_is_printed_or_shown(azure: Subscription, capsys: pytest.CaptureFixture[str]) -> None:
    azure.up("team")
    printed = capsys.readouterr()
    shown = "\n".join([*azure.said, printed.out, printed.err])
    assert "PRIVATE KEY" not in shown
    assert "BEGIN" not in str(azure.shot()["hidden"].keys())


@pytest.fixture
def of_api(azure: Subscription) -> CertificateOfApi:
    """That of a team which is up."""
    azure.up("team")
    (vault,) = azure.resources.of_type(VAULTS)
    manager = ResourceManager(azure.credential(), azure.common()[1], azure.server.url)
    azure.said.clear()
    return CertificateOfApi(
        manager, "remora", vault["id"], f"{azure.server.url}/", 0.01, lambda line: azure.said.append(line)
    )


def test_it_is_renewed_before_it_ends_and_clients_need_no_other_file(
    azure: Subscription, of_api: CertificateOfApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, file, host, now = pem_of(azure), azure.authority.read_text(), host_of(azure), time.time()
    assert of_api.make(host, now + 330 * DAY_S, azure.authority)
    assert pem_of(azure) == first
    assert of_api.make(host, now + 340 * DAY_S, azure.authority)
    assert azure.said[-1].startswith("a certificate of the API is made; it ends on 20")
    assert pem_of(azure) != first
    assert azure.authority.read_text() == file
    # By the name that it has since.
    second = pem_of(azure)
    assert of_api.make("another.example.com", now + 340 * DAY_S, azure.authority)
    assert pem_of(azure) != second


def test_an_authority_that_ends_is_replaced_with_what_it_has_signed(
    azure: Subscription, of_api: CertificateOfApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, host, later = azure.authority.read_text(), host_of(azure), time.time() + 3300 * DAY_S
    assert of_api.make(host, later, azure.authority)
    assert azure.authority.read_text() != file
    assert azure.authority.read_text() in pem_of(azure)


def test_cut_off_after_the_authority_the_next_call_signs_with_it(azure: Subscription) -> None:
    put: Callable[..., Any] = ResourceManager.put
    with pytest.MonkeyPatch.context() as patched:

        def cut(self: ResourceManager, path: str, *given: Any) -> Any:
            answer = put(self, path, *given)
            if path.endswith(AUTHORITY):
                raise Refused("the test ends it here")
            return answer

        patched.setattr(ResourceManager, "put", cut)
        assert azure.up("team") == 1
    assert azure.resources.secret(TLS) is None
    authority = pem_of(azure, AUTHORITY)
    # The role by which the operator reads it is new.
    azure.faults.all.append(EmulatorFault(at=FaultPoint.SECRET, status=403))
    assert azure.up("team") == 0
    assert pem_of(azure, AUTHORITY) == authority
    assert azure.authority.read_text() in pem_of(azure)


def test_a_certificate_of_another_authority_is_replaced() -> None:
    tags = {"remora:made": "up", "remora:name": "h", "remora:authority": "a"}
    tags["remora:until"] = "2027-01-01T00:00:00+00:00"
    assert not is_due(tags, "h", "a", 0.0)
    assert is_due(tags, "h", "b", 0.0)
    assert is_due({**tags, "remora:until": "soon"}, "h", "a", 0.0)
    # What was put there by hand is kept.
    assert not is_due({}, "h", "a", 0.0)


def test_a_file_that_cannot_be_written_is_said(
    azure: Subscription, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.authority.mkdir()
    assert azure.up("team") == 1
    assert "name another file with --authority" in capsys.readouterr().err


# --- given


def given(folder: Path, host: str, days: float = 0.0) -> Path:
    """A file as a public authority gives it: the key first, then the certificate, then its chain."""
    now = time.time() + days * DAY_S
    authority = make_authority(now)
    own = issue(authority, "team", [host], now)
    file = folder / "given.pem"
    file.write_bytes(own.key + own.certificate + authority.certificate)
    return file


def test_one_that_is_given_is_stored_and_kept(
    azure: Subscription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    azure.up("team")
    host = host_of(azure)
    file = given(tmp_path, host)
    assert azure.up("team", "--certificate", str(file)) == 0
    stored = pem_of(azure)
    assert file.read_text().partition("-----BEGIN CERTIFICATE")[2] in stored
    assert stored.startswith("-----BEGIN CERTIFICATE"), "the service reads its own first"
    assert f"next: remora login --server https://{host}:7265" in azure.said
    assert any(one.startswith("the certificate of the API is stored; it ends on 20") for one in azure.said)
    # Again, and without it, nothing changes.
    assert azure.up("team", "--certificate", str(file)) == 0
    assert not [one for one in azure.said if "is stored" in one]
    assert azure.up("team") == 0
    assert pem_of(azure) == stored
    assert f"next: remora login --server https://{host}:7265" in azure.said


def test_one_that_was_given_and_ends_is_named_and_kept(
    azure: Subscription, of_api: CertificateOfApi, tmp_path: Path
) -> None:
    host = host_of(azure)
    azure.up("team", "--certificate", str(given(tmp_path, host)))
    azure.said.clear()
    stored = pem_of(azure)
    assert not of_api.make(host, time.time() + 350 * DAY_S, azure.authority)
    assert azure.said[-1].endswith("give another with --certificate")
    assert pem_of(azure) == stored


def test_one_of_another_host_is_refused(
    azure: Subscription, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.up("team")
    before = pem_of(azure)
    assert azure.up("team", "--certificate", str(given(tmp_path, "other.example.com"))) == 2
    assert (
        f"other.example.com, localhost, and the API is reached as {host_of(azure)}" in capsys.readouterr().err
    )
    assert pem_of(azure) == before
    assert (
        azure.up("team", "--certificate", str(given(tmp_path, f"*.{host_of(azure).partition('.')[2]}"))) == 0
    )


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("none", "cannot be read"),
        ("text", "holds no certificate in PEM"),
        ("binary", "holds no certificate in PEM"),
        ("damaged", "holds no certificate in PEM"),
        ("without a key", "holds no private key in PEM"),
        ("encrypted", "is encrypted"),
        ("of another", "belongs to none of its certificates"),
        ("of another kind", "belongs to none of its certificates"),
        ("large", f"larger than the {MOST_BYTES} bytes"),
        ("ended", "ended on 20"),
        ("early", "is not good before 20"),
    ],
)
def test_a_file_that_is_none_is_said_before_anything_is_asked(
    azure: Subscription, tmp_path: Path, kind: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "given.pem"
    days = {"ended": -500.0, "early": 9.0}.get(kind, 0.0)
    text = given(tmp_path, "h", days).read_text()
    key, _, certificate = text.partition("-----BEGIN CERTIFICATE")
    certificate = f"-----BEGIN CERTIFICATE{certificate}"
    if kind == "none":
        file.unlink()
    else:
        other = rsa.generate_private_key(65537, 2048) if kind == "of another kind" else None
        made = {
            "text": b"certificate",
            "binary": bytes(range(256)),
            "damaged": certificate.replace("MII", "II").encode(),
            "without a key": certificate.encode(),
            "encrypted": certificate.encode() + encrypted(key),
            "of another": certificate.encode() + make_authority(0.0).key,
            "of another kind": certificate.encode() + (b"" if other is None else pem(other)),
            "large": text.encode() * 20,
        }
        file.write_bytes(made.get(kind, text.encode()))
    assert azure.up("team", "--certificate", str(file)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert "PRIVATE" not in line
    assert azure.leftovers() == []


def encrypted(key: str) -> bytes:
    private = serialization.load_pem_private_key(key.encode(), password=None)
    how = serialization.BestAvailableEncryption(b"word")
    return private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


def pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def test_one_for_an_api_that_no_other_machine_reaches_is_refused(
    azure: Subscription, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert azure.up("trial", "--certificate", str(given(tmp_path, "h"))) == 2
    assert "--set publicApi=true" in capsys.readouterr().err


def test_what_is_shown_of_one_is_nothing_of_its_key(azure: Subscription, tmp_path: Path) -> None:
    found = read_certificate(given(tmp_path, "h"), time.time())
    assert "PRIVATE" not in repr(found)
    assert "h" in repr(found)
