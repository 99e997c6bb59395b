"""Issuers whose tokens the service accepts, as an operator writes them in `REMORA_OPENID` (pure)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from remora.loopback import is_loopback


def _secure(url: str) -> str:
    parts = urlsplit(url)
    if not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"{url[:200]!a} is no URL of an issuer, as https://login.example/tenant/v2.0 is")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname)):
        raise ValueError(
            f"{url[:200]!a} must begin with https://, or its keys could be exchanged on their way"
        )
    return url.rstrip("/")


#: Where an issuer is found: https, or http on this machine.
SecureUrl = Annotated[str, AfterValidator(_secure)]
ClaimName = Annotated[str, Field(min_length=1, max_length=100)]


class Issuer(BaseModel):
    """One issuer of tokens: OpenID Connect Discovery 1.0 gives its keys, RFC 9068 and RFC 7519 the claims."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: The claim `iss`, to the letter; its discovery document is found below it.
    issuer: SecureUrl
    #: The claim `aud` that a token for this service has.
    audience: Annotated[str, Field(min_length=1, max_length=500)]
    #: The application as which people are asked to sign in; None: this issuer is for programs.
    client_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    #: People sign in on the page, too: the issuer knows `https://HOST/v1/sign-in/NAME/answer` as a redirect URI.
    pages: bool = False
    #: File with the secret by which the service redeems codes there; None: the application is a public client.
    client_secret_file: Path | None = None
    #: What `remora login` asks for, and which of the tokens that it gets is shown to the service.
    scopes: tuple[Annotated[str, Field(min_length=1, max_length=500)], ...] = (
        "openid",
        "profile",
        "offline_access",
    )
    accepts: Literal["access_token", "id_token"] = "access_token"
    #: The claim that names a person or a program for ever; for Entra ID `oid`.
    subject_claim: ClaimName = "sub"
    #: The claim that is shown beside it.
    name_claim: ClaimName = "preferred_username"
    #: The claim with the groups: a list of texts.
    groups_claim: ClaimName = "groups"
    #: The claim `tid` that tokens must have; None: the issuer serves one tenant only.
    tenant: Annotated[str, Field(min_length=1, max_length=100)] | None = None

    @model_validator(mode="after")
    def _check_pages(self) -> Issuer:
        if self.pages and self.client_id is None:
            raise ValueError("people sign in on the page as a `client_id`, and there is none")
        if self.client_secret_file is not None and not self.pages:
            raise ValueError("a client_secret_file is for signing in on the page: it needs `pages`")
        return self
