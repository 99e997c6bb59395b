"""Whether the nodes of this cluster can run the image of a job, so that one that cannot start is refused at once."""

from __future__ import annotations

import shutil

from remora.spec.spec import JobSpec
from service.settings import Settings

#: Where a specification names one.
IMAGE_FIELD = "environment.image"


class NoImages(ValueError):
    """The nodes run no images; the message is one sentence."""


def check_image(settings: Settings, spec: JobSpec) -> None:
    """Raise NoImages when a new job asks for an image and the nodes of the cluster have no podman.

    Nodes that are processes of this machine have its programs; machines of Azure have podman by their own image, and
    one that lacks it ends the job with `environment_failed`.
    """
    if spec.environment.image is None or settings.cloud == "azure":
        return
    if settings.cloud == "kuberay":
        raise NoImages(
            "the nodes of this cluster are pods, which run no other images; list what the script needs in"
            " environment.pip, or have operators add it to the image of the pods"
        )
    if shutil.which("podman") is None:
        raise NoImages(
            "the nodes of this cluster have no podman, which runs images; have operators install podman on this"
            " machine, or list what the script needs in environment.pip"
        )
