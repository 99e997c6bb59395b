"""The processes of the embedded service: start, watch and end them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cluster.local import head, machine
from cluster.local.certificates import ends_soon, uses_tls
from cluster.local.environment import MACHINE_VARIABLE, process_environment, strangers_environment
from cluster.local.folders import ClusterFolders
from cluster.local.head import temporary_of
from cluster.local.provider import LocalProvider
from cluster.local.records import MachineRecord
from cluster.processes import values_of
from cluster.provider import ProviderError
from cluster.ray.joining import FORKED_VARIABLE
from remora.client.credentials import OPERATOR_TOKEN_FILE
from remora.clusters import DEFAULT_CLUSTER
from remora.free_ports import free_port
from service.embedded.upkeep import Part
from service.listening import EVERY_ADDRESS
from service.private_home import make_private_file
from service.settings import CLUSTERS, Settings
from service.steady_clock import CLOCK
from trainers.preloaded import PRELOAD_VARIABLE, PRELOADED

#: Seconds that API and controller may take to end by themselves.
_GRACE_S = 5.0
#: A controller that runs for so long has found what it needs.
_CONTROLLER_READY_S = 3.0
#: A longer log is put aside when its process is started again.
_LOG_BYTES = 16 * 2**20
_PR_SET_PDEATHSIG = 1
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_libc = ctypes.CDLL(None, use_errno=True)


class ClusterPart:
    """The head of a local cluster."""

    def __init__(self, settings: Settings) -> None:
        self._home = settings.cluster_home
        self._forked = settings.forked_modules
        self._encrypted = settings.encrypts_ray
        # One head can have the port: that of the first cluster.
        self._jobs_port = settings.ray_jobs_port if settings.cluster == DEFAULT_CLUSTER else 0
        self._head: MachineRecord | None = None

    @property
    def address(self) -> str:
        """Its `host:port`, empty before the first start."""
        return self._head.ray_address if self._head else ""

    def start(self, _: str) -> None:
        """Adopt the head that runs, else end the nodes of the one that does not and start another."""
        if head.find_head(self._home) is None:
            end_nodes(self._home)
        forked = {FORKED_VARIABLE: self._forked}
        self._head = head.start_head(
            self._home, encrypted=self._encrypted, jobs_port=self._jobs_port, **forked
        )

    def is_alive(self) -> bool:
        """True while its process runs."""
        return self._head is not None and self._head.is_running

    def is_ready(self) -> bool:
        """True when nodes can join it."""
        return self._head is not None and head.is_reachable(self._head)

    def end(self) -> None:
        """Kill it with all that runs on it."""
        head.stop_head(self._home, grace_s=0)

    def where(self) -> str:
        """Its address, and what a running head is that the settings would make otherwise."""
        if self._head is not None and (
            soon := ends_soon(ClusterFolders(self._home), Path(self._head.temporary), CLOCK())
        ):
            return f"{self.address}; {soon}"
        if self._encrypted == uses_tls(self._home):
            return self.address + (", with TLS" if self._encrypted else "")
        kept, wanted = ("without", "with") if self._encrypted else ("with", "without")
        return f"{self.address}, {kept} TLS as it was started; for one {wanted}, `remora down` first"

    def complaint(self) -> str:
        """What its log says."""
        return machine.complaint(ClusterFolders(self._home).logs / "head.log")


class ServicePart:
    """The API, the controller or the emulator: a child process that dies with this one."""

    def __init__(self, settings: Settings, part: Part, module: str, port: int | None = None) -> None:
        """`port` is the one to serve at, 0 for a free one; None: that of the settings."""
        self._settings = settings
        self._part = part
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        #: Chosen once, so that the address stays when the API is started again.
        self._port = (settings.port if port is None else port) or free_port(settings.host)

    @property
    def url(self) -> str:
        """Address of the API."""
        return local_url(self._settings.host, self._port, has_tls=self._settings.tls_certificate is not None)

    @property
    def log(self) -> Path:
        """Where the process writes."""
        cluster = self._settings.cluster
        name = self._part.lower() if cluster == DEFAULT_CLUSTER else f"{self._part.lower()}-{cluster}"
        return ClusterFolders(self._settings.home).logs / f"{name}.log"

    def start(self, ray_address: str) -> None:
        """Start the process."""
        settings, parent = self._settings, os.getpid()
        make_private_file(self.log)
        if self.log.stat().st_size > _LOG_BYTES:
            self.log.replace(self.log.with_suffix(".old.log"))
            make_private_file(self.log)
        variables = dict(
            REMORA_HOME=str(settings.home),
            REMORA_PORT=str(self._port),
            REMORA_CLUSTER=settings.cluster,
            REMORA_RAY_ADDRESS=ray_address,
            # The raylets of the nodes that the controller or the emulator starts have it from there.
            **{PRELOAD_VARIABLE: PRELOADED, FORKED_VARIABLE: settings.forked_modules},
            REMORA_CLOUD=settings.cloud,
            REMORA_AUTHENTICATION=settings.authentication,
            REMORA_AZURE_FILE=str(settings.azure),
            REMORA_NODES=str(settings.nodes),
            REMORA_NODE_CPUS=str(settings.node_cpus),
            REMORA_NODE_GPUS=str(settings.node_gpus),
            REMORA_NODE_PRICE_PER_HOUR=str(settings.node_price_per_hour),
            PYTHONUNBUFFERED="1",
        )
        if self._part is Part.API:
            environment = strangers_environment(**variables)
        else:
            environment = process_environment(settings.cluster_home, **variables)
        with self.log.open("ab") as output:
            # This process has one thread, so code between fork and exec is safe.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", self._module, *self._words()],
                env=environment,
                cwd=settings.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: _die_with(parent),
            )
        self._started_at = time.monotonic()

    def _words(self) -> list[str]:
        """Its command line, beside what it has from its environment."""
        return []

    def is_alive(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.poll() is None

    def is_ready(self) -> bool:
        """The API answers; the controller did not end at once."""
        if self._part is Part.API:
            return get(f"{self.url}/healthz", certificate=self._settings.tls_certificate) is not None
        return time.monotonic() - self._started_at > _CONTROLLER_READY_S

    def end(self) -> None:
        """End the process, kill it when it does not obey."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def where(self) -> str:
        """The API's address, or where the controller writes."""
        return self.url if self._part is Part.API else f"log in {self.log}"

    def complaint(self) -> str:
        """What its log says."""
        return machine.complaint(self.log)


