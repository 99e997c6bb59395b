"""Azure Image Builder: templates of images, their checks and runs, and the versions that these put into a gallery.

https://learn.microsoft.com/azure/virtual-machines/linux/image-builder-json
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from cluster.azure.emulator.deployments.kinds import GROUPS
from cluster.azure.emulator.deployments.resources import Resources, subscription_of
from cluster.azure.emulator.deployments.template import Wanted
from cluster.azure.emulator.emulated_cloud import Json, Refused
from cluster.azure.emulator.faults import EmulatorFaults, FaultPoint

TEMPLATES = "Microsoft.VirtualMachineImages/imageTemplates"
_VERSIONS = "Microsoft.Compute/galleries/images/versions"
#: What a subscription has to be registered for before it builds images.
PROVIDERS = ("Microsoft.VirtualMachineImages", "Microsoft.ContainerInstance")
_PARTS = ("Building", "Customizing", "Distributing")
#: What a customizer of each type has to say.
_CUSTOMIZERS: Mapping[str, tuple[str, ...]] = {
    "File": ("sourceUri", "destination"),
    "Shell": ("inline",),
}


class ImageBuilder:
    """The templates of one subscription; what is due happens when it is looked at."""

    def __init__(self, resources: Resources, faults: EmulatorFaults, blobs: Mapping[str, bytes]) -> None:
        """`blobs` are those of the storage, by account, container and name."""
        self._resources = resources
        self._faults = faults
        self._blobs = blobs
        #: When the run of a template began, seconds since 1970.
        self._began: dict[str, float] = {}
        #: Seconds that a run takes.
        self.build_s = 0.0
        #: How many runs were begun.
        self.runs = 0

    def find(self, id: str, now: float) -> Json:
        """A template as it is now.  Raises Refused when there is none."""
        found = self._resources.find(id)
        if found is None:
            raise Refused(404, "ResourceNotFound", f"The Resource '{id}' was not found.")
        self._advance(found, now)
        return found

    def put(self, id: str, body: Json) -> Json:
        """Make a template, which is checked after it was accepted.  Raises Refused."""
        own = subscription_of(id)
        missing = [one for one in PROVIDERS if (own, one) not in self._resources.registered]
        if missing:
            said = f"The subscription is not registered to use namespace '{missing[0]}'."
            raise Refused(409, "MissingSubscriptionRegistration", said)
        if self._resources.find(id) is not None:
            said = "Update/Upgrade of image templates is currently not supported."
            raise Refused(409, "ConflictError", said)
        _check(body)
        group = self._staging_group(id, body)
        try:
            name = id.rpartition("/")[2]
            self._resources.put(Wanted(id=id, type=TEMPLATES, body={**body, "name": name}))
        except Refused:
            self._resources.delete_group(group, 0.0)
            raise
        found = self._resources.find(id)
        assert found is not None
        found["properties"] |= {"provisioningState": "Creating", "exactStagingResourceGroup": group}
        return found

    def _staging_group(self, id: str, body: Json) -> str:
        """Make the group in which a template's image is built; its id.  Raises Refused for one that is there."""
        root, _, rest = id.partition("/resourceGroups/")
        owner, name = rest.partition("/")[0], id.rpartition("/")[2]
        group = body["properties"].get("stagingResourceGroup") or f"{root}/resourceGroups/IT_{owner}_{name}"
        if self._resources.find(group) is not None:
            # It may be empty, and of no other template, where the identity is a contributor; ours is none.
            said = "The staging resource group exists, and the identity is no contributor of it."
            raise Refused(400, "ValidationFailed", said)
        tags = {"createdBy": "AzureVMImageBuilder", "imageTemplateName": name}
        tags["imageTemplateResourceGroupName"] = owner
        made = {"name": group.rpartition("/")[2], "location": body["location"], "tags": tags}
        self._resources.put(Wanted(id=group, type=GROUPS, body=made))
        return str(group)

    def run(self, id: str, now: float) -> None:
        """Begin to build the image of a template.  Raises Refused."""
        properties = self.find(id, now)["properties"]
        if properties["provisioningState"] != "Succeeded" or _runs(properties):
            raise Refused(409, "Conflict", "The template is not ready, or a run of it is in progress.")
        self.runs += 1
        began = datetime.fromtimestamp(now, UTC).isoformat()
        properties["lastRunStatus"] = {"startTime": began, "runState": "Running", "runSubState": _PARTS[0]}
        self._began[id.lower()] = now

    def cancel(self, id: str, now: float) -> None:
        """End a run.  Raises Refused when there is none."""
        properties = self.find(id, now)["properties"]
        if not _runs(properties):
            raise Refused(409, "Conflict", "No run of the template is in progress.")
        properties["lastRunStatus"] |= {"runState": "Canceled", "message": "The run was canceled."}

    def delete(self, id: str, now: float) -> bool:
        """Delete a template that is not running; True when it was there.  Raises Refused."""
        found = self._resources.find(id)
        if found is None:
            return False
        self._advance(found, now)
        if _runs(found["properties"]):
            raise Refused(409, "Conflict", "The template cannot be deleted while a run of it is in progress.")
        self._resources.delete_group(found["properties"]["exactStagingResourceGroup"], now)
        return self._resources.delete(id)

    def versions(self, path: str) -> list[Json]:
        """The versions of an image; `path` is that of their list."""
        return self._resources.of_type(_VERSIONS, f"{path}/")

    def _advance(self, template: Json, now: float) -> None:
        properties = template["properties"]
        if properties["provisioningState"] == "Creating":
            fault = self._faults.take(FaultPoint.IMAGE_CHECK)
            properties["provisioningState"] = "Succeeded" if fault is None else "Failed"
            if fault is not None:
                error = {"provisioningErrorCode": fault.code, "message": fault.message}
                properties["provisioningError"] = error
        elif _runs(properties):
            passed = now - self._began[template["id"].lower()]
            part = (
                _PARTS[min(int(passed / self.build_s * len(_PARTS)), len(_PARTS) - 1)] if self.build_s else ""
            )
            properties["lastRunStatus"]["runSubState"] = part
            if passed >= self.build_s:
                self._end(properties, now)

    def _end(self, properties: Json, now: float) -> None:
        status = properties["lastRunStatus"]
        status["endTime"] = datetime.fromtimestamp(now, UTC).isoformat()
        fault = self._faults.take(FaultPoint.IMAGE_BUILD)
        problem = self._problem(properties) if fault is None else fault.message
        if problem:
            status |= {"runState": "Failed", "message": problem}
            return
        for target in properties["distribute"]:
            self._distribute(target)
        status["runState"] = "Succeeded"

    def _problem(self, properties: Json) -> str:
        """Why a file cannot be brought to the machine; nothing where all can."""
        for one in properties.get("customize", []):
            if one["type"] == "File":
                content = self._blobs.get(one["sourceUri"].partition("/blobs/")[2])
                if content is None:
                    return f"Failed to download {one['sourceUri']}: 404."
                if one.get("sha256Checksum") not in ("", None, hashlib.sha256(content).hexdigest()):
                    return f"The checksum of {one['sourceUri']} does not match."
        return ""

    def _distribute(self, target: Json) -> None:
        regions = [{"name": one["name"], "regionalReplicaCount": 1} for one in target["targetRegions"]]
        body: Json = {
            "name": target["galleryImageId"].rpartition("/")[2],
            "location": target["targetRegions"][0]["name"],
            "tags": dict(target.get("artifactTags", {})),
            "properties": {"provisioningState": "Succeeded", "publishingProfile": {"targetRegions": regions}},
        }
        self._resources.put(Wanted(id=target["galleryImageId"], type=_VERSIONS, body=body))


