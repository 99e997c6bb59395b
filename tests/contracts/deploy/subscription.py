"""A subscription that the emulator plays, in which `deploy/azure/up` and `down` are run."""

from __future__ import annotations

import base64
import copy
import functools
import json
import os
from pathlib import Path
from typing import Any

from azure.identity import ManagedIdentityCredential

from cluster.azure.emulator.deployments.kinds import MACHINES, SECRETS, VAULTS
from cluster.azure.emulator.deployments.template import DEPLOYMENTS, Wanted
from cluster.azure.emulator.server import OPERATOR, SUBSCRIPTION, EmulatorServer
from deploy.azure.client import down, image, image_source, up

KEY = "ssh-ed25519 " + "A" * 68 + " operator"
ADDRESS = "203.0.113.7"


#: Of this checkout, which no test changes: to pack it takes longer than most tests.
_source = functools.cache(image_source.source_of)


class Subscription:
    """A context manager; everything in it is lost at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = EmulatorServer()
        self.resources = self.server.deployer.resources
        self.faults = self.server.cloud.faults
        #: Where `up` writes the certificate of the API's authority.
        self.authority = folder / "authority.pem"
        #: The subscription that the commands are called for.
        self.id = SUBSCRIPTION
        #: What the last call printed.
        self.said: list[str] = []

    def __enter__(self) -> Subscription:
        self.server.__enter__()
        self.key = self.folder / "key.pub"
        self.key.write_text(f"{KEY}\n")
        image.source_of = _source
        self._before = os.environ.get("AZURE_POD_IDENTITY_AUTHORITY_HOST")
        os.environ["AZURE_POD_IDENTITY_AUTHORITY_HOST"] = self.server.url
        return self

    def __exit__(self, *args: Any) -> None:
        if self._before is None:
            del os.environ["AZURE_POD_IDENTITY_AUTHORITY_HOST"]
        else:
            os.environ["AZURE_POD_IDENTITY_AUTHORITY_HOST"] = self._before
        image.source_of = image_source.source_of
        self.server.__exit__(None, None, None)

    # --- the two commands

    def common(self) -> list[str]:
        """Where both commands are to look."""
        return ["--subscription", self.id, "--endpoint", self.server.url, "--poll-s", "0.01"]

    def arguments(self, size: str = "trial", *more: str) -> list[str]:
        """Of `up`."""
        given = ["--size", size, "--region", "eastus", "--allow", ADDRESS, "--ssh-key", str(self.key)]
        given += ["--email", "team@example.com", "--set", f"operatorId={OPERATOR}"]
        given += ["--authority", str(self.authority)]
        return [*self.common(), *given, *more]

    def up(self, size: str = "trial", *more: str) -> int:
        """Call `up`; returns its exit code."""
        return self._called(self.arguments(size, *more))

    def call_up(self, *given: str) -> int:
        """Call `up` with these arguments, and with where the subscription is."""
        return self._called([*self.common(), "--set", f"operatorId={OPERATOR}", *given])

    def _called(self, arguments: list[str]) -> int:
        self.said = []
        return up.main(arguments, self.credential(), self.said.append)

    def credential(self) -> ManagedIdentityCredential:
        """The login of who calls."""
        return ManagedIdentityCredential()

    def down(self, cluster: str = "remora", answer: str | None = None) -> int:
        """Call `down` and confirm it, or give another answer."""
        self.said = []
        return down.main(
            [*self.common(), "--cluster", cluster],
            self.credential(),
            self.said.append,
            lambda _question: cluster if answer is None else answer,
        )

    def request(self) -> dict[str, Any]:
        """What `up` sends for a trial."""
        file = json.loads((up.FOLDER / "trial.parameters.json").read_text())
        given = {
            "region": "eastus",
            "operatorAddresses": [ADDRESS],
            "sshPublicKey": KEY,
            "operatorId": OPERATOR,
        }
        given |= {"notifyEmail": "team@example.com", "budgetStart": "2026-11-01T00:00:00Z"}
        parameters = file["parameters"] | {name: {"value": value} for name, value in given.items()}
        template = json.loads((up.FOLDER / "main.json").read_text())
        return {"location": "eastus", "properties": {"template": template, "parameters": parameters}}

    # --- what is there

    def shot(self) -> dict[str, Any]:
        """All resources but deployments, with what Azure does not show."""
        there = {one["id"]: copy.deepcopy(one) for one in self.resources if one["type"] != DEPLOYMENTS}
        return {**there, "hidden": copy.deepcopy(self.resources.hidden)}

    def leftovers(self) -> list[str]:
        """Ids of all that is there, deployments too."""
        return [*(one["id"] for one in self.resources), *self.server.deployer.all]

    def put_secret(self, name: str, value: str) -> None:
        """What an operator does with `az keyvault secret set`."""
        (vault,) = self.resources.of_type(VAULTS)
        body = {"name": name, "properties": {"value": value}}
        self.resources.put(Wanted(id=f"{vault['id']}/secrets/{name}", type=SECRETS, body=body))

    def outputs(self) -> dict[str, Any]:
        """What the deployment of the cluster `remora` says of itself, by name."""
        name = f"/subscriptions/{self.id}/providers/{DEPLOYMENTS}/remora-remora"
        return self.server.deployer.all[name].outputs

    def machine(self, name: str) -> dict[str, Any]:
        """The document of a machine's user data."""
        (one,) = [one for one in self.resources.of_type(MACHINES) if one["name"] == name]
        said = self.resources.hidden[one["id"].lower()]["userData"]
        document: dict[str, Any] = json.loads(base64.b64decode(said))
        return document
