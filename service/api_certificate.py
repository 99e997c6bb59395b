"""When the certificate of the API ends, for those who replace it."""

from __future__ import annotations

from pathlib import Path

from cluster.local.certificates import SAID_DAYS
from cluster.ray.certificates import CertificateUnusable, expires_at

_DAY_S = 86_400.0
#: Most bytes of its file that are read; the certificate itself stands first.
_MOST_BYTES = 2**18


def api_ends_soon(certificate: Path | None, now: float) -> str | None:
    """The sentence about a certificate (PEM) that ends within SAID_DAYS, None for every other and where there is none.

    `now` is in seconds since 1970.
    """
    if certificate is None:
        return None
    try:
        with certificate.open("rb") as file:
            end = expires_at(file.read(_MOST_BYTES))
    except (OSError, CertificateUnusable):
        return None
    days = (end - now) / _DAY_S
    if days > SAID_DAYS:
        return None
    when = f"ends in {days:.0f} days" if days >= 0 else f"ended {-days:.0f} days ago"
    return f'the certificate of the API {when}: replace it, as docs/day-two.md says under "Each year"'
