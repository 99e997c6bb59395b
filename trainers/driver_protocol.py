"""The number of the protocol between the service and the drivers of attempts, and which numbers go together (pure).

While a service is upgraded, drivers of the release before go on.  Both sides know one number and the one before.  A
service sends its number with the plan of an attempt; a driver answers with the number that it speaks.

Raise `PROTOCOL` by one with each change of what the two exchange (the calls of `trainers.driver.driver.Driver`,
`AttemptPlan`, `Record` and its bodies) that a release before does not understand, and keep the form before until the
next number.  What never changes: `Driver.protocol`, and `AttemptPlan.protocol`.
"""

from __future__ import annotations

#: What this release speaks.
PROTOCOL = 2
#: Of releases that knew no number.
FIRST = 1
#: What a service of this release takes from drivers, and a driver from the service.
SPOKEN = (PROTOCOL - 1, PROTOCOL)


def spoken_with(service: int) -> int | None:
    """What a driver of this release speaks with a service of that number; None: that one is too old."""
    return min(PROTOCOL, service) if service >= SPOKEN[0] else None


def refusal(driver: object) -> str | None:
    """Why a service of this release takes nothing from a driver that answers with that number; None: it takes it."""
    if type(driver) is int and driver in SPOKEN:
        return None
    return (
        f"The driver of this attempt speaks protocol {str(driver)[:20]}, and this release protocols"
        f" {SPOKEN[0]} and {SPOKEN[1]}: another driver goes on from the newest checkpoint."
    )
