"""The emulator as a server on the loopback: Resource Manager, tokens, key vault and the control API, on one port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from types import TracebackType

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from cluster.azure.emulator import image_builder_routes, machine_routes, retail, scale_set_routes
from cluster.azure.emulator.clock import Clock
from cluster.azure.emulator.control import Control
from cluster.azure.emulator.deployments.deployer import Deployer
from cluster.azure.emulator.deployments.resources import Resources
from cluster.azure.emulator.deployments.routes import Deployments
from cluster.azure.emulator.emulated_cloud import Cloud
from cluster.azure.emulator.front_end import ArmFrontEnd
from cluster.azure.emulator.image_builder import ImageBuilder
from cluster.azure.emulator.key_vault import KeyVault, Secrets, no_secrets
from cluster.azure.emulator.scale_sets import EmulatedScaleSets
from cluster.azure.emulator.tokens import Tokens

SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
GROUP = "remora-nodes"
REGION = "eastus"
TENANT = "99999999-9999-9999-9999-999999999999"
#: The object id of the person who deploys.
OPERATOR = "88888888-8888-8888-8888-888888888888"
#: Seconds that the server may take to end.
_PATIENCE_S = 30.0


def application(
    cloud: Cloud,
    clock: Clock,
    metadata: ASGIApp | None = None,
    secrets: Secrets = no_secrets,
    deployer: Deployer | None = None,
    region: str = REGION,
    group: str = GROUP,
    tokens: Tokens | None = None,
    subscription: str | None = None,
    images: ImageBuilder | None = None,
) -> Starlette:
    """The emulator for one cloud, whose nodes are in one `group` of one `region`.

    `metadata` answers requests below /metadata that are not about tokens.  With `subscription` no other one is there.

    `secrets` is what the key vault holds, besides what deployments of `deployer` put there.
    """
    deployer = deployer or _deployer(cloud)
    tokens = tokens or Tokens(cloud.faults, clock)
    images = images or ImageBuilder(deployer.resources, cloud.faults, deployer.blobs)
    front_end = ArmFrontEnd(cloud, tokens, clock, group, region, subscription)
    sets = EmulatedScaleSets(cloud)
    deployed = deployer.resources

    def secret(name: str) -> str | None:
        found = secrets(name)
        return deployed.secret(name) if found is None else found

    routes = [
        *machine_routes.routes(front_end),
        *scale_set_routes.routes(front_end, sets),
        tokens.route(),
        *KeyVault(secret, cloud.faults, tokens).routes(),
        retail.route(cloud.faults, region, cloud.sizes),
        *Control(cloud, sets, tokens, clock).routes(),
        *image_builder_routes.routes(front_end, images),
        *Deployments(front_end, deployer, tokens, TENANT).routes(),
    ]
    return Starlette(routes=[*routes, *([Mount("/metadata", metadata)] if metadata is not None else [])])


def _deployer(cloud: Cloud) -> Deployer:
    return Deployer(Resources(frozenset({OPERATOR})), cloud.faults, TENANT)


class EmulatorServer:
    """Runs in a thread of its own between `with` and its end; `url` is where it listens."""

    def __init__(
        self,
        cloud: Cloud | None = None,
        port: int = 0,
        metadata: ASGIApp | None = None,
        clock: Clock | None = None,
        passes_every_s: float | None = None,
        secrets: Secrets = no_secrets,
        region: str = REGION,
        group: str = GROUP,
        tokens: Tokens | None = None,
        subscription: str | None = None,
    ) -> None:
        """`port` 0 takes one that is free.  `secrets` is what the key vault holds, which is at the same address.

        Several servers are several places, each with its `region` and `group`, that accept the same `tokens`; one with
        a `subscription` knows no other one.
        What is due happens at the next request, and with `passes_every_s` also without one, at most that much later.
        """
        self.cloud = cloud or Cloud()
        self.clock = clock or Clock()
        self.tokens = tokens or Tokens(self.cloud.faults, self.clock)
        #: What templates were deployed.
        self.deployer = _deployer(self.cloud)
        #: Templates of images.
        self.images = ImageBuilder(self.deployer.resources, self.cloud.faults, self.deployer.blobs)
        config = uvicorn.Config(
            application(
                self.cloud,
                self.clock,
                metadata,
                secrets,
                self.deployer,
                region,
                group,
                self.tokens,
                subscription,
                self.images,
            ),
            host="127.0.0.1",
            port=port,
            log_level="critical",
            access_log=False,
            lifespan="off",
            date_header=False,
        )
        self._passes_every_s = passes_every_s
        self._server = uvicorn.Server(config)
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, name="azure-emulator", daemon=True)
        self.url = ""

    def __enter__(self) -> EmulatorServer:
        listening = self._server.config.bind_socket()
        # Connections have it from here.  Without it an answer's body waits for the acknowledgement of its head: 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # From here on connections wait in the socket's queue until the server runs.
        listening.listen(128)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.deployer.resources.url = self.url
        self._sockets = [listening]
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            if self._passes_every_s is not None:
                # In the loop that answers the requests: a cloud knows one thread only.
                stack.callback(asyncio.create_task(self._let_time_pass(self._passes_every_s)).cancel)
            await self._server.serve(sockets=self._sockets)

    async def _let_time_pass(self, every_s: float) -> None:
        while True:
            self.cloud.advance(self.clock())
            await asyncio.sleep(every_s)
