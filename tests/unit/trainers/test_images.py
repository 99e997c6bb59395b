"""Real podman: an image is pulled once and found again, and no container outlives what it was made for."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.container_images import container_of, containers, image, podman
from trainers.containers import container as module
from trainers.containers import images
from trainers.containers.arguments import Mount
from trainers.containers.container import container, sweep_containers
from trainers.containers.images import node_image
from trainers.containers.podman import run_podman
from trainers.environments.commands import EnvironmentFailed
from trainers.supervisor.node_sweep import sweep_node

ROOT = Path(__file__).parents[3]
ABSENT = "localhost/remora-test-absent"


@pytest.fixture(autouse=True)
def _own_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMORA_WORK_DIR", str(tmp_path / "work"))


class Registry(http.server.ThreadingHTTPServer):
    """Serves the image that an OCI layout holds, as `/v2/own/manifests/latest`; counts what is asked for."""

    def __init__(self, layout: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.blobs = layout / "blobs/sha256"
        (manifest,) = json.loads((layout / "index.json").read_text())["manifests"]
        self.manifest = (self.blobs / manifest["digest"].removeprefix("sha256:")).read_bytes()
        self.kind = str(manifest["mediaType"])
        (layer,) = json.loads(self.manifest)["layers"]
        self.layer = f"/v2/own/blobs/{layer['digest']}"
        self.asked: list[str] = []
        self.is_away = False
        self.may_answer = threading.Event()
        self.may_answer.set()

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Answer(http.server.BaseHTTPRequestHandler):
    """One request."""

    server: Registry

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.may_answer.wait(60.0)
        if self.server.is_away or self.path.startswith("/v2/absent/"):
            self.send_error(404)
        elif self.path == "/v2/":
            self._send(b"{}", "application/json")
        elif "/manifests/" in self.path:
            self._send(self.server.manifest, self.server.kind)
        else:
            blob = self.server.blobs / self.path.rpartition("sha256:")[2]
            self._send(blob.read_bytes(), "application/octet-stream")

    do_HEAD = do_GET  # noqa: N815 - the name is the library's

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(content).hexdigest()}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """One with an image of a few bytes, `own`."""
    image()
    (tmp_path / "files").mkdir()
    (tmp_path / "files/own.txt").write_text(str(tmp_path))
    subprocess.run(["tar", "-C", tmp_path / "files", "-cf", tmp_path / "own.tar", "."], check=True)
    made = podman("import", "--quiet", str(tmp_path / "own.tar"), "localhost/remora-test-small")
    podman("save", "--quiet", "--format", "oci-dir", "--output", str(tmp_path / "layout"), made)
    podman("rmi", "--force", made)
    with Registry(tmp_path / "layout") as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        config = tmp_path / "registries.conf"
        config.write_text(f'[[registry]]\nlocation = "{serving.name}"\ninsecure = true\n')
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(config))
        yield serving
        serving.may_answer.set()
        serving.shutdown()
    subprocess.run(
        ["podman", "rmi", "--force", made.removeprefix("sha256:")], check=False, capture_output=True
    )


def test_an_image_is_pulled_once_and_one_of_a_registry_that_is_away_is_used(registry: Registry) -> None:
    name = f"{registry.name}/own"
    said: list[str] = []
    shown: list[str] = []
    first = node_image(name, said.append, shown.append)
    assert said[0] == f"pulling the image {name}"
    assert said[1].startswith("the image is here after ")
    assert first.pull_s > 0
    assert shown[-1].startswith(f"{name}: 1 layers")

    again = node_image(name, said.append)
    assert (again.id, again.pull_s) == (first.id, 0.0)
    assert registry.asked.count(registry.layer) == 1, "nothing is downloaded twice"

    asked = len(registry.asked)
    digest = podman("image", "inspect", "--format", "{{.Digest}}", name)
    exact = node_image(f"{name}@{digest}", said.append)
    assert node_image(first.id, said.append).id == exact.id == first.id
    assert len(registry.asked) == asked, "what a digest names needs no registry"

    registry.is_away = True
    assert node_image(name, said.append).id == first.id
    assert said[-1].startswith("podman could not pull it: ")
    assert said[-1].endswith("the image of this name that the node has is used")


def test_an_image_that_no_registry_has_fails_with_the_words_of_podman(registry: Registry) -> None:
    with pytest.raises(EnvironmentFailed, match=r"^podman could not pull it: [\s\S]*absent:latest"):
        node_image(f"{registry.name}/absent", print)


def test_a_pull_ends_with_its_job_and_at_its_limit(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.may_answer.clear()
    stop = threading.Event()
    with pytest.raises(EnvironmentFailed, match="its job is being stopped"):
        node_image(f"{registry.name}/own", lambda _: stop.set(), stop=stop)
    monkeypatch.setattr(images, "PULL_LIMIT_S", 0.2)
    with pytest.raises(EnvironmentFailed, match=r"not pulled within 0\.2 s; use a smaller one"):
        node_image(f"{registry.name}/own", print)


@pytest.mark.parametrize("name", [ABSENT, "0" * 12])
def test_what_can_only_be_here_is_asked_of_no_registry(name: str) -> None:
    image()
    with pytest.raises(
        EnvironmentFailed, match=f"^this node has no image {name}; build it there, or push it"
    ):
        node_image(name, print)


def test_a_node_without_podman_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        EnvironmentFailed, match=r"^the node has no podman, which runs images: install podman"
    ):
        node_image(ABSENT, print)


#: Makes a container, says its name, and waits to be killed.
HOLDER = """
import signal, sys
from trainers.containers.container import container
from trainers.containers.images import node_image
with container(node_image(sys.argv[1], lambda _: None).id, [], []) as made:
    print(made.pid, flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("sweep", [sweep_containers, sweep_node])
def test_a_container_of_a_killed_process_goes_with_the_next_sweep(sweep: Callable[[], object]) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, image()],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert holder.stdout is not None
    pid = int(holder.stdout.readline())
    sweep()
    left = container_of(pid)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert left in containers(), "nothing removes it by itself"
    sweep()
    assert left not in containers()
    assert not Path(f"/proc/{pid}").exists()


