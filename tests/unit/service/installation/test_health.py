"""Where an upgrade and the health check look for the API, and by which certificate they know it."""

from __future__ import annotations

import contextlib
import datetime
import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from service.installation.health import answers, check_api
from service.installation.layout import InstallationProblem
from service.settings import Settings

NOW = datetime.datetime.now(datetime.UTC)


class Issued:
    """A certificate for a public name with its key, of an authority or of itself."""

    def __init__(self, name: str, issuer: Issued | None = None, *, is_authority: bool = False) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        built = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(issuer.name if issuer else self.name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - datetime.timedelta(days=1))
            .not_valid_after(NOW + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        self.certificate = built.sign(issuer.key if issuer else self.key, hashes.SHA256())

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def served(host: str, file: Path | None = None) -> Iterator[int]:
    """An API that answers at this address alone, over TLS with what the file has; its port."""
    with http.server.ThreadingHTTPServer((host, 0), Health) as server:
        if file is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(file)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def put(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return path


@pytest.mark.parametrize("chain", ["own", "leaf", "intermediate", "root"])
def test_the_api_is_known_by_its_own_certificate_however_much_of_its_chain_is_in_the_file(
    tmp_path: Path, chain: str
) -> None:
    root = Issued("root", is_authority=True)
    intermediate = Issued("intermediate", root, is_authority=True)
    own = Issued("remora.example.com", None if chain == "own" else intermediate)
    more = {"intermediate": [intermediate.pem], "root": [intermediate.pem, root.pem]}.get(chain, [])
    file = put(tmp_path / "tls.pem", own.pem, *more, own.key_pem)
    with served("127.0.0.1", file) as port:
        assert answers(port, {"REMORA_TLS_CERTIFICATE": str(file)})
        check_api(Settings(home=tmp_path, port=port, tls_certificate=file, tls_key=file))


def test_another_certificate_of_the_same_authority_is_not_the_services(tmp_path: Path) -> None:
    root = Issued("root", is_authority=True)
    own, another = Issued("remora.example.com", root), Issued("another.example.com", root)
    file = put(tmp_path / "tls.pem", own.pem, root.pem, own.key_pem)
    with served("127.0.0.1", put(tmp_path / "another.pem", another.pem, root.pem, another.key_pem)) as port:
        assert not answers(port, {"REMORA_TLS_CERTIFICATE": str(file)})
    assert not answers(port, {"REMORA_TLS_CERTIFICATE": str(tmp_path / "missing.pem")})
    assert not answers(port, {"REMORA_TLS_CERTIFICATE": str(put(tmp_path / "empty.pem"))})


@pytest.mark.parametrize(
    ("listens", "setting"), [("127.0.0.9", "127.0.0.9"), ("127.0.0.1", "0.0.0.0"), ("127.0.0.1", "")]
)
def test_the_api_is_asked_where_it_listens(tmp_path: Path, listens: str, setting: str) -> None:
    with served(listens) as port:
        assert answers(port, {"REMORA_HOST": setting})
        if setting:
            check_api(Settings(home=tmp_path, port=port, host=setting))
        with pytest.raises(InstallationProblem, match="does not answer at port"):
            check_api(Settings(home=tmp_path, port=port, host="127.0.0.8"))
