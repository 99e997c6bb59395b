"""Reads secrets of Azure Key Vault with the service's own identity, for attempts that start.

What a project may name is a vault that the service's identity may read: give it those that are for jobs, and no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from service.clouds.azure_settings import INSTALL_AZURE, read_azure_settings
from service.clouds.place_files import CloudUnusable
from service.settings import Settings

if TYPE_CHECKING:
    from azure.core.exceptions import AzureError


class VaultRefused(Exception):
    """The vault does not give the secret, and will not later; the message is one sentence."""


class VaultAway(Exception):
    """The vault did not answer, or asks for patience; the message is one sentence."""


def read_secret(settings: Settings, url: str) -> str:
    """The value of the secret at this address, asked for once; takes seconds.  Raises VaultRefused, VaultAway."""
    try:
        from azure.core.exceptions import AzureError

        from cluster.node.vault import Vault, VaultUnusable
    except ImportError:
        raise VaultRefused(
            f"the service cannot read key vaults: install what it needs by {INSTALL_AZURE}"
        ) from None
    parts = urlsplit(url)
    where = f"{parts.scheme}://{parts.netloc}"
    _, _, name, *version = parts.path.split("/")
    client_id, is_developer = _identity(settings)
    try:
        vault = Vault(where, client_id, is_developer=is_developer)
    except VaultUnusable as error:
        raise VaultRefused(str(error)) from None
    try:
        value = vault.ask(name, version[0] if version else None)
    except AzureError as error:
        raise _failure(error, where, name) from None
    except ValueError as error:
        raise VaultRefused(f"the vault {where} does not answer as a vault does: {str(error)[:300]}") from None
    finally:
        vault.close()
    return value


def _failure(error: AzureError, where: str, name: str) -> VaultRefused | VaultAway:
    """What to raise for an error of Azure's client; nothing of an answer's body is in it."""
    status = getattr(error, "status_code", None)
    if status == 404:
        return VaultRefused(f"the vault {where} has no secret {name}, or not that version")
    if status == 403:
        return VaultRefused(
            f"the vault {where} refuses the service's identity: give it the role Key Vault Secrets User, and let the"
            " vault's firewall admit the service"
        )
    if status is not None:
        return VaultAway(f"the vault {where} answered {status}")
    first = str(error.message or type(error).__name__).strip().split("\n", 1)[0]
    return VaultAway(f"the vault {where} cannot be asked: {first[:300]}")


def _identity(settings: Settings) -> tuple[str | None, bool]:
    """The client id of the service's identity, and whether it is a login on this machine.  Raises VaultRefused."""
    if settings.cloud in ("local", "existing"):
        return None, True
    if settings.cloud == "kuberay":
        raise VaultRefused(
            "a service whose nodes are pods has no identity at a key vault: set the secret by its value instead"
        )
    try:
        place = read_azure_settings(settings)
    except CloudUnusable as error:
        raise VaultRefused(str(error)) from None
    return place.controller_client_id, place.developer_login
