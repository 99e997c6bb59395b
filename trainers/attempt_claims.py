"""Claims of attempts by drivers: one small file per attempt in the job's storage, which is written once.

The first driver that writes the file may start processes of the attempt, and no other one ever; an attempt that ended
before it had a driver is closed in the same way.  So a controller that was stopped for a while, and continues when
another one has ended the attempt, can make a driver that starts nothing.
"""

from __future__ import annotations

from trainers.storage import Storage

#: Content of the file of an attempt that shall have no driver.
_CLOSED = b"closed"


class Refused(Exception):
    """The attempt belongs to another driver, or is closed; the message says which."""


class Claims:
    """The claims on the attempts of one job.  Every method raises StorageError when the storage fails."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._folder = f"jobs/{job_id}/claims"

    def take(self, attempt_id: str, driver: str) -> None:
        """Claim the attempt for a driver of that name, which no other driver has ever had.

        Fine when repeated.  Raises Refused when another one was first.
        """
        name, content = f"{self._folder}/{attempt_id}", driver.encode()
        if self._storage.create_bytes(name, content):
            return
        owner = self._storage.read_bytes(name)
        if owner == _CLOSED:
            raise Refused("the attempt has ended already")
        if owner != content:
            raise Refused("the attempt belongs to another driver already")

    def close(self, attempt_id: str) -> None:
        """Let no driver claim the attempt from now on; one that has claimed it keeps it."""
        self._storage.create_bytes(f"{self._folder}/{attempt_id}", _CLOSED)
