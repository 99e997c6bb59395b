"""Which image of a node is to be in the gallery, by which template it is built, and what is to be done next (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from deploy.azure.client.cluster_parts import image_group
from deploy.azure.client.image_source import ImageSource
from deploy.azure.client.resource_manager import Json

TEMPLATES = "Microsoft.VirtualMachineImages/imageTemplates"
IMAGE_VERSIONS = "Microsoft.Compute/galleries/images/versions"
BASE = {"type": "PlatformImage", "publisher": "microsoft-dsvm", "offer": "ubuntu-hpc", "sku": "2404"}
#: The machine that builds needs no GPU.
BUILD_SIZE = "Standard_D8s_v5"
DISK_GB = 128
#: Minutes after which Azure ends a build.
BUILD_MINUTES = 180
#: Of an image's version and of a template, the digest of what it is made of.
SOURCE_TAG = "remora:source"


class Step(Enum):
    """What is to be done next."""

    #: The gallery has the version, of this source or of one that is not known.
    KEEP = auto()
    #: The gallery has the version, of another source.
    KEEP_OTHER = auto()
    #: The gallery has the version, and could not store it.
    BROKEN = auto()
    #: Send the template, begin its run, or delete it.
    MAKE = auto()
    RUN = auto()
    REMOVE = auto()
    WAIT = auto()
    #: The run that is waited for has failed.
    FAILED = auto()


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """Which image is to be there, and with what it is built."""

    cluster: str
    version: str
    region: str
    #: Regions in which the gallery keeps it.
    regions: Sequence[str]
    #: Ids: of the image's definition, the builder's identity, and the subnets of its machine and of its container.
    image_id: str
    identity_id: str
    machine_subnet_id: str
    container_subnet_id: str
    #: Version of the base; `latest` is the newest when it is built.
    base: str
    #: Where releases are uploaded, with a slash at its end.
    releases_url: str

    @property
    def version_id(self) -> str:
        """Id of the version in the gallery."""
        return f"{self.image_id}/versions/{self.version}"

    @property
    def group_id(self) -> str:
        """Id of the resource group of the gallery and of templates."""
        return self.image_id.partition("/providers/")[0]

    @property
    def template_id(self) -> str:
        """Id of the template by which it is built, in the gallery's resource group."""
        return f"{self.group_id}/providers/{TEMPLATES}/remora-node-{self.version}"

    @property
    def staging_id(self) -> str:
        """Id of the resource group in which Azure Image Builder builds it, which the budget counts."""
        return f"{self.group_id.rpartition('/')[0]}/{image_group(self.cluster)}"


def source_url(plan: ImagePlan, source: ImageSource) -> str:
    """Where the archive of a source is uploaded.  Raises SourceTooLarge."""
    return f"{plan.releases_url}node-{source.archive_sha256[:12]}.tar.gz"


def template_body(plan: ImagePlan, source: ImageSource) -> Json:
    """The document of the template, as Azure Image Builder takes it.  Raises SourceTooLarge."""
    archive = {"type": "File", "name": "source", "sourceUri": source_url(plan, source)}
    archive |= {"sha256Checksum": source.archive_sha256, "destination": "/tmp/remora.tar.gz"}  # noqa: S108
    target = {
        "type": "SharedImage",
        "runOutputName": "remora-node",
        "galleryImageId": plan.version_id,
        "targetRegions": [
            {"name": one, "replicaCount": 1, "storageAccountType": "Standard_LRS"} for one in plan.regions
        ],
        "artifactTags": {"remora:cluster": plan.cluster, SOURCE_TAG: source.digest},
    }
    network = {"subnetId": plan.machine_subnet_id, "containerInstanceSubnetId": plan.container_subnet_id}
    return {
        "location": plan.region,
        "tags": {"remora:cluster": plan.cluster, SOURCE_TAG: source.digest},
        "identity": {"type": "UserAssigned", "userAssignedIdentities": {plan.identity_id: {}}},
        "properties": {
            "buildTimeoutInMinutes": BUILD_MINUTES,
            "source": {**BASE, "version": plan.base},
            "customize": [archive, {"type": "Shell", "name": "image", "inline": list(source.steps)}],
            "distribute": [target],
            "vmProfile": {"vmSize": BUILD_SIZE, "osDiskSizeGB": DISK_GB, "vnetConfig": network},
            "stagingResourceGroup": plan.staging_id,
            "managedResourceTags": {"remora:cluster": plan.cluster},
        },
    }


def next_step(version: Json | None, template: Json | None, digest: str, asked: str | None) -> Step:
    """What is to be done, of what Azure shows (pure).

    `asked` is None before a run is waited for, then the time at which the run before that one began, empty where there
    was none.
    """
    stored, runs = state_of(version), template is not None and is_running(template)
    if version is not None and stored == "Succeeded" and not runs:
        known = (version.get("tags") or {}).get(SOURCE_TAG)
        return Step.KEEP if known in (None, digest) else Step.KEEP_OTHER
    if template is None:
        return {"": Step.MAKE, "Failed": Step.BROKEN}.get(stored, Step.WAIT)
    run = template["properties"].get("lastRunStatus") or {}
    if state_of(template) in ("Creating", "Updating", "Deleting") or runs:
        return Step.WAIT
    if state_of(template) != "Succeeded" or (template.get("tags") or {}).get(SOURCE_TAG) != digest:
        return Step.REMOVE
    if asked is None:
        return Step.BROKEN if stored == "Failed" else Step.RUN
    has_begun = run.get("startTime", "") != asked
    return Step.FAILED if has_begun and run.get("runState") != "Succeeded" else Step.WAIT


def next_version(names: Iterable[str]) -> str:
    """The version after the highest of these (pure)."""
    known = [tuple(map(int, one.split("."))) for one in names if re.fullmatch(r"\d{1,9}(\.\d{1,9}){2}", one)]
    major, minor, patch = max(known, default=(1, 0, -1))
    return f"{major}.{minor}.{patch + 1}"


def has_version(resources: Iterable[Mapping[str, Any]], version: str) -> bool:
    """Whether the version of the image is among resources."""
    return any(
        str(one["type"]).lower() == IMAGE_VERSIONS.lower() and str(one["id"]).endswith(f"/versions/{version}")
        for one in resources
    )


def is_running(template: Json) -> bool:
    """Whether a build of a template runs."""
    run = template["properties"].get("lastRunStatus") or {}
    return run.get("runState") in ("Running", "Canceling")


def state_of(document: Json | None) -> str:
    """How far Azure is with a document, empty where there is none."""
    return "" if document is None else str(document["properties"].get("provisioningState", "Succeeded"))
