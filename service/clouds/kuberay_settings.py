"""Reads where in Kubernetes the nodes are created, from the file that `REMORA_KUBERAY_FILE` names."""

from __future__ import annotations

from cluster.kuberay.settings import KubeRaySettings
from service.clouds.place_files import read_place
from service.settings import Settings


def read_kuberay_settings(settings: Settings) -> KubeRaySettings:
    """The settings in the file `settings.kuberay`, YAML or JSON.  Raises CloudUnusable when they cannot be read."""
    path = settings.kuberay
    missing = (
        f"there is no file {path} that says in which RayCluster the nodes are made: write it as docs/kubernetes.md"
        " says, or name another one in REMORA_KUBERAY_FILE"
    )
    return read_place(path, KubeRaySettings, missing)