def _runs(properties: Json) -> bool:
    return bool(properties.get("lastRunStatus", {}).get("runState") == "Running")


def _check(body: Json) -> None:
    """Raise Refused for a document that Azure refuses at once."""
    try:
        identities = body["identity"]["userAssignedIdentities"]
        properties = body["properties"]
        source, targets = properties["source"], properties["distribute"]
        network = properties.get("vmProfile", {}).get("vnetConfig", {})
        problem = "exactly one identity is supported" if len(identities) != 1 else ""
        for one in properties.get("customize", []):
            if not all(one.get(word) for word in _CUSTOMIZERS[one["type"]]):
                problem = f"a customizer of the type {one['type']} lacks what it needs"
        if source["type"] != "PlatformImage" or not source["version"] or not targets:
            problem = "the source or the distributor is not valid"
        for one in targets:
            if not re.fullmatch(r"[A-Za-z0-9-_.]{1,64}", one["runOutputName"]) or not one["targetRegions"]:
                problem = "a distributor needs a name of its run and a region"
            if one["type"] != "SharedImage" or "/images/" not in one["galleryImageId"]:
                problem = "the emulator distributes to a gallery alone"
        if network.get("containerInstanceSubnetId") and not network.get("subnetId"):
            problem = "containerInstanceSubnetId may be specified only if subnetId is, too"
    except (KeyError, TypeError, AttributeError) as error:
        raise Refused(400, "InvalidRequestContent", f"The request content was invalid: {error}.") from error
    if problem:
        raise Refused(400, "ValidationFailed", f"The image template is not valid: {problem}.")
