"""Bounds on an object store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreLimits:
    """Bounds on one store. Retries, waits and deletes are a remote store's; local files need none.

    `retry_seconds_max` is the total for one operation; an attempt that is under way when it
    passes may add its own connect and read timeouts.
    """

    retry_attempts_max: int = 10
    retry_seconds_max: float = 60.0
    retry_wait_seconds_max: float = 8.0
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 30.0
    deletes_in_flight_max: int = 4
    delete_batch_objects_max: int = 1000