def end_nodes(home: Path) -> int:
    """End all nodes of a home, at once and all together; returns how many there were.

    Raises ProviderError when one cannot be ended.
    """
    provider = LocalProvider(home, "")
    names = provider.node_ids()
    if names:
        with ThreadPoolExecutor(max_workers=min(16, len(names))) as pool:
            list(pool.map(provider.kill, names))
            list(pool.map(provider.delete, names))
    return len(names)


def end_cluster(home: Path) -> int:
    """End all that runs of a home and remove what it has in memory; returns how many machines there were.

    Raises ProviderError when something cannot be ended.
    """
    folders = ClusterFolders(home)
    recorded = temporary_of(folders)
    count = end_nodes(home) + int(head.stop_head(home, grace_s=0)) + _end_unrecorded(folders)
    folders.remove_temporary(recorded.parent if recorded else None)
    (home / "api.url").unlink(missing_ok=True)
    _sweep_machine()
    return count


def end_clusters(home: Path) -> int:
    """End all clusters of a home and what they have in memory; returns how many machines there were.

    Raises ProviderError when something cannot be ended, once all else was.
    """
    count, failed = 0, []
    for one in (*further_clusters(home), home):
        try:
            count += end_cluster(one)
        except ProviderError as error:
            # The others are ended all the same.
            failed.append(error)
    if failed:
        raise failed[0]
    return count


def further_clusters(home: Path) -> list[Path]:
    """The folders of all clusters of a home but the first, also of those whose folder is gone while machines run."""
    parent = home / CLUSTERS
    found = {path for path in parent.iterdir() if path.is_dir()} if parent.is_dir() else set()
    for mark in values_of(MACHINE_VARIABLE):
        of_home = Path(mark.partition("@")[2])
        if of_home.parent == parent:
            found.add(of_home)
    return sorted(found)