def test_a_container_that_nothing_remembers_goes_when_the_next_one_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = node_image(image(), print)
    forgotten = "remora-0123456789abcdef"
    podman("create", "--name", forgotten, "--label", "remora.worker", "--entrypoint", '["/bin/sh"]', found.id)
    with container(found.id, [], []):
        assert forgotten not in containers()


def test_a_container_that_cannot_be_made_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = node_image(image(), print)
    made: list[str] = []

    def recorded(failure: str, words: list[str], *rest: Any) -> list[str]:
        made.extend(words[words.index("--name") + 1 :][:1] if words[0] == "create" else [])
        return run_podman(failure, words, *rest)

    monkeypatch.setattr(module, "run_podman", recorded)
    missing = Mount(source=tmp_path / "absent", target=tmp_path / "absent")
    for mounts, devices, why in (
        ([missing], [], r"^podman could not (make|prepare) the container: [\s\S]*absent"),
        ([], ["nvidia.com/gpu=7"], r"nvidia\.com/gpu=7"),
    ):
        with pytest.raises(EnvironmentFailed, match=why), container(found.id, mounts, devices):
            pytest.fail("it was made")
    assert len(made) == 2
    assert not {*made} & {*containers()}


def test_locks_in_a_folder_of_another_user_are_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / f"remora-containers-{os.getuid()}"
    root.mkdir()
    root.chmod(0o777)
    monkeypatch.setattr(module, "_ROOT", tmp_path)
    refused = pytest.raises(PermissionError, match="is no folder of this user alone; remove it")
    with refused, container("0" * 64, [], []):
        pytest.fail("it was made")
    sweep_containers()
