"""An authority per cluster, a certificate per machine: what they say, for how long, and who may read their files."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from cluster.local.addresses import addresses_towards, head_address
from cluster.local.certificates import (
    BY_RESTART,
    begin,
    ends_soon,
    machine_variables,
    main,
    own_environment,
    uses_tls,
    write_files,
)
from cluster.local.environment import bare_environment, process_environment
from cluster.local.folders import ClusterFolders
from cluster.provider import ProviderError
from cluster.ray.certificates import (
    AUTHORITY_DAYS,
    AUTHORITY_FILE,
    MACHINE_DAYS,
    OWN_FILE,
    TLS_VARIABLES,
    CertificateUnusable,
    Credentials,
    expires_at,
    issue,
    make_authority,
    names_of,
    parse_authority,
)

NOW = time.time()
DAY_S = 86_400.0


def at(now: float) -> Callable[[], float]:
    return lambda: now


@pytest.fixture
def folders(tmp_path: Path) -> ClusterFolders:
    made = ClusterFolders((tmp_path / "home").resolve())
    made.home.mkdir(mode=0o700)
    return made


@pytest.fixture
def encrypted(folders: ClusterFolders) -> ClusterFolders:
    begin(folders, encrypted=True, clock=at(NOW))
    return folders


def shake(folder: Path, server: Credentials, client: Credentials | None, trusted: bytes, name: str) -> None:
    """One handshake in memory, both sides verified as in Ray's RPCs.  Raises ssl.SSLError when one refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = _context(ssl.PROTOCOL_TLS_CLIENT, folder / "client.pem", client, trusted)
    answering = _context(ssl.PROTOCOL_TLS_SERVER, folder / "server.pem", server, trusted)
    ends = (
        asking.wrap_bio(to_client, to_server, server_hostname=name),
        answering.wrap_bio(to_server, to_client, server_side=True),
    )
    for end in ends * 3:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    ends[0].write(b"x")
    assert ends[1].read() == b"x"


def _context(protocol: int, file: Path, own: Credentials | None, trusted: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=trusted.decode())
    if own is not None:
        file.write_bytes(own.joined())
        context.load_cert_chain(file)
    return context


def test_machines_of_one_cluster_know_each_other_by_their_addresses(tmp_path: Path) -> None:
    authority = make_authority(NOW)
    node, service = issue(authority, "node_a", ["10.1.0.5"], NOW), issue(authority, "x", ["10.1.0.4"], NOW)
    shake(tmp_path, node, service, authority.certificate, "10.1.0.5")
    shake(tmp_path, node, service, authority.certificate, "127.0.0.1")
    with pytest.raises(ssl.SSLError, match="IP address mismatch"):
        shake(tmp_path, node, service, authority.certificate, "10.1.0.6")


def test_who_has_no_certificate_or_one_of_another_cluster_is_refused(tmp_path: Path) -> None:
    authority, other = make_authority(NOW), make_authority(NOW)
    node = issue(authority, "node_a", ["10.1.0.5"], NOW)
    with pytest.raises(ssl.SSLError, match=r"PEER_DID_NOT_RETURN_A_CERTIFICATE|did not return a certificate"):
        shake(tmp_path, node, None, authority.certificate, "10.1.0.5")
    with pytest.raises(ssl.SSLError):
        shake(tmp_path, node, issue(other, "x", ["10.1.0.4"], NOW), authority.certificate, "10.1.0.5")


def test_a_machine_cannot_make_certificates(tmp_path: Path) -> None:
    node = issue(make_authority(NOW), "node_a", ["10.1.0.5"], NOW)
    with pytest.raises(CertificateUnusable, match="no authority"):
        issue(node, "node_b", ["10.1.0.6"], NOW)


def test_a_certificate_is_good_before_now_and_for_its_days_and_no_longer_than_its_authority() -> None:
    authority = make_authority(NOW)
    certificate = x509.load_pem_x509_certificate(issue(authority, "n", ["a.example"], NOW).certificate)
    assert certificate.not_valid_before_utc.timestamp() <= NOW - 3600
    assert expires_at(authority.certificate) == pytest.approx(NOW + AUTHORITY_DAYS * DAY_S, abs=1)
    assert certificate.not_valid_after_utc.timestamp() == pytest.approx(NOW + MACHINE_DAYS * DAY_S, abs=1)
    late = NOW + (AUTHORITY_DAYS - 1) * DAY_S
    last = issue(authority, "n", ["a.example"], late)
    assert expires_at(last.certificate) == expires_at(authority.certificate)
    with pytest.raises(CertificateUnusable, match="expired"):
        issue(authority, "n", ["a.example"], late + 2 * DAY_S)