def _end_unrecorded(folders: ClusterFolders) -> int:
    """End machines of a home whose records are gone, by their marks and cgroups; returns how many there were."""
    end = f"@{folders.home}"
    count = 0
    for mark in sorted(values_of(MACHINE_VARIABLE)):
        if mark.endswith(end):
            cgroup = folders.cgroup_of(mark.removesuffix(end))
            count += machine.end(mark, None, grace_s=0, cgroup=cgroup)
    return count + sum(machine.end_cgroup(cgroup) for cgroup in folders.cgroups())


def _sweep_machine() -> None:
    """Remove what killed workers left in the memory and the temporary folder of this machine."""
    # Nothing else here needs what it imports.
    from trainers.supervisor.node_sweep import sweep_machine

    sweep_machine()


def local_url(host: str, port: int, *, has_tls: bool) -> str:
    """Where this machine reaches an API that listens at an address (`REMORA_HOST`)."""
    given = host.strip("[]")
    # Who listens at all addresses is reached at its loopback.
    reached = {EVERY_ADDRESS[4]: "127.0.0.1", EVERY_ADDRESS[6]: "::1"}.get(given, given)
    scheme = "https" if has_tls else "http"
    return f"{scheme}://[{reached}]:{port}" if ":" in reached else f"{scheme}://{reached}:{port}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An answer of ours that leads elsewhere is none."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def _opener(certificate: Path | None) -> urllib.request.OpenerDirector:
    """Reaches this machine alone: no proxy, no redirect; over TLS the service is who has that certificate."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirect()]
    if certificate is not None:
        context = ssl.create_default_context(cadata=_first_certificate(certificate))
        # It is trusted itself, of whichever authority and form it is; what its issuer has issued besides is not.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        # Its name is the public one.
        context.check_hostname = False
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)


def _first_certificate(path: Path) -> str:
    """The certificate of the service in a file that may have its chain and its key as well.

    Raises OSError, and ValueError when there is none.
    """
    found = _CERTIFICATE.search(path.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{path} has no certificate")
    return found[0]


def nodes_ready(url: str, settings: Settings, ray_address: str) -> int:
    """Nodes that run and that the API calls ready; 0 when it does not answer.

    Rows of an earlier life say ready until the controller has looked, so the provider is asked too.
    """
    page = get(f"{url}/v1/nodes", settings.home, settings.tls_certificate) or {}
    items: list[dict[str, Any]] = page.get("items", [])
    ready = {item.get("id") for item in items if item.get("state") == "ready"}
    try:
        running = {
            node.node_id for node in LocalProvider(settings.home, ray_address).list() if node.is_running
        }
    except ProviderError:
        return 0
    return len(ready & running)


def policies_version(url: str, settings: Settings) -> int | None:
    """The version of the policies in force, 0 when none were applied; None when the API does not answer."""
    version = (get(f"{url}/v1/policies/newest", settings.home, settings.tls_certificate) or {}).get("version")
    return version if isinstance(version, int) else None


def port_problem(host: str, port: int) -> str | None:
    """Why the API cannot listen there, as a sentence; None when it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        reason = error.strerror or str(error)
        return f"the API cannot listen on {host}:{port} ({reason}); choose another port with --port"
    return None


def get(url: str, home: Path | None = None, certificate: Path | None = None) -> dict[str, Any] | None:
    """The JSON object at an address of ours, asked for as the operator of the home; None when there is none."""
    request = urllib.request.Request(url)  # noqa: S310  # our own address
    if home is not None:
        with contextlib.suppress(OSError):
            token = (home / OPERATOR_TOKEN_FILE).read_text(encoding="utf-8").strip()
            request.add_header("Authorization", f"Bearer {token}")
    try:
        with _opener(certificate).open(request, timeout=1.0) as answer:
            body = json.load(answer)
    except (OSError, ValueError, urllib.error.URLError):
        return None
    return body if isinstance(body, dict) else None


def _die_with(parent: int) -> None:
    """In a new child: be killed when the parent dies, also when it has died already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
