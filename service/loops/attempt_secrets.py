"""Gets the values of the secrets of attempts that start, and forgets them when their drivers have them.

Those in the database are read at once; those in key vaults in threads, as a vault may take seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from remora.states import EndReason
from service.loops.tick import Tick
from service.queue.secrets import refuses_value
from service.secrets.encryption import CannotOpen
from service.secrets.key_file import KeyFile, KeysUnusable
from service.secrets.key_vault import VaultAway, VaultRefused, read_secret
from service.secrets.resolving import Resolved, SecretMissing, resolve
from service.settings import Settings
from trainers.plan import AttemptPlan, DriverGone
from trainers.secret_values import chunks_of

#: Vaults that are asked at the same time, and seconds until one that did not give a secret is asked again.
_THREADS, _PAUSE_S = 4, 5.0

ReadVault = Callable[[Settings, str], str]


@dataclass(frozen=True)
class GivenSecrets:
    """What a driver gets: the values in chunks, and which versions they are."""

    chunks: tuple[bytes, ...] = field(default=(), repr=False)
    versions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NotYet:
    """The values are not there yet."""

    why: str


class AttemptSecrets:
    """The secrets of attempts whose drivers do not have them yet; for one thread."""

    def __init__(
        self,
        read_vault: ReadVault = read_secret,
        clock: Callable[[], float] = time.monotonic,
        threads: Executor | None = None,
    ) -> None:
        """`threads` ask vaults; None: some of its own."""
        self._read_vault = read_vault
        self._clock = clock
        self._threads = threads
        self._given: dict[str, GivenSecrets] = {}
        #: What the database said, and what the vaults are being asked for, by attempt.
        self._asked: dict[str, tuple[Resolved, Future[dict[str, str]]]] = {}
        #: Why a vault has not given a secret, and when it is asked again, by attempt.
        self._away: dict[str, tuple[str, float]] = {}

    def of(self, tick: Tick, project: str, plan: AttemptPlan) -> GivenSecrets | NotYet | DriverGone:
        """The secrets of a plan, the same ones until `forget`; DriverGone: it cannot have them.  Does not wait."""
        if not plan.secrets:
            return GivenSecrets()
        known = self._given.get(plan.attempt_id)
        if known is not None:
            return known
        try:
            resolved = self._resolved(tick, project, plan)
        except (SecretMissing, CannotOpen, VaultRefused) as error:
            return _gone(str(error))
        except KeysUnusable as error:
            # An operator puts it right, and then the attempt goes on.
            return NotYet(str(error))
        except VaultAway as error:
            self._away[plan.attempt_id] = str(error), self._clock() + _PAUSE_S
            return NotYet(str(error))
        if resolved is None:
            return NotYet(self._away.get(plan.attempt_id, ("a key vault has not answered yet", 0.0))[0])
        given = GivenSecrets(chunks_of(resolved.values), resolved.versions)
        self._given[plan.attempt_id] = given
        return given

    def forget_others(self, attempt_ids: Iterable[str]) -> None:
        """Drop the values of all other attempts."""
        for attempt_id in {*self._given, *self._asked, *self._away} - set(attempt_ids):
            self.forget(attempt_id)

    def forget(self, attempt_id: str) -> None:
        """Drop the values of an attempt; fine when there are none."""
        self._given.pop(attempt_id, None)
        self._asked.pop(attempt_id, None)
        self._away.pop(attempt_id, None)

    def _resolved(self, tick: Tick, project: str, plan: AttemptPlan) -> Resolved | None:
        """All values; None while vaults are asked.

        Raises SecretMissing, CannotOpen, KeysUnusable, VaultRefused, VaultAway; the next call asks again.
        """
        asked = self._asked.get(plan.attempt_id)
        if asked is None:
            if self._clock() < self._away.get(plan.attempt_id, ("", 0.0))[1]:
                return None
            tick.check()
            found = resolve(tick.database, KeyFile(tick.settings.secrets_key), project, list(plan.secrets))
            if not found.in_vaults:
                return found
            self._asked[plan.attempt_id] = found, self._ask(tick.settings, found.in_vaults)
            return None
        found, future = asked
        if not future.done():
            return None
        del self._asked[plan.attempt_id]
        return replace(found, values={**found.values, **future.result()}, in_vaults={})

    def _ask(self, settings: Settings, addresses: Mapping[str, str]) -> Future[dict[str, str]]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "key-vault")

        def read() -> dict[str, str]:
            values = {name: self._read_vault(settings, url) for name, url in addresses.items()}
            for name, value in values.items():
                if refusal := refuses_value(value):
                    raise VaultRefused(f"the secret {name} from a key vault cannot be used: {refusal}")
            return values

        return self._threads.submit(read)


def _gone(why: str) -> DriverGone:
    return DriverGone(EndReason.ENVIRONMENT_FAILED, f"environment.secrets: {why}"[:1000])
