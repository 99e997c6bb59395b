"""Asks the service about storages, through the driver of a worker's attempt."""

from __future__ import annotations

from typing import Any

from trainers.granted_blobs import Ask
from trainers.job_storage import no_service
from trainers.storage import StorageError
from trainers.storage_grants import ANSWERED_S, StorageAnswer, StorageRequest


def ask_through(driver: Any) -> Ask:
    """Asks through this driver, from threads that may wait; None: there is no service."""
    if driver is None:
        return no_service
    # Not at the top: `remora dev` runs a worker without Ray, which takes a second to import.
    import ray

    def ask(request: StorageRequest) -> StorageAnswer:
        try:
            answer: StorageAnswer = ray.get(driver.storage_ask.remote(request), timeout=2 * ANSWERED_S)
        except ray.exceptions.RayError as error:
            raise StorageError("the service cannot be asked for a storage: the driver is gone") from error
        return answer

    return ask
