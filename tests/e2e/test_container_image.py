"""The image of the service is built of deploy/containers, without a registry, and a container of it answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from remora import __version__
from remora.free_ports import free_port
from tests.architecture.repository import ROOT
from tests.e2e.composed import SERVICES, Composed
from tests.e2e.processes import until
from tests.installed_wheel import build_wheel
from tests.needed import is_missing

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(2400)]

#: What the container file builds on: the same system as its default, of packages from debootstrap's own mirror.
SUITE = "bookworm"
#: As other tests give them: more than this the machine may refuse.
LIMITS = ("--ulimit=nofile=20000:20000", "--ulimit=nproc=20000:20000")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with Debian's essential packages, as a registry would give it."""
    if shutil.which("podman") is None or shutil.which("debootstrap") is None:
        is_missing(
            "podman or debootstrap is not there, by which the image is built: make test-tools installs them, as root on"
            " Debian"
        )
    folder = tmp_path_factory.mktemp("base") / "root"
    bootstrap = ["debootstrap", "--variant=minbase", SUITE, str(folder)]
    done = subprocess.run(bootstrap, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    name = f"localhost/remora-image-base:{uuid.uuid4().hex[:8]}"
    left_out = [f"--exclude=./{one}/*" for one in ("dev", "proc", "sys", "var/cache/apt/archives")]
    packed = subprocess.Popen(["tar", "-C", folder, *left_out, "-c", "."], stdout=subprocess.PIPE)
    imported = subprocess.run(["podman", "import", "--quiet", "-", name], stdin=packed.stdout, check=False)
    assert (packed.wait(), imported.returncode) == (0, 0)
    shutil.rmtree(folder)
    try:
        yield name
    finally:
        subprocess.run(["podman", "rmi", "--force", name], check=False, capture_output=True)


@pytest.fixture(scope="module")
def image(base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image, built as docs/containers.md says, of wheels from the package index of this machine."""
    folder = tmp_path_factory.mktemp("image")
    name = f"localhost/remora-image:{uuid.uuid4().hex[:8]}"
    command = [str(ROOT / "deploy/containers/build"), sys.executable, str(build_wheel(folder)), "podman"]
    given = [f"--tag={name}", f"--build-arg=BASE={base}", "--network=host", "--layers=false", *LIMITS]
    done = subprocess.run([*command, *given], capture_output=True, text=True, check=False)
    try:
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        yield name
    finally:
        subprocess.run(["podman", "rmi", "--force", name], check=False, capture_output=True)


@pytest.fixture
def port() -> int:
    return free_port("127.0.0.1")


@pytest.fixture
def composed(image: str, tmp_path: Path, port: int) -> Iterator[Composed]:
    settings = {
        "REMORA_DATABASE_URL": "",
        # The network is that of this machine, which other machines reach.
        "REMORA_HOST": "127.0.0.1",
        "REMORA_PORT": str(port),
        "REMORA_PUBLIC_URL": "",
        "REMORA_TLS_CERTIFICATE": "",
        "REMORA_TLS_KEY": "",
        "REMORA_NODES": "1",
        "REMORA_NODE_CPUS": "1",
    }
    composed = Composed(tmp_path / "volumes", settings, image)
    try:
        yield composed
    finally:
        print(composed.close())


def test_a_container_of_the_image_answers(composed: Composed, port: int) -> None:
    assert "is ready for release" in composed.run("prepare")
    composed.start("api")
    until(lambda: composed.is_healthy("api"), "the API is healthy")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
        assert answer.status == 200
        assert json.load(answer)


def test_the_image_has_what_each_of_its_containers_runs(image: str) -> None:
    """All packages of the lock, PyTorch, the programs for backups, and no rights of root."""
    script = (
        "import os, json, remora, ray, torch, shutil;"
        "has_client = bool(shutil.which('pg_dump'));"
        "print(json.dumps([remora.__version__, os.getuid(), has_client, torch.ones(2).sum().item()]))"
    )
    command = [
        "podman",
        "run",
        "--rm",
        "--network=none",
        *LIMITS,
        "--read-only",
        "--entrypoint=python",
        image,
    ]
    done = subprocess.run([*command, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    user = int(SERVICES["api"]["user"].partition(":")[0])
    assert json.loads(done.stdout) == [__version__, user, True, 2.0]