@pytest.mark.parametrize(
    "text", [b"", b"words", b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n", b"x" * 20_000]
)
def test_what_is_no_authority_is_refused_in_a_sentence(text: bytes) -> None:
    with pytest.raises(CertificateUnusable) as caught:
        parse_authority(text)
    assert "\n" not in str(caught.value)


def test_an_authority_survives_its_way_through_a_vault_and_its_parts_must_belong_together() -> None:
    authority, other = make_authority(NOW), make_authority(NOW)
    assert parse_authority(authority.joined().strip()) == authority
    with pytest.raises(CertificateUnusable, match="do not belong together"):
        parse_authority(authority.certificate + other.key)
    assert "BEGIN" not in repr(authority)


def test_without_tls_no_file_is_made_and_no_variable_set(folders: ClusterFolders, tmp_path: Path) -> None:
    begin(folders, encrypted=False)
    assert not uses_tls(folders.home)
    assert machine_variables(folders, "node_a", "127.1.2.3", tmp_path / "machine") == {}
    assert not set(TLS_VARIABLES) & process_environment(folders.home).keys()
    assert not (tmp_path / "machine").exists()


def test_each_machine_and_the_service_have_files_of_their_own_that_no_other_user_reads(
    encrypted: ClusterFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = machine_variables(encrypted, "node_a", "127.1.2.3", tmp_path / "machine")
    own = process_environment(encrypted.home)
    assert variables["RAY_TLS_SERVER_CERT"] != own["RAY_TLS_SERVER_CERT"]
    read = [(tmp_path / "machine/tls" / OWN_FILE), encrypted.tls / OWN_FILE, encrypted.authority]
    assert [path.stat().st_mode & 0o777 for path in read] == [0o600] * 3
    assert (tmp_path / "machine/tls").stat().st_mode & 0o077 == 0
    assert encrypted.tls.stat().st_mode & 0o077 == 0
    authority = parse_authority(encrypted.authority.read_bytes())
    node, service = (Credentials(certificate=path.read_bytes(), key=b"") for path in read[:2])
    shake(tmp_path, node, service, authority.certificate, "127.1.2.3")
    shake(tmp_path, service, node, authority.certificate, head_address(encrypted.home))
    assert authority.key not in (tmp_path / "machine/tls" / AUTHORITY_FILE).read_bytes()
    # A machine that finds its cluster by itself gets nothing of this one.
    monkeypatch.setenv("RAY_USE_TLS", "1")
    assert not set(TLS_VARIABLES) & bare_environment().keys()


def test_the_services_certificate_is_renewed_in_the_second_half_of_its_time(
    encrypted: ClusterFolders,
) -> None:
    own_environment(encrypted, clock=at(NOW))
    first = (encrypted.tls / OWN_FILE).read_bytes()
    own_environment(encrypted, clock=at(NOW + 0.4 * MACHINE_DAYS * DAY_S))
    assert (encrypted.tls / OWN_FILE).read_bytes() == first
    own_environment(encrypted, clock=at(NOW + 0.6 * MACHINE_DAYS * DAY_S))
    renewed = (encrypted.tls / OWN_FILE).read_bytes()
    assert expires_at(renewed) == pytest.approx(NOW + 1.6 * MACHINE_DAYS * DAY_S, abs=1)


def test_the_services_certificate_keeps_the_addresses_at_which_it_is_reached(
    encrypted: ClusterFolders,
) -> None:
    own = encrypted.tls / OWN_FILE
    own_environment(encrypted, clock=at(NOW))
    own_environment(encrypted, ["10.70.0.4"], clock=at(NOW))
    first = own.read_bytes()
    own_environment(encrypted, ["10.70.0.4"], clock=at(NOW))
    assert own.read_bytes() == first
    own_environment(encrypted, clock=at(NOW + 0.6 * MACHINE_DAYS * DAY_S))
    assert own.read_bytes() != first
    assert sorted(names_of(own.read_bytes())) == sorted(
        ["10.70.0.4", head_address(encrypted.home), "localhost", "127.0.0.1"]
    )


def test_the_services_certificate_names_where_it_is_reached_from_its_head(
    encrypted: ClusterFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_environment(encrypted, clock=at(NOW))
    own = encrypted.tls / OWN_FILE
    first = own.read_bytes()
    head = make_head(encrypted, "node_a")
    # Heads that become known later: one in the file, and one in the settings.
    encrypted.address.write_text("127.9.8.7:6379\n")
    monkeypatch.setenv("REMORA_RAY_ADDRESS", "[::1]:6379")
    own_environment(encrypted, clock=at(NOW))
    renewed = own.read_bytes()
    assert renewed != first
    assert {"127.9.8.7", "::1", "127.0.0.1", head_address(encrypted.home)} <= set(names_of(renewed))
    authority = parse_authority(encrypted.authority.read_bytes())
    shake(encrypted.home, Credentials(certificate=renewed, key=b""), head, authority.certificate, "127.9.8.7")
    own_environment(encrypted, clock=at(NOW))
    assert own.read_bytes() == renewed, "nothing is new"
    for unknown in ("", "words", "h\u00e9ad:1", "no-such-head.invalid:6379", "10.0.0.1:99999999"):
        encrypted.address.write_text(unknown)
        own_environment(encrypted, clock=at(NOW))
    assert "10.0.0.1" not in names_of(own.read_bytes())


def make_head(folders: ClusterFolders, name: str) -> Credentials:
    return issue(parse_authority(folders.authority.read_bytes()), name, ["127.9.8.7"], NOW)


def test_this_machines_address_is_that_on_the_way_to_the_head() -> None:
    # To an address of its own a machine goes by that same one.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        host, port = one.getsockname()
        assert addresses_towards(f"{host}:{port}") == ["127.0.0.1", "127.0.0.1"]
    assert addresses_towards("[0:0::1]:6379")[0] == "::1", "as a certificate names it"
    assert addresses_towards("no-such-head.invalid:6379") == ["no-such-head.invalid"]


def test_names_that_a_certificate_was_made_with_survive_its_renewal(encrypted: ClusterFolders) -> None:
    own_environment(encrypted, ["10.1.0.4", "head.example"], clock=at(NOW))
    own_environment(encrypted, clock=at(NOW + 0.6 * MACHINE_DAYS * DAY_S))
    renewed = (encrypted.tls / OWN_FILE).read_bytes()
    assert expires_at(renewed) == pytest.approx(NOW + 1.6 * MACHINE_DAYS * DAY_S, abs=1)
    assert {"10.1.0.4", "head.example", head_address(encrypted.home)} <= set(names_of(renewed))


def test_a_damaged_certificate_of_the_service_is_replaced(encrypted: ClusterFolders) -> None:
    encrypted.tls.joinpath(OWN_FILE).write_bytes(b"damaged")
    own_environment(encrypted, clock=at(NOW))
    assert expires_at(encrypted.tls.joinpath(OWN_FILE).read_bytes()) > NOW


def test_a_head_that_starts_when_its_authority_would_end_gets_another_one(encrypted: ClusterFolders) -> None:
    first = encrypted.authority.read_bytes()
    own_environment(encrypted, clock=at(NOW))
    begin(encrypted, encrypted=True, clock=at(NOW + (AUTHORITY_DAYS - MACHINE_DAYS - 1) * DAY_S))
    assert encrypted.authority.read_bytes() == first
    begin(encrypted, encrypted=True, clock=at(NOW + (AUTHORITY_DAYS - MACHINE_DAYS + 1) * DAY_S))
    assert encrypted.authority.read_bytes() != first
    assert not (encrypted.tls / OWN_FILE).exists(), "that of the service is of the old one"


def test_a_head_without_tls_after_one_with_it_leaves_no_key(encrypted: ClusterFolders) -> None:
    own_environment(encrypted)
    begin(encrypted, encrypted=False)
    assert not uses_tls(encrypted.home)
    assert not encrypted.tls.exists()


def test_a_head_whose_certificate_ends_is_announced(encrypted: ClusterFolders, tmp_path: Path) -> None:
    temporary = tmp_path / "machine"
    assert ends_soon(encrypted, temporary, NOW) is None, "it has none"
    machine_variables(encrypted, "head", "127.1.2.3", temporary, at(NOW))
    assert ends_soon(encrypted, temporary, NOW + (MACHINE_DAYS - 31) * DAY_S) is None
    said = ends_soon(encrypted, temporary, NOW + (MACHINE_DAYS - 29) * DAY_S)
    assert said is not None
    assert "ends in 29 days" in said
    assert "`remora down` and `remora up`" in said
    member = ends_soon(encrypted, temporary, NOW + MACHINE_DAYS * DAY_S, "member", BY_RESTART)
    assert member is not None
    assert member.startswith("the certificate of member ends in 0 days")
    assert "Each year" in member
    assert "remora up" not in member


def test_a_damaged_authority_is_one_sentence_that_says_what_to_do(
    encrypted: ClusterFolders, tmp_path: Path
) -> None:
    encrypted.authority.write_bytes(b"damaged")
    for ask in (
        lambda: begin(encrypted, encrypted=True),
        lambda: own_environment(encrypted),
        lambda: machine_variables(encrypted, "node_a", "127.1.2.3", tmp_path / "machine"),
    ):
        with pytest.raises(ProviderError, match=r"authority.pem cannot be used: .*remora down") as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_files_are_replaced_whole_and_no_draft_is_left(tmp_path: Path) -> None:
    authority = make_authority(NOW)
    for _ in range(2):
        own = issue(authority, "n", ["10.1.0.5"], NOW)
        write_files(tmp_path, authority, own)
        assert sorted(path.name for path in tmp_path.iterdir()) == [AUTHORITY_FILE, OWN_FILE]
        assert (tmp_path / OWN_FILE).read_bytes() == own.joined()


def test_a_head_elsewhere_gets_its_files_by_a_command(
    folders: ClusterFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folders.home), "10.1.0.4", "head.example"]) == 0
    said = capsys.readouterr().out
    assert [line.partition("=")[0] for line in said.splitlines()] == [f"export {n}" for n in TLS_VARIABLES]
    first = folders.authority.read_bytes()
    certificate = x509.load_pem_x509_certificate((folders.tls / OWN_FILE).read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["head.example", "localhost"]
    assert main([str(folders.home), "10.1.0.4"]) == 0
    assert folders.authority.read_bytes() == first, "nodes that run go on"
    assert main([str(folders.home), "h\u00e9ad"]) == 2
    folders.authority.write_bytes(b"damaged")
    assert main([str(folders.home), "10.1.0.4"]) == 1
    assert "Traceback" not in capsys.readouterr().err
