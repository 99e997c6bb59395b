"""Which security type a machine may ask for, as the real one checks it."""

from __future__ import annotations

from cluster.azure.emulator.state import Cloud, Json, Refused

#: Feature of a subscription without which the security type `Standard` is refused; ordinary ones lack it.
STANDARD_FEATURE = "Microsoft.Compute/UseStandardSecurityType"


def check_security(cloud: Cloud, profile: Json) -> None:
    """Raise Refused for a security type that the subscription has no feature for; `profile` is Azure's word."""
    wanted = (profile.get("securityProfile") or {}).get("securityType")
    if wanted == "Standard" and STANDARD_FEATURE not in cloud.features:
        said = "The value of parameter securityProfile.securityType is invalid."
        raise Refused(400, "InvalidParameter", said)
