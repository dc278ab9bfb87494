"""An engine that processes the members of a set on the workers of a Dask cluster."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from tracekit.errors import TracekitError
from tracekit.sets.workers import Answer, call_with_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.sets.member import Member

Result = TypeVar("Result")
_AHEAD = 4
"""Number of tasks per thread of a worker that are submitted ahead, so that results that wait take little memory."""
_MERGED = 16
"""Number of results that a task merges."""


class DaskEngine:
    """An engine that processes each capture as one task of a Dask cluster, whose workers open and read it.

    A task is repeated if its worker dies or if the file cannot be opened. The workers must be able to open the paths of
    the captures, and must have the same version of tracekit.

    Attributes:
        address: Address of the scheduler. None if a cluster is started on this machine.
        retries: Number of times that a task is repeated after an error of the operating system.
        workers: Number of workers of a cluster that is started on this machine. If None, Dask chooses it.
        skips_errors: True. Captures that cannot be read are skipped, with a warning.
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
            for member, future, _ in self._submitted(client, task, members):
                yield member, _task_outcome(future, member)

    def map_merged(
        self,
        function: Callable[[Member], Result],
        merge: Callable[[list[Result]], Result],
        members: Sequence[Member],
        progress: Callable[[int], None],
    ) -> tuple[Result | None, list[tuple[Member, Exception]]]:
        """Apply a function to each member, and merge the results on the workers, 16 at a time.

        Only the last result is sent to this process. See ``MergingEngine``.

        Raises:
            TracekitError: Dask is not installed, or several workers died while they merged results.
        """
        task = functools.partial(_process_member, function)
        merging = functools.partial(_merge_answers, merge)
        errors: list[tuple[Member, Exception]] = []
        with self._connect() as client:
            tree = _Tree(lambda tasks: client.submit(merging, tasks, pure=False, retries=self.retries))
            for done, (member, future, check) in enumerate(self._submitted(client, task, members, check=True), 1):
                failure = _task_outcome(check, member)
                if failure is None:
                    tree.add(future)
                else:
                    errors.append((member, failure))
                progress(done)
            root = tree.root()
            return None if root is None else _merged_result(root), errors

    def _submitted(
        self, client: Any, task: Callable[[Member], Any], members: Sequence[Member], *, check: bool = False
    ) -> Iterator[tuple[Member, Any, Any]]:
        """Yield each member, in the order of the members, with its task. Only a few tasks are submitted ahead.

        Args:
            client: The client.
            task: The function that computes the answer for a member.
            members: The members.
            check: Whether to submit also a task that returns only the error, so that the result stays on the worker.
        """
        threads = sum(client.nthreads().values()) or 1
        pending: deque[tuple[Member, Any, Any]] = deque()
        left = iter(members)
        while True:
            while len(pending) < _AHEAD * threads and (member := next(left, None)) is not None:
                future = client.submit(task, member, pure=False, retries=self.retries)
                pending.append((member, future, client.submit(_only_error, future, pure=False) if check else None))
            if not pending:
                return
            yield pending.popleft()

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


class _Tree:
    """Tasks that are merged, ``_MERGED`` at a time, as soon as there are as many of one level.

    A level merges the results of the level before. There are therefore few unmerged results at any time.

    Args:
        merge: Function that submits a task that merges the results of several tasks.
    """

    def __init__(self, merge: Callable[[list[Any]], Any]) -> None:
        self._merge = merge
        self._levels: list[list[Any]] = []

    def add(self, task: Any, level: int = 0) -> None:
        """Add the task whose result follows all earlier ones."""
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append(task)
        if len(self._levels[level]) == _MERGED:
            tasks, self._levels[level] = self._levels[level], []
            self.add(self._merge(tasks), level + 1)

    def root(self) -> Any:
        """Return the task whose result is that of all tasks. None if there are no tasks."""
        left = [task for level in reversed(self._levels) for task in level]  # higher levels contain earlier results
        return self._merge(left) if left else None


def _import_distributed() -> Any:
    try:
        import distributed
    except ImportError as e:
        raise TracekitError(
            "the engine 'dask' needs the packages dask and distributed", hint="pip install 'tracekit[dask]'"
        ) from e
    return distributed


def _process_member(function: Callable[[Member], Result], member: Member) -> Answer[Result]:
    """Process a member, and return its result or error. Errors of a file system are raised: Dask repeats the task."""
    result = call_with_warnings(function, member)
    error = result.outcome
    if isinstance(error, Exception) and any(
        isinstance(e, OSError) and not isinstance(e, FileNotFoundError) for e in (error, error.__cause__)
    ):
        raise error
    return result


def _only_error(answer: Answer[Any]) -> Answer[Any]:
    """Return the answer if it is an error. If not, return one without the result and the warnings."""
    return answer if isinstance(answer.outcome, Exception) else Answer(None)


def _merge_answers(merge: Callable[[list[Result]], Result], answers: list[Answer[Result]]) -> Answer[Result]:
    """Return the answer with the merged results, and with the warnings of all answers."""
    results = [a.outcome for a in answers if not isinstance(a.outcome, Exception)]
    return Answer(merge(results), tuple(text for a in answers for text in a.warnings))


def _task_outcome(future: Any, member: Member) -> Any:
    """Return the result or the error of a task. If a worker dies while it processes the member, return an error."""
    from distributed.scheduler import KilledWorker

    try:
        return future.result().deliver()
    except (TracekitError, OSError) as e:
        return e
    except KilledWorker:
        return TracekitError(
            "several workers died while they read it", path=member.path, hint="start workers with more memory"
        )


def _merged_result(root: Any) -> Any:
    """Return the result of the task that merges all others.

    Raises:
        TracekitError: Several workers died.
    """
    from distributed.scheduler import KilledWorker

    try:
        return root.result().deliver()
    except KilledWorker as e:
        raise TracekitError(
            "several workers died while they merged results", hint="start workers with more memory"
        ) from e
