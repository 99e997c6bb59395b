"""The image of a node: Azure Image Builder makes it where the gallery lacks its version, and no version twice.

What is to be done next is decided of what Azure shows (`next_step`), so that a call goes on with what another began.
docs/decisions/0223-the-image-of-a-node-is-built-by-up.md
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from deploy.azure.client.cluster_parts import ClusterParts, path_of
from deploy.azure.client.image_plan import (
    BUILD_MINUTES,
    TEMPLATES,
    ImagePlan,
    Step,
    is_running,
    next_step,
    next_version,
    source_url,
    state_of,
    template_body,
)
from deploy.azure.client.image_source import ImageSource, SourceTooLarge, source_of
from deploy.azure.client.registrations import register
from deploy.azure.client.resource_manager import VERSIONS, Json, Refused, ResourceManager, with_new_role

#: What Azure Image Builder runs in, and what a subscription has to be registered for.
PROVIDERS = ("Microsoft.VirtualMachineImages", "Microsoft.ContainerInstance")
#: Seconds for which a build is waited for: longer than Azure lets it run, with its begin and its end.
_PATIENCE_S = 60.0 * (BUILD_MINUTES + 60)
#: Seconds for which a template is sent again while Azure does not know the new roles of its identity.
_ROLE_S = 600.0
_MOST_SAID = 500

Say = Callable[[str], None]


def build_image(
    manager: ResourceManager,
    outputs: Mapping[str, Any],
    *,
    version: str,
    regions: Sequence[str],
    cluster: str,
    base: str,
    poll_s: float,
    say: Say,
) -> None:
    """Let the gallery have a version of the image; `outputs` are those of the deployment.

    It is built in the first of the regions, and copied to the others.  Raises Refused.
    """
    try:
        source = source_of()
    except (OSError, ValueError) as error:
        raise Refused(f"what the image is made of cannot be read from this checkout: {error}") from None
    plan = ImagePlan(
        cluster=cluster,
        version=version,
        region=regions[0],
        regions=regions,
        image_id=outputs["imageId"],
        identity_id=outputs["builderIdentityId"],
        machine_subnet_id=outputs["nodesSubnetId"],
        container_subnet_id=outputs["builderSubnetId"],
        base=base,
        releases_url=f"{outputs['blobEndpoint']}releases/",
    )
    ImageBuild(manager, plan, source, poll_s, say).run()


class ImageBuild:
    """Lets one version of the image be built, or waits for what an earlier call has begun."""

    def __init__(
        self, manager: ResourceManager, plan: ImagePlan, source: ImageSource, poll_s: float, say: Say
    ) -> None:
        self._manager = manager
        self._plan = plan
        self._source = source
        self._poll_s = poll_s
        self._say = say
        self._asked: str | None = None
        self._made_at: float | None = None
        self._said: set[str] = set()

    def run(self) -> None:
        """Return when the gallery has the version.  Raises Refused."""
        given_up_at = time.monotonic() + _PATIENCE_S
        while time.monotonic() < given_up_at:
            # In this order: what a run that has ended made is there when the version is looked for.
            template = self._manager.get(self._plan.template_id, VERSIONS["imageTemplates"])
            version = self._manager.get(self._plan.version_id, VERSIONS["galleries"])
            step = next_step(version, template, self._source.digest, self._asked)
            if step in (Step.KEEP, Step.KEEP_OTHER):
                self._end(template, step)
                return
            self._do(step, template)
        raise Refused(f"the image {self._plan.version} is not built after {_PATIENCE_S / 3600:g} hours")

    def _do(self, step: Step, template: Json | None) -> None:
        match step:
            case Step.MAKE:
                self._make()
            case Step.RUN if template is not None:
                self._begin(template)
            case Step.REMOVE if template is not None:
                self._remove(template)
            case Step.FAILED if template is not None:
                raise Refused(self._why(template))
            case Step.BROKEN:
                raise Refused(
                    f"the gallery could not store the image {self._plan.version}, and takes no version twice: build"
                    f" another one with --set imageVersion={self._after()}"
                )
            case _:
                self._wait(template)

    def _make(self) -> None:
        register(self._manager, self._manager.root, PROVIDERS, self._poll_s, self._say)
        try:
            url, archive = source_url(self._plan, self._source), self._source.archive
        except SourceTooLarge as problem:
            raise Refused(str(problem)) from None
        if not self._has_free_group():
            time.sleep(self._poll_s)
            return
        with_new_role(lambda: self._manager.upload(url, archive), self._poll_s)
        if self._made_at is None:
            self._made_at = time.monotonic()
            self._say(f"the image {self._plan.version} of a node is built, which takes about an hour")
        body = template_body(self._plan, self._source)
        self._manager.put(self._plan.template_id, VERSIONS["imageTemplates"], body)

    def _has_free_group(self) -> bool:
        """Whether no other version's template has the group of builds; one that does not run is deleted, or its group.

        Azure Image Builder makes the group, and takes none that is there.
        """
        for one in self._manager.all(f"{path_of({'id': self._plan.group_id})}/resources", VERSIONS["groups"]):
            if str(one["type"]).lower() == TEMPLATES.lower():
                self._free_from(str(one["id"]))
                return False
        groups = ClusterParts(self._manager, self._plan.cluster).groups()
        left = [one for one in groups if one["name"] == self._plan.staging_id.rpartition("/")[2]]
        for group in left:
            self._manager.delete(path_of(group), VERSIONS["groups"])
        return not left

    def _free_from(self, template_id: str) -> None:
        template = self._manager.get(template_id, VERSIONS["imageTemplates"])
        if template is None or state_of(template) in ("Creating", "Updating", "Deleting"):
            return
        if not is_running(template):
            self._manager.delete(template_id, VERSIONS["imageTemplates"])
        elif template_id not in self._said:
            self._said.add(template_id)
            self._say(f"another version is built, by {template_id.rpartition('/')[2]}, and is waited for")

    def _begin(self, template: Json) -> None:
        before = (template["properties"].get("lastRunStatus") or {}).get("startTime", "")
        try:
            self._manager.begin(f"{self._plan.template_id}/run", VERSIONS["imageTemplates"])
        except Refused as refused:
            # Another call began it at the same time.
            if refused.status != 409:
                raise
        self._asked = before

    def _remove(self, template: Json) -> None:
        """Delete a template that cannot be used, or is of another source: Azure changes none."""
        self._manager.delete(self._plan.template_id, VERSIONS["imageTemplates"])
        if self._made_at is not None:
            error = template["properties"].get("provisioningError") or {}
            said = f"{error.get('provisioningErrorCode', 'Failed')}: {_one_line(error.get('message'))}"
            is_new = time.monotonic() - self._made_at < _ROLE_S
            if not (is_new and re.search(r"authoriz|permission|forbidden|403", said, re.IGNORECASE)):
                raise Refused(f"Azure Image Builder refuses the image {self._plan.version}: {said}")
        time.sleep(self._poll_s)

    def _wait(self, template: Json | None) -> None:
        if template is not None and is_running(template):
            self._asked = self._asked or ""
            part = template["properties"]["lastRunStatus"].get("runSubState") or "Queued"
            if part not in self._said:
                self._said.add(part)
                self._say(f"  {part:<12} image {self._plan.version}")
        time.sleep(self._poll_s)

    def _end(self, template: Json | None, step: Step) -> None:
        if template is not None and state_of(template) != "Deleting":
            # With it go the storage of its logs and its resource group; the version stays.
            self._manager.delete(self._plan.template_id, VERSIONS["imageTemplates"])
        version = self._plan.version
        if step is Step.KEEP:
            self._say(f"the gallery has the image {version} of a node")
        else:
            self._say(
                f"the image {version} of a node is of another release than this checkout; for one of this release add"
                f" --set imageVersion={self._after()}"
            )

    def _after(self) -> str:
        versions = self._manager.all(f"{self._plan.image_id}/versions", VERSIONS["galleries"])
        return next_version([*(str(one["name"]) for one in versions), self._plan.version])

    def _why(self, template: Json) -> str:
        properties = template["properties"]
        group = str(properties.get("exactStagingResourceGroup", "")).rpartition("/")[2]
        return (
            f"the image {self._plan.version} was not built: {_one_line(properties['lastRunStatus'].get('message'))};"
            " its log is customization.log, in the container packerlogs of the storage account in the resource group"
            f" {group}; repair what it names, and call deploy/azure/up again"
        )


def remove_templates(
    manager: ResourceManager, resources: Iterable[Mapping[str, Any]], poll_s: float, say: Say
) -> None:
    """Delete the templates among resources, and end their builds first: Azure deletes none that runs.

    Raises Refused.
    """
    for one in resources:
        if str(one["type"]).lower() != TEMPLATES.lower():
            continue
        path, given_up_at, asked = str(one["id"]), time.monotonic() + _PATIENCE_S, set[str]()
        while (template := manager.get(path, VERSIONS["imageTemplates"])) is not None:
            if time.monotonic() > given_up_at:
                raise Refused(f"{one['name']} is still there after {_PATIENCE_S / 3600:g} hours")
            kind = "cancel" if is_running(template) else "delete"
            if kind not in asked:
                asked.add(kind)
                say(f"{'stopping the build of' if kind == 'cancel' else 'deleting'} {one['name']}")
                if kind == "cancel":
                    manager.begin(f"{path}/cancel", VERSIONS["imageTemplates"])
                else:
                    manager.delete(path, VERSIONS["imageTemplates"])
            time.sleep(poll_s)


def _one_line(text: Any) -> str:
    words = " ".join(str(text or "Azure gives no reason").split())
    return words if len(words) <= _MOST_SAID else f"{words[:_MOST_SAID]}..."
