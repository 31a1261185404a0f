"""Uses JAX's coordination service: a key-value store that every process of a `jax.distributed` job can reach.

The service keeps a value under a name for as long as the job runs and refuses to change it. A value that several
processes try to set is therefore the same for all of them: exactly one of them sets it, and the others read that one.
"""

from __future__ import annotations

import base64
from typing import Any, Final, NamedTuple

import jax

from ejcache.errors import StoreUnavailableError
from ejcache.jax_integration.seam.job import PART, jax_distributed, process_index, processes_of_job
from ejcache.util.log import LONG_WAIT, say_waiting


def initialize_job() -> None:
    """Join the job of this process, as its environment describes it, unless it has joined already."""
    if jax_distributed.global_state.client is None:
        jax.distributed.initialize()


WITHDRAWN: Final = b"-"
"""The value of a name whose owner has nothing to send, so that the processes that wait for it stop waiting."""


class CoordinationClient:
    """Values under names, for all processes of a job. Safe to use from several threads.

    Args:
        client: JAX's own client of the service.
        process: the index of this process.
        processes: how many processes the job has.
        say_after: seconds of waiting after which a line says for what.
    """

    def __init__(self, client: Any, *, process: int = 0, processes: int = 1, say_after: float = LONG_WAIT) -> None:
        self._client = _Texts(client) if not hasattr(type(client), "key_value_try_get_bytes") else client
        self.process = process
        self.processes = processes
        self._say_after = say_after

    def is_of_job(self, other: CoordinationClient) -> bool:
        """True if both are clients of one job."""
        return bool(self._client == other._client)

    def set_once(self, name: str, value: bytes) -> bool:
        """Set a value; False if the name has one. Of several processes that set a name, exactly one gets True.

        Raises:
            StoreUnavailableError: the service cannot be reached.
        """
        try:
            self._client.key_value_set_bytes(name, value)
        except Exception as exc:
            if "ALREADY_EXISTS" in str(exc):
                return False
            raise StoreUnavailableError(f"the job's coordination service failed: {exc}") from exc
        return True

    def get(self, name: str, *, timeout: float, what: str = "") -> bytes | None:
        """Return the value of a name, or None if no process sets it within `timeout` seconds.

        Args:
            name: of the value.
            timeout: seconds to wait at most.
            what: who is waited for, and what that process does; logged if it takes long.

        Raises:
            StoreUnavailableError: the service cannot be reached.
        """
        silent = min(timeout, self._say_after) if what else timeout
        value = self._get(name, silent)
        if value is not None or silent >= timeout:
            return value
        say_waiting(what, so_far=silent, limit=timeout)
        return self._get(name, timeout - silent)

    def _get(self, name: str, timeout: float) -> bytes | None:
        try:
            return bytes(self._client.blocking_key_value_get_bytes(name, max(1, int(timeout * 1000))))
        except Exception as exc:
            if "DEADLINE_EXCEEDED" in str(exc) or "NOT_FOUND" in str(exc):
                return None
            raise StoreUnavailableError(f"the job's coordination service failed: {exc}") from exc

    def peek(self, name: str) -> bytes | None:
        """Return the value that a name has now, or None.

        Raises:
            StoreUnavailableError: the service cannot be reached.
        """
        try:
            return bytes(self._client.key_value_try_get_bytes(name))
        except Exception as exc:
            if "NOT_FOUND" in str(exc) or "DEADLINE_EXCEEDED" in str(exc):
                return None
            raise StoreUnavailableError(f"the job's coordination service failed: {exc}") from exc


class _Texts(NamedTuple):
    """The client of JAX 0.4.38, whose functions that read bytes end the process: everything is sent as text."""

    client: Any

    def key_value_set_bytes(self, name: str, value: bytes) -> None:
        self.client.key_value_set(name, base64.b64encode(value).decode())

    def blocking_key_value_get_bytes(self, name: str, milliseconds: int) -> bytes:
        return base64.b64decode(self.client.blocking_key_value_get(name, milliseconds))

    def key_value_try_get_bytes(self, name: str) -> bytes:
        return self.blocking_key_value_get_bytes(name, 1)


def coordination_client() -> CoordinationClient | None:
    """Return the job's client; None in a program of one process and before `jax.distributed.initialize()`."""
    processes = processes_of_job()
    if processes < 2 or not PART.fits:
        return None
    return CoordinationClient(jax_distributed.global_state.client, process=process_index(), processes=processes)
