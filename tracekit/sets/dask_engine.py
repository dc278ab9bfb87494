"""An engine that processes the members of a set on the workers of a Dask cluster."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, TypeVar

from tracekit.errors import TracekitError
from tracekit.sets.workers import Answer, call_with_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.sets.member import Member

Result = TypeVar("Result")
_AHEAD = 4
"""Number of tasks per thread of a worker that are submitted ahead, so that results that wait take little memory."""


class DaskEngine:
    """An engine that processes each capture as one task of a Dask cluster, whose workers open and read it.

    A task is repeated if its worker dies or if the file cannot be opened. The workers must be able to open the paths of
    the captures, and must have the same version of tracekit.

    Attributes:
        address: Address of the scheduler. None if a cluster is started on this machine.
        retries: Number of times that a task is repeated after an error of the operating system.
        workers: Number of workers of a cluster that is started on this machine. If None, Dask chooses it.
        skips_errors: True. Captures that cannot be read are left out, with a warning.
    """

    skips_errors = True

    def __init__(self, client: Any = None, *, retries: int = 2, workers: int | None = None) -> None:
        self.address: str | None = client if client is None or isinstance(client, str) else client.scheduler.address
        self.retries = retries
        self.workers = workers
        self._client = None if client is None or isinstance(client, str) else client

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the connection, which cannot be pickled."""
        return {**self.__dict__, "_client": None}

    def map(
        self, function: Callable[[Member], Result], members: Sequence[Member]
    ) -> Iterator[tuple[Member, Result | Exception]]:
        """Yield each member, in the order of the members, with the result of the function or its error.

        Raises:
            TracekitError: Dask is not installed.
        """
        task = functools.partial(_process_member, function)
        with self._connect() as client:
            threads = sum(client.nthreads().values()) or 1
            pending: list[tuple[Member, Any]] = []
            left = iter(members)
            while True:
                while len(pending) < _AHEAD * threads and (member := next(left, None)) is not None:
                    future = client.submit(task, member, pure=False, retries=self.retries)
                    pending.append((member, future))
                if not pending:
                    return
                member, future = pending.pop(0)
                yield member, _task_outcome(future, member)

    @contextlib.contextmanager
    def _connect(self) -> Iterator[Any]:
        """Yield a Dask client. A client and a cluster that this method created are closed afterwards."""
        if self._client is not None:
            yield self._client
            return
        distributed = _import_distributed()
        if self.address is not None:
            with distributed.Client(self.address) as client:
                yield client
            return
        options = {"n_workers": self.workers, "threads_per_worker": 1, "dashboard_address": None}
        with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
            yield client


def _import_distributed() -> Any:
    try:
        import distributed
    except ImportError as e:
        raise TracekitError(
            "the engine 'dask' needs the packages dask and distributed", hint="pip install 'tracekit[dask]'"
        ) from e
    return distributed


def _process_member(function: Callable[[Member], Result], member: Member) -> Answer[Result]:
    """Process a member, and return its result or error. An ``OSError`` is raised, so that Dask repeats the task."""
    result = call_with_warnings(function, member)
    if isinstance(result.outcome, OSError) and not isinstance(result.outcome, FileNotFoundError):
        raise result.outcome
    return result


def _task_outcome(future: Any, member: Member) -> Any:
    """Return the result or the error of a task. If a worker dies while it processes the member, return an error."""
    from distributed.scheduler import KilledWorker

    try:
        return future.result().deliver()
    except OSError as e:
        return e
    except KilledWorker:
        return TracekitError(
            "several workers died while they read it", path=member.path, hint="start workers with more memory"
        )
