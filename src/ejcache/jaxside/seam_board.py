"""The job's notice board: JAX's coordination service, which every process of a job can reach."""

from __future__ import annotations

from jax._src import distributed as jax_distributed

from ejcache.errors import StoreUnavailableError

__all__ = ["Board", "job_board"]


class Board:
    """Notes under names, for all processes of a job and for as long as it lasts. A note is never changed.

    Attributes:
        process: this process's number.
        processes: how many there are.
    """

    def __init__(self) -> None:
        state = jax_distributed.global_state
        self._client = state.client
        self.process = int(state.process_id or 0)
        self.processes = int(state.num_processes or 1)

    def post(self, name: str, text: str) -> bool:
        """Put up a note; False if one of that name is up. Of several processes exactly one gets True.

        Raises:
            StoreUnavailableError: the service cannot be reached.
        """
        try:
            self._client.key_value_set(name, text)
        except Exception as exc:
            if "ALREADY_EXISTS" in str(exc):
                return False
            raise StoreUnavailableError(f"the job's coordination service failed: {exc}") from exc
        return True

    def read(self, name: str, *, timeout: float) -> str | None:
        """The note of that name, or None if none is up within `timeout` seconds; raises as `post` does."""
        try:
            return str(self._client.blocking_key_value_get(name, max(1, int(timeout * 1000))))
        except Exception as exc:
            if "DEADLINE_EXCEEDED" in str(exc) or "NOT_FOUND" in str(exc):
                return None
            raise StoreUnavailableError(f"the job's coordination service failed: {exc}") from exc


def job_board() -> Board | None:
    """The board, or None for a program that is one process (`jax.distributed` was not initialised)."""
    state = jax_distributed.global_state
    if state.client is None or int(state.num_processes or 1) < 2:
        return None
    return Board()
