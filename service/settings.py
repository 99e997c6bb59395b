"""What an operator may set, from `REMORA_*` environment variables or arguments of `remora up`."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import platformdirs
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from cluster.policies.policies import ClusterName
from remora.clusters import DEFAULT_CLUSTER
from remora.isolation import Isolation
from remora.spec.fields import NAME_FORM, is_name
from service.openid.issuers import Issuer
from trainers.preloaded import FORKED

log = logging.getLogger(__name__)

_STORES_FORM = '{"models": "abfs://models/remora", "archive": "/mnt/archive"}'


_OPENID_FORM = '{"corp": {"issuer": "https://login.example.com/tenant/v2.0", "audience": "api://remora"}}'


def _decoded(form: str) -> BeforeValidator:
    """What the environment says is JSON in the given form; nothing said is nothing."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value) if value.strip() else {}
        except (ValueError, RecursionError):
            raise ValueError(f"it is no JSON; write it as {form}") from None

    return BeforeValidator(read)


def _issuers(issuers: dict[str, Issuer]) -> dict[str, Issuer]:
    for name in issuers:
        if not is_name(name):
            raise ValueError(f"{name[:80]!a} is no name of an issuer; use {NAME_FORM}")
    if len({issuer.issuer for issuer in issuers.values()}) < len(issuers):
        raise ValueError("an issuer stands there twice")
    return issuers


def check_no_credential(what: str, url: str) -> None:
    """Raise ValueError for a URL with a password or a token in it: URLs are shown and sent to nodes."""
    authority, _, rest = url.partition("://")[2].partition("/")
    if ":" in authority.rpartition("@")[0] or ("?" in f"{authority}{rest}" and "://" in url):
        raise ValueError(
            f"the URL of {what} has a credential in it; write it into the file of REMORA_STORAGE_CREDENTIALS, or into"
            " the configuration of its library"
        )


def _storage_url(url: str) -> str:
    check_no_credential("the service's storage", url)
    return url


def _otlp_endpoint(url: str) -> str:
    check_no_credential("the collector", url)
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError("it needs the form http://collector:4318, with http or https and the name of a host")
    return url


def _stores(stores: dict[str, str]) -> dict[str, str]:
    for name, url in stores.items():
        if not is_name(name):
            raise ValueError(f"{name[:80]!a} is no name of a store; use {NAME_FORM}")
        check_no_credential(f"the store {name}", url)
        if url.startswith(("http://", "https://")):
            raise ValueError(
                f"the store {name} is at an {url.partition(':')[0]} URL, to which nothing can be written"
            )
        if not (url.startswith("/") or re.match(r"[a-z][a-z0-9+.-]*://.", url)):
            raise ValueError(f"the store {name} needs an absolute folder or a URL, as in {_STORES_FORM}")
    return stores


#: Folder in the home with one folder for each cluster that the policies name.
CLUSTERS = "clusters"


def home_of(home: Path, cluster: str) -> Path:
    """The folder of a cluster in the service's home: what is in it is of no other cluster."""
    return home if cluster == DEFAULT_CLUSTER else home / CLUSTERS / cluster


