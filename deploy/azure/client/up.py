"""deploy/azure/up: makes, or brings up to date, everything in Azure that one cluster needs before its first node.

It can be stopped and called again at any time: what is there stays, and what is not is made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from azure.core.credentials import TokenCredential
from azure.identity import DefaultAzureCredential

from cluster.ray.certificates import make_authority
from deploy.azure.client.certificate import ApiCertificate, CertificateOfApi, read_certificate
from deploy.azure.client.cluster_parts import ClusterParts
from deploy.azure.client.further_places import FurtherPlaces
from deploy.azure.client.image import build_image
from deploy.azure.client.image_plan import has_version
from deploy.azure.client.parameters import HOW, Wrong, chosen, read_set
from deploy.azure.client.places import PlacesRefused, read_places
from deploy.azure.client.resource_manager import (
    ENDPOINT,
    VERSIONS,
    Json,
    Refused,
    ResourceManager,
    explained,
    with_new_role,
)
from deploy.azure.client.what_if import lines_of

FOLDER = Path(__file__).parents[1]
_DEPLOYMENTS = "providers/Microsoft.Resources/deployments"
_MOST_WHEEL_BYTES = 100 * 2**20
_WHEEL = re.compile(r"remora-[A-Za-z0-9_.+!]{1,60}-py3-none-any\.whl")

Say = Callable[[str], None]


def main(arguments: list[str], credential: TokenCredential | None = None, say: Say = print) -> int:
    """0: done; 1: Azure refused; 2: the parameters cannot be used; 130: stopped by Ctrl-C."""
    options = _options(arguments)
    try:
        template = json.loads((FOLDER / "main.json").read_text())
        values = _values(options, template)
        wheel = _wheel(options.wheel)
        given = _given_certificate(options.certificate, values)
    except (Wrong, PlacesRefused) as wrong:
        print(f"up: {wrong}", file=sys.stderr)
        return 2
    manager = ResourceManager(credential or DefaultAzureCredential(), options.subscription, options.endpoint)
    try:
        return _Up(manager, template, values, options, say).run(wheel, given)
    except (Wrong, PlacesRefused) as wrong:
        print(f"up: {wrong}", file=sys.stderr)
        return 2
    except Refused as refused:
        print(f"up: {refused}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "up: stopped; Azure goes on with what it has begun, and the next call waits for it",
            file=sys.stderr,
        )
        return 130
    finally:
        manager.close()


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="deploy/azure/up", description=__doc__)
    parser.add_argument("--subscription", required=True, help="id of the subscription")
    parser.add_argument(
        "--size", default="trial", help="trial, team, or a file of parameters; trial by default"
    )
    parser.add_argument("--cluster", help="name of the cluster; remora by default")
    parser.add_argument("--region", help="such as eastus")
    parser.add_argument(
        "--place",
        action="append",
        metavar="NAME=REGION[@SUBSCRIPTION]",
        help="another region or subscription for nodes, which stays until it is removed; repeat it",
    )
    parser.add_argument(
        "--remove-place", action="append", default=[], metavar="NAME", help="take a place without nodes away"
    )
    parser.add_argument(
        "--allow", action="append", help="address or network of people who may reach it; repeat it"
    )
    parser.add_argument("--ssh-key", type=Path, help="file with the public key for SSH")
    parser.add_argument("--email", help="where Azure writes when the budget is nearly spent")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="any other parameter"
    )
    parser.add_argument("--wheel", type=Path, help="release to install: dist/remora-*.whl, of `make wheel`")
    parser.add_argument(
        "--certificate", type=Path, help="file (PEM) with the certificate of the API, its chain and its key"
    )
    parser.add_argument(
        "--authority", type=Path, help="file that the certificate of the API's own authority is written to"
    )
    parser.add_argument("--image-base", default="latest", help="version of Azure's ubuntu-hpc image, of 2404")
    parser.add_argument("--without-image", action="store_true", help="let no image of a node be built")
    parser.add_argument("--what-if", action="store_true", help="print what would change, and change nothing")
    parser.add_argument("--endpoint", default=ENDPOINT, help=argparse.SUPPRESS)
    parser.add_argument("--poll-s", type=float, default=5.0, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _values(options: argparse.Namespace, template: Mapping[str, Any]) -> dict[str, Any]:
    given = read_set(options.set, template)
    if options.ssh_key is not None:
        given["sshPublicKey"] = _read(options.ssh_key, "the SSH key").strip()
    named = {
        "cluster": options.cluster,
        "region": options.region,
        "operatorAddresses": options.allow,
        "notifyEmail": options.email,
    }
    given |= {name: value for name, value in named.items() if value is not None}
    if options.place:
        given["furtherPlaces"] = read_places(options.place)
    path = Path(options.size)
    if options.size in ("trial", "team"):
        path = FOLDER / f"{options.size}.parameters.json"
    try:
        file = json.loads(_read(path, "the file of parameters"))
    except ValueError:
        raise Wrong(f"{path} is no JSON") from None
    if not re.fullmatch(r"[0-9a-f-]{36}", options.subscription.lower()):
        raise Wrong("--subscription has to be an id; list yours by: az account list --output table")
    return chosen(template, file, given)


def _read(path: Path, what: str) -> str:
    try:
        return path.expanduser().read_text()[: 2**20]
    except (OSError, ValueError) as error:
        raise Wrong(f"{what} cannot be read: {error}") from None


def _wheel(path: Path | None) -> tuple[str, bytes] | None:
    if path is None:
        return None
    if not _WHEEL.fullmatch(path.name):
        raise Wrong(f"{path.name} is no wheel of Remora; build one by: make wheel")
    try:
        if path.stat().st_size > _MOST_WHEEL_BYTES:
            raise Wrong(f"{path} is larger than {_MOST_WHEEL_BYTES >> 20} MiB")
        return path.name, path.read_bytes()
    except OSError as error:
        raise Wrong(f"the wheel cannot be read: {error}") from None


def _given_certificate(path: Path | None, values: Mapping[str, Any]) -> ApiCertificate | None:
    if path is None:
        return None
    if not values.get("publicApi"):
        raise Wrong("--certificate is for an API that other machines reach: add --set publicApi=true")
    return read_certificate(path, time.time())


class _Up:
    def __init__(
        self,
        manager: ResourceManager,
        template: Json,
        values: dict[str, Any],
        options: argparse.Namespace,
        say: Say,
    ) -> None:
        self._manager = manager
        self._template = template
        #: What is in the service's resource group before the deployment.
        self._inside: list[Json] = []
        self._values = values
        self._options = options
        self._say = say
        self._cluster = values.get("cluster", "remora")
        self._image_version: str = values.get(
            "imageVersion", template["parameters"]["imageVersion"]["defaultValue"]
        )
        self._deployment = f"{manager.root}/{_DEPLOYMENTS}/remora-{self._cluster}"
        self._parts = ClusterParts(manager, self._cluster)
        self._places = FurtherPlaces(manager, self._cluster, say, options.poll_s)

    def run(self, wheel: tuple[str, bytes] | None, given: ApiCertificate | None = None) -> int:
        """Find out what is there, then deploy."""
        self._check_subscription(self._manager.subscription)
        # Refuses those that are not the cluster's.
        self._parts.groups()
        if not self._options.what_if:
            self._follow_the_one_that_runs()
        self._values |= self._found()
        body = self._body()
        if self._options.what_if:
            # The answer may have the same texts as the template, and no secret: Azure leaves these out.
            answer = self._manager.post(f"{self._deployment}/whatIf", VERSIONS["deployments"], body)
            if answer.get("status") == "Failed":
                raise Refused(explained(answer["error"]))
            for line in [*lines_of(answer, self._manager.subscription), *self._more_that_would_be()]:
                self._say(line)
            return 0
        self._places.register()
        self._manager.post(f"{self._deployment}/validate", VERSIONS["deployments"], body)
        self._say(f"{self._where()}: the template is valid; it is carried out")
        self._manager.put(self._deployment, VERSIONS["deployments"], body)
        document = self._follow()
        properties = document["properties"]
        if properties["provisioningState"] != "Succeeded":
            raise Refused(explained(properties.get("error") or {"code": properties["provisioningState"]}))
        outputs = {name: one["value"] for name, one in (properties.get("outputs") or {}).items()}
        self._places.remove(self._options.remove_place)
        if wheel is not None:
            self._upload(outputs["blobEndpoint"], *wheel)
        login = self._certificate(outputs, given) if self._values.get("publicApi") else ""
        self._say_what_is_next(outputs, wheel is not None, login)
        if not self._options.without_image:
            self._image(outputs)
        self._places.replicate(outputs["gallery"], self._image_version, self._values["region"])
        return 0

    def _where(self) -> str:
        return f"remora-{self._cluster} in {self._values['region']}"

    def _check_subscription(self, id: str) -> None:
        document = self._manager.get(f"/subscriptions/{id}", VERSIONS["subscriptions"])
        if document is None or document.get("state") not in ("Enabled", "Warned"):
            state = "not visible to this login" if document is None else f"{document.get('state')}"
            raise Refused(f"the subscription {id} is {state}; see: az account list")

    # --- what is there already

    def _found(self) -> dict[str, Any]:
        """The parameters that depend on what is there: secrets only where there are none, and when the budget began."""
        group = f"{self._manager.root}/resourcegroups/remora-{self._cluster}"
        inside = self._inside = list(self._manager.all(f"{group}/resources", VERSIONS["groups"]))
        vault = _first(inside, "Microsoft.KeyVault/vaults")
        found: dict[str, Any] = {
            "budgetStart": self._budget_start(self._parts.budget_path(self._manager.root)),
            **self._places.parameters(
                self._values.get("furtherPlaces", []),
                self._options.remove_place,
                self._check_subscription,
                self._budget_start,
            ),
        }
        if "operatorId" not in self._values:
            found["operatorId"] = self._manager.principal()
            if not found["operatorId"]:
                raise Wrong(
                    f"the login's token does not say whose it is; say who deploys: {HOW['operatorId']}"
                )
        if not self._has_secret(vault, "ray-token"):
            found["rayToken"] = secrets.token_hex(32)
        if not self._has_secret(vault, "ray-authority"):
            found["rayAuthority"] = make_authority(time.time()).joined().decode()
        if self._values.get("postgres"):
            server = _first(inside, "Microsoft.DBforPostgreSQL/flexibleServers")
            if server is None or not self._has_secret(vault, "postgres"):
                found["postgresPassword"] = secrets.token_urlsafe(32)
        if vault is None and self._has_deleted_vault():
            found["vaultCreateMode"] = "recover"
        return found

    def _has_secret(self, vault: Json | None, name: str) -> bool:
        if vault is None:
            return False
        path = f"{vault['id']}/secrets/remora-{self._cluster}-{name}"
        return self._manager.get(path, VERSIONS["vaults"]) is not None

    def _has_deleted_vault(self) -> bool:
        path = f"{self._manager.root}/providers/Microsoft.KeyVault/deletedVaults"
        return any(
            (one["properties"].get("tags") or {}).get("remora:cluster") == self._cluster
            for one in self._manager.all(path, VERSIONS["vaults"])
        )

    def _budget_start(self, path: str) -> str:
        budget = self._manager.get(path, VERSIONS["budgets"])
        if budget is not None:
            return str(budget["properties"]["timePeriod"]["startDate"])
        return datetime.now(UTC).strftime("%Y-%m-01T00:00:00Z")

    # --- the deployment

    def _body(self) -> Json:
        return {
            "location": self._values["region"],
            "properties": {
                "mode": "Incremental",
                "template": self._template,
                "parameters": {name: {"value": value} for name, value in self._values.items()},
            },
        }

    def _follow_the_one_that_runs(self) -> None:
        document = self._manager.get(self._deployment, VERSIONS["deployments"])
        if document is not None and document["properties"]["provisioningState"] in ("Running", "Accepted"):
            self._say(f"{self._where()}: an earlier deployment still runs and is waited for")
            self._follow()

    def _follow(self) -> Json:
        """Say what happens until the deployment has ended; returns its document."""
        said: set[tuple[str, str]] = set()
        while True:
            document = self._manager.get(self._deployment, VERSIONS["deployments"])
            if document is None:
                raise Refused("the deployment was deleted meanwhile")
            for operation in self._manager.all(f"{self._deployment}/operations", VERSIONS["deployments"]):
                properties = operation["properties"]
                target = properties.get("targetResource") or {}
                step = (str(target.get("resourceName", "")), str(properties["provisioningState"]))
                if target and step not in said:
                    said.add(step)
                    self._say(f"  {step[1]:<10} {step[0]}")
            if document["properties"]["provisioningState"] in ("Succeeded", "Failed", "Canceled"):
                return document
            time.sleep(self._options.poll_s)

    # --- the release

    def _upload(self, endpoint: str, name: str, content: bytes) -> None:
        """The wheel, and then the name and digest by which machines find it and know another build of its version."""
        current = f"{name} {hashlib.sha256(content).hexdigest()}"

        def both() -> None:
            self._manager.upload(f"{endpoint}releases/{name}", content)
            self._manager.upload(f"{endpoint}releases/current", current.encode())

        with_new_role(both, self._options.poll_s)
        self._say(f"{name} is uploaded; the machines install it within minutes")

    # --- what is no part of a template

    def _more_that_would_be(self) -> list[str]:
        lines = []
        if self._values.get("publicApi") and not self._has_secret(
            _first(self._inside, "Microsoft.KeyVault/vaults"), "tls"
        ):
            lines.append("+ the certificate of the API")
        if not self._options.without_image and not has_version(self._inside, self._image_version):
            lines.append(f"+ the image {self._image_version} of a node, which is built in about an hour")
        return lines

    def _certificate(self, outputs: Mapping[str, Any], given: ApiCertificate | None) -> str:
        """See to it that the API has one; returns what is to be written before a command of a client."""
        group, vault = outputs["serviceGroup"], outputs["vaultName"]
        id = f"{self._manager.root}/resourceGroups/{group}/providers/Microsoft.KeyVault/vaults/{vault}"
        place = (self._manager, self._cluster, id, outputs["vaultUri"], self._options.poll_s, self._say)
        certificate, host = CertificateOfApi(*place), str(outputs["serviceName"])
        if given is not None:
            certificate.store(given, host)
            return ""
        file = self._options.authority or Path(f"remora-{self._cluster}-authority.pem")
        return f"SSL_CERT_FILE={shlex.quote(str(file))} " if certificate.make(host, time.time(), file) else ""

    def _image(self, outputs: Mapping[str, Any]) -> None:
        build_image(
            self._manager,
            outputs,
            version=self._image_version,
            regions=self._places.regions(self._values["region"]),
            cluster=self._cluster,
            base=self._options.image_base,
            poll_s=self._options.poll_s,
            say=self._say,
        )

    def _say_what_is_next(self, outputs: Mapping[str, Any], is_installed: bool, login: str) -> None:
        address, name = outputs["serviceAddress"], outputs["serviceName"]
        self._say(f"{self._where()} is up: {address} ({name})")
        if not is_installed:
            self._say("no release was given: machines keep theirs; for one, add --wheel dist/remora-*.whl")
        if self._values.get("publicApi"):
            if login:
                self._say(f"clients trust the API by {login.strip()}: give them that file")
            self._say(f"next: {login}remora login --server https://{name}:7265")
            if self._values.get("serviceCount", 1) > 1:
                self._say(
                    f"while that process of the API is replaced, the other one answers: https://{name}:7266"
                )
        else:
            self._say(f"next: ssh -N -L 7265:127.0.0.1:7265 remora-admin@{address}")


def _first(resources: list[Json], kind: str) -> Json | None:
    return next((one for one in resources if one["type"].lower() == kind.lower()), None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
