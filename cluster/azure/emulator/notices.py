"""Connects an emulated cloud with its metadata service, which announces evictions to the machines."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from cluster.azure.emulator.clock import Clock
from cluster.azure.emulator.emulated_cloud import Cloud, EmulatedMachine
from cluster.azure.emulator.imds import Announcement, MetadataServer


def metadata_of(cloud: Cloud, clock: Clock) -> MetadataServer:
    """The metadata service of all machines of a cloud, by the cloud's `clock`.

    A machine is announced its eviction as a Preempt; once it acknowledges that, it goes without further delay.
    """

    def compute(name: str) -> dict[str, Any]:
        machine = cloud.machines[name.lower()]
        tags = machine.body.get("tags", {})
        return {
            "name": machine.name,
            "vmScaleSetName": machine.instance_key[0] if machine.instance_key is not None else "",
            "vmSize": machine.size,
            "zone": machine.zone,
            "priority": machine.body["properties"].get("priority", "Regular"),
            "tagsList": [{"name": key, "value": value} for key, value in tags.items()],
        }

    metadata = MetadataServer(lambda name, _event_id: cloud.let_go(name, clock()), clock, compute)

    def tell(machine: EmulatedMachine, at: float) -> None:
        # The notice may come before it runs.
        metadata.add(machine.name)
        metadata.announce(machine.name, Announcement(notice_s=max(0.0, at - clock())))

    cloud.on_start.append(lambda machine: metadata.add(machine.name))
    cloud.on_notice.append(tell)
    cloud.on_end.append(lambda machine: metadata.remove(machine.name))
    return metadata


def metadata_url(emulator_url: str, name: str) -> str:
    """Where the machine of this name finds its metadata service, for `python -m cluster.node.agent --metadata-url`."""
    return f"{emulator_url}/metadata/machines/{quote(name, safe='')}"