class Settings(BaseSettings):
    """Settings of the service's processes.  Every field is documented in `docs/settings.md` (a test compares)."""

    model_config = SettingsConfigDict(env_prefix="REMORA_", frozen=True, extra="ignore")

    #: Folder of the embedded service: database, checkpoints, bundles, node records, logs.
    home: Path = Field(default_factory=lambda: Path(platformdirs.user_data_dir("remora")))
    #: SQLAlchemy URL; empty means SQLite in `home`.  `postgresql://...` uses PostgreSQL.
    database_url: str = ""
    #: Where bundles and checkpoints lie: a folder or an fsspec URL; empty means `home/storage`.
    storage_url: Annotated[str, AfterValidator(_storage_url)] = ""
    #: Other places for checkpoints and outputs, by the names that jobs use: JSON, `{"name": "folder or fsspec URL"}`.
    stores: Annotated[dict[str, str], NoDecode, _decoded(_STORES_FORM), AfterValidator(_stores)] = {}
    #: File with credentials of storages in Azure, by account; None: the identity of the service's machine.
    storage_credentials: Path | None = None
    #: File with the keys of the secrets in the database; empty means `secrets.key` in `home`.
    secrets_key_file: Path | None = None
    #: Address the API listens on.  Anything but loopback needs authentication, and TLS or proxies that end it.
    host: str = "127.0.0.1"
    #: Whether requests have to prove who sends them; `none`: everyone on this machine is the operator `local`.
    authentication: Literal["none", "required"] = "none"
    #: Port the API listens on; 0 takes a free one and writes it to `home/api.url`.
    port: int = Field(default=7265, ge=0, le=65535)
    #: Files with the certificate by which the API is reached over TLS, its own first, and with its key; None: HTTP.
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    #: How all processes log: lines of text, or one JSON object per line.
    log_format: Literal["text", "json"] = "text"
    #: Whether the API logs a line for each request.
    access_log: bool = False
    #: Requests of a second that one principal may send in the long run, and ten times as many at once; 0: any number.
    max_requests_per_s: float = Field(default=50.0, ge=0)
    #: Whether people may open shells in the workers of running jobs (`remora shell`).
    shells: bool = False
    #: Addresses or networks of proxies that end TLS, separated by commas; what they say of their clients is believed.
    trusted_proxies: str = ""
    #: Where people reach the API, if by another name than `host`; requests may address it by this name.
    public_url: str = ""
    #: Issuers of OpenID Connect whose tokens are accepted, by names of the operator's choice: JSON.
    openid: Annotated[dict[str, Issuer], NoDecode, _decoded(_OPENID_FORM), AfterValidator(_issuers)] = {}
    #: The Ray cluster that a controller leads.
    cluster: ClusterName = DEFAULT_CLUSTER
    #: Address of the Ray head's GCS (`host:port`); empty until `remora up` starts one and writes `ray.address`.
    ray_address: str = ""
    #: Processes of Ray speak TLS with each other; empty: they do where nodes are other machines.
    ray_tls: Literal["", "on", "off"] = ""
    #: Port of loopback at which the head serves Ray's job API, for `ray job submit`; 0: it does not.
    ray_jobs_port: int = Field(default=0, ge=0, le=65535)
    #: Where nodes are made: processes of this machine, machines of an emulated Azure on it, machines of Azure, or pods
    #: of KubeRay; or those of an existing Ray cluster, at `ray_address`, that Remora did not start.
    cloud: Literal["local", "azure-emulated", "azure", "kuberay", "existing"] = "local"
    #: File that says where in Azure the nodes stand; empty: `azure.json` or `azure-emulated.json` of the cluster.
    azure_file: Path | None = None
    #: File that says in which RayCluster of Kubernetes the nodes are made; empty: `kuberay.yaml` of the cluster.
    kuberay_file: Path | None = None
    #: File with sizes of machines in Azure beyond the built-in table; None: there are no others.
    catalogue: Path | None = None
    #: Nodes of the local pool that the controller keeps alive.
    nodes: int = Field(default=3, ge=0, le=64)
    #: CPUs that each local node announces to Ray.
    node_cpus: int = Field(default=1, ge=1, le=1024)
    #: GPUs that each local node announces to Ray.
    node_gpus: int = Field(default=0, ge=0, le=64)
    #: USD that an hour of a local node counts for; 0: it is free.
    node_price_per_hour: float = Field(default=0.0, ge=0, le=10_000)
    #: Nodes are measured before they get work; empty: they are where each is another machine that was bought for it.
    preflight: Literal["", "on", "off"] = ""
    #: Seconds within which a node has to have been measured.
    preflight_s: float = Field(default=180.0, gt=0)
    #: MB per second that a node and two neighbours have to exchange at least; 0: it is only recorded.
    preflight_mb_per_s: float = Field(default=0.0, ge=0)
    #: Seconds a controller's lease lasts without being renewed.
    lease_s: float = Field(default=5.0, gt=0)
    #: Seconds between two ticks of the controller.
    tick_s: float = Field(default=0.25, gt=0)
    #: Modules that each node imports once for all Python commands, separated by commas; empty: none is forked.
    warm_modules: str = "torch,torch._dynamo,remora.torch"
    #: Drivers that wait for the next jobs with everything imported, at most; 0: none does.
    ready_drivers: int = Field(default=3, ge=0, le=64)
    #: Ray's worker processes are forked from one process of their node that has imported everything.
    fork_ray_workers: bool = True
    #: Bytes of a JSON request body.
    max_body_bytes: int = Field(default=2 * 2**20, gt=0)
    #: Bytes of a request body with traces.
    max_trace_bytes: int = Field(default=64 * 2**20, gt=0)
    #: Bytes of a code bundle, packed.
    max_bundle_bytes: int = Field(default=512 * 2**20, gt=0)
    #: Bytes of a code bundle, unpacked.
    max_unpacked_bytes: int = Field(default=4 * 2**30, gt=0)
    #: Jobs that may wait or run at the same time.
    max_active_jobs: int = Field(default=10_000, gt=0)
    #: Seconds between two losses of one worker that are usual here; what an attempt sees outweighs it with time.
    worker_mtbf_s: float = Field(default=72_000.0, gt=0)
    #: Bytes of log kept per attempt.
    max_log_bytes: int = Field(default=64 * 2**20, gt=0)
    #: Processes and threads that one worker's command may have, where the node can count them.
    max_processes: int = Field(default=16_384, ge=64)
    #: Whether commands of jobs run as users of their own: where their node can, always (else it runs none), never.
    isolation: Isolation = "auto"
    #: Bytes of the files that one worker's command makes in /dev/shm; 0: half of what fits there.
    max_shm_bytes: int = Field(default=0, ge=0)
    #: Bytes that a job's files may take of one node's disk, but for its inputs; 0: any number.
    max_disk_bytes: int = Field(default=0, ge=0)
    #: Bytes of a job's outputs in one version.
    max_output_bytes: int = Field(default=2**40, gt=0)

    #: Bytes that a node keeps in memory of each mounted input.
    mount_cache_bytes: int = Field(default=256 * 2**20, ge=2**20)

    #: Bytes that a node keeps of each project's caches, for later jobs of the project; 0: none.  Where jobs have users.
    project_cache_bytes: int = Field(default=50 * 2**30, ge=0)

    #: Hosts, or hosts with ports, to which alerts may be sent although they are not on the public Internet, and without
    #: TLS; separated by commas.
    alert_hosts: str = ""
    #: The SMTP server by which alerts are sent as e-mail; empty: none is.
    smtp_host: str = ""
    smtp_port: int = Field(default=587, ge=1, le=65535)
    #: Whether the conversation with it is encrypted from the beginning, after STARTTLS, or not at all.
    smtp_tls: Literal["starttls", "tls", "none"] = "starttls"
    #: The address from which e-mail is sent.
    smtp_from: str = ""
    #: Who logs in at the SMTP server, and a file with the password; empty: no login.
    smtp_user: str = ""
    smtp_password_file: Path | None = None

    #: URL of an OpenTelemetry collector that takes OTLP over HTTP, to which traces are sent; empty: none are made.
    otlp_endpoint: Annotated[str, AfterValidator(_otlp_endpoint)] = ""
    #: File with headers for it, such as a token, one `Name: value` in a line; None: no header is added.
    otlp_headers_file: Path | None = None

    #: Days that the audit is kept; 0: for ever.
    audit_days: float = Field(default=400.0, ge=0)
    #: Days that jobs, nodes and their records are kept after their end, and bundles after their last use; 0: for ever.
    retention_days: float = Field(default=30.0, ge=0)
    #: Ended jobs that are kept at most, the newest ones.
    retention_jobs: int = Field(default=10_000, ge=0)
    #: Log lines, and events, of one job that are kept at most, the newest ones.
    retention_rows: int = Field(default=1_000_000, ge=1000)

    @property
    def nodes_have_agents(self) -> bool:
        """Whether nodes run an agent, which says when their machine is sick."""
        return self.cloud in ("azure", "azure-emulated", "kuberay")

    @property
    def database(self) -> str:
        """SQLAlchemy URL in force."""
        return self.database_url or f"sqlite:///{self.home / 'remora.db'}"

    @property
    def secrets_key(self) -> Path:
        """The file in force with the keys of secrets."""
        return (self.secrets_key_file or self.home / "secrets.key").expanduser()

    @property
    def allowed_alert_hosts(self) -> frozenset[str]:
        """Names in `alert_hosts`, in lower case."""
        return frozenset(name.lower() for part in self.alert_hosts.split(",") if (name := part.strip()))

    @property
    def azure(self) -> Path:
        """The file in force that says where in Azure the nodes stand."""
        name = "azure-emulated.json" if self.cloud == "azure-emulated" else "azure.json"
        return (self.azure_file or self.cluster_home / name).expanduser()

    @property
    def cluster_home(self) -> Path:
        """Folder of the cluster's head and nodes: its token, its certificates, the address of its head."""
        return home_of(self.home, self.cluster)

    def for_cluster(self, cluster: str) -> Settings:
        """The settings as they are for another cluster: where its nodes are made is said in its own folder."""
        if cluster == self.cluster:
            return self
        return self.model_copy(update={"cluster": cluster, "azure_file": None, "kuberay_file": None})

    @property
    def kuberay(self) -> Path:
        """The file in force that says in which RayCluster the nodes are made."""
        return (self.kuberay_file or self.cluster_home / "kuberay.yaml").expanduser()

    @property
    def warm(self) -> tuple[str, ...]:
        """Names of the modules in `warm_modules`; none where Remora's own packages come and go with a worker."""
        if self.cloud == "existing":
            return ()
        return tuple(name for part in self.warm_modules.split(",") if (name := part.strip()))

    @property
    def forked_modules(self) -> str:
        """Modules that one process of each node imports to fork Ray's workers, separated by commas; empty: none is."""
        # Machines of Azure, pods, and their heads are started by an image, where Ray starts its workers itself; so it
        # does in a cluster that Remora did not start.
        started_elsewhere = self.cloud in ("azure", "kuberay", "existing")
        return FORKED if self.fork_ray_workers and not started_elsewhere else ""

    @property
    def encrypts_ray(self) -> bool:
        """Whether a head that starts now, and all that joins it, speak TLS with each other."""
        return self.ray_tls == "on" or (not self.ray_tls and self.cloud == "azure")

    @property
    def measures_nodes(self) -> bool:
        """Whether nodes are measured before they get work."""
        return self.preflight == "on" or (not self.preflight and self.cloud in ("azure", "kuberay"))

    @property
    def storage(self) -> str:
        """Storage URL in force."""
        return self.storage_url or str(self.home / "storage")


def read_settings(given: dict[str, Any]) -> Settings | None:
    """Settings from `REMORA_*` with the given ones above them; None, with what is wrong logged, if they are bad."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        for problem in error.errors():
            name = ".".join(str(part) for part in problem["loc"])
            log.error("the setting %s is wrong: %s", name, problem["msg"])  # noqa: TRY400
    return None
