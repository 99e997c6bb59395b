"""Azure's own emulator of blob storage, as a process of the tests."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from azure.storage.blob import BlobServiceClient

from tests.needed import is_missing

ROOT = Path(__file__).parents[1]
_SCRIPT = ROOT / ".azurite/node_modules/azurite/dist/src/blob/main.js"
#: The account that every Azurite has, and its key, which its documentation names.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER = "remora-tests"


@dataclass(frozen=True)
class Azurite:
    """One that runs."""

    #: Address of its account.
    endpoint: str
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.endpoint.rpartition(":")[2].partition("/")[0])

    @property
    def connection_string(self) -> str:
        """With the key of its account."""
        return (
            f"DefaultEndpointsProtocol={self.endpoint.partition(':')[0]};AccountName={ACCOUNT};"
            f"AccountKey={KEY};BlobEndpoint={self.endpoint};"
        )

    def url(self) -> str:
        """A storage in it that is empty."""
        return f"abfs://{CONTAINER}/{uuid.uuid4().hex}"

    def credentials(self, folder: Path) -> Path:
        """A file of the service that says how to reach it."""
        path = folder / "storage.json"
        path.touch(0o600)
        path.write_text(json.dumps({ACCOUNT: {"connection_string": self.connection_string}}))
        return path

    def stop(self) -> None:
        """End it, with all that it has."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def azurite(folder: Path, *options: str, scheme: str = "http") -> Iterator[Azurite]:
    """One of our own on a free port of the loopback, which keeps everything in memory."""
    node = shutil.which("node")
    if node is None or not _SCRIPT.exists():
        is_missing(
            "Azurite is not installed, so NO STORAGE IN AZURE IS TESTED: apt-get install npm, make azurite"
        )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            *(
                node,
                str(_SCRIPT),
                "--blobHost",
                "127.0.0.1",
                "--blobPort",
                str(port),
                "--inMemoryPersistence",
            ),
            # The client's newest version of the protocol is younger than Azurite.
            *("--silent", "--disableTelemetry", "--skipApiVersionCheck", *options),
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        said = b""
        while b"successfully listens" not in said:
            line = process.stdout.readline()
            assert line, f"Azurite ended: {said.decode()}"
            said += line
        found = Azurite(f"{scheme}://127.0.0.1:{port}/{ACCOUNT}", process)
        if scheme == "http":
            with BlobServiceClient.from_connection_string(found.connection_string) as client:
                client.create_container(CONTAINER)
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
