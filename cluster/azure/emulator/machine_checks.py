"""Checks of a requested machine's disk and security type, as the real Resource Manager makes them."""

from __future__ import annotations

from cluster.azure.catalogue import Size
from cluster.azure.emulator.emulated_cloud import Cloud, Json, Refused

#: Feature of a subscription without which the security type `Standard` is refused; ordinary ones lack it.
STANDARD_FEATURE = "Microsoft.Compute/UseStandardSecurityType"


def check_security(cloud: Cloud, profile: Json) -> None:
    """Raise Refused for a security type that the subscription has no feature for; `profile` is Azure's word."""
    wanted = (profile.get("securityProfile") or {}).get("securityType")
    if wanted == "Standard" and STANDARD_FEATURE not in cloud.features:
        said = "The value of parameter securityProfile.securityType is invalid."
        raise Refused(400, "InvalidParameter", said)


def check_disk(size: Size, profile: Json) -> None:
    """Raise Refused for an ephemeral disk that is too large for a machine of this size; `profile` is Azure's word."""
    disk = profile.get("storageProfile", {}).get("osDisk", {})
    ephemeral = disk.get("diffDiskSettings")
    if ephemeral is None:
        return
    placement = ephemeral.get("placement")
    most_gb = dict(size.placements).get(placement)
    if most_gb is None:
        said = (
            f"The Diff Disk Placement of type '{placement}' is not supported for VM size {size.name}. Please request "
            "with different DiffDiskPlacement or use a different VM Sku which supports the current DiffDiskPlacement "
            "in the request."
        )
        raise Refused(409, "NotSupported", said)
    if int(disk.get("diskSizeGB", 0)) > most_gb:
        said = (
            f"OS disk of Ephemeral VM with size greater than {most_gb} GB is not allowed for VM size {size.name} when "
            f"the DiffDiskPlacement is {placement}. Please refer to https://aka.ms/Ephemeral for more details."
        )
        raise Refused(409, "NotSupported", said)
