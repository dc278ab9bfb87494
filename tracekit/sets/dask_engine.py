"""An engine that processes the members of a set on the workers of a Dask cluster."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tracekit.errors import TracekitError
from tracekit.sets.workers import MemberResult, call_and_collect_warnings
from tracekit.system.installation import create_extra_hint
from tracekit.system.targets import create_workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracekit.sets.member import Member

Result = TypeVar("Result")
_AHEAD = 4
"""Number of tasks per worker thread that are submitted in advance, so that waiting results take little memory."""
_MERGED = 16
"""Number of results that one task merges."""


class DaskEngine:
    """An engine that processes each capture as one task on a Dask cluster.

    The workers open the captures by their paths, and must have the same version of tracekit as this process. A task is
    repeated if its worker dies or if the file cannot be opened.

    Attributes:
        address: Address of the scheduler. None if a cluster is started on this machine.
        retries: Maximum number of times that a task is repeated after an error of the operating system.
        workers: Number of workers of a cluster that is started on this machine. If None, Dask chooses the number.
        skips_errors: True. Captures that cannot be read are skipped, with a warning.
    """

    skips_errors = True

    def __init__(self, client: Any = None, *, retries: int = 2, workers: int | None = None) -> None:
        self.address: str | None = client if client is None or isinstance(client, str) else client.scheduler.address
        self.retries = retries
        self.workers = workers
        self._client = None if client is None or isinstance(client, str) else client

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle, without the connection to the cluster, which cannot be pickled."""
        return {**self.__dict__, "_client": None}

    def map(
        self, function: Callable[[Member], Result], members: Sequence[Member]
    ) -> Iterator[tuple[Member, Result | Exception]]:
        """Apply a function to each member, and yield each member with its result or error, in the order of ``members``.

        Raises:
            TracekitError: Dask is not installed.
        """
        task = functools.partial(_process_member, function)
        with self._connect() as client:
            for member, future, _ in self._submit_tasks(client, task, members):
                yield member, _wait_for_result(future, member)

    def map_and_merge(
        self,
        function: Callable[[Member], Result],
        merge: Callable[[list[Result]], Result],
        members: Sequence[Member],
        progress: Callable[[int], None],
    ) -> tuple[Result | None, list[tuple[Member, Exception]]]:
        """Apply a function to each member, and merge the results on the workers, 16 at a time.

        Only the merged result is sent to this process. See ``MergingEngine`` for the arguments.

        Raises:
            TracekitError: Dask is not installed, or several workers died while they merged results.
        """
        task = functools.partial(_process_member, function)
        merging = functools.partial(_merge_results, merge)
        errors: list[tuple[Member, Exception]] = []
        with self._connect() as client:
            tree = _MergeTree(lambda tasks: client.submit(merging, tasks, pure=False, retries=self.retries))
            submitted = self._submit_tasks(client, task, members, submit_error_tasks=True)
            for done, (member, future, error_future) in enumerate(submitted, 1):
                failure = _wait_for_result(error_future, member)
                if failure is None:
                    tree.add_task(future)
                else:
                    errors.append((member, failure))
                progress(done)
            root = tree.submit_root_task()
            return None if root is None else _wait_for_merged_result(root), errors

    def _submit_tasks(
        self, client: Any, task: Callable[[Member], Any], members: Sequence[Member], *, submit_error_tasks: bool = False
    ) -> Iterator[tuple[Member, Any, Any]]:
        """Submit a task for each member, and yield each member with its future, in the order of ``members``.

        At most ``_AHEAD`` tasks per worker thread are submitted before their members are yielded.

        Args:
            client: The Dask client.
            task: Function that a worker calls with the member.
            members: The members to process.
            submit_error_tasks: Whether to submit a second task per member that returns only the error, so that the
                result can stay on the worker. The future of this task is the third item of each yielded tuple. If
                False, the item is None.
        """
        threads = sum(client.nthreads().values()) or 1
        pending: deque[tuple[Member, Any, Any]] = deque()
        left = iter(members)
        while True:
            while len(pending) < _AHEAD * threads and (member := next(left, None)) is not None:
                future = client.submit(task, member, pure=False, retries=self.retries)
                error_future = client.submit(_keep_only_error, future, pure=False) if submit_error_tasks else None
                pending.append((member, future, error_future))
            if not pending:
                return
            yield pending.popleft()

    @contextlib.contextmanager
    def _connect(self) -> Iterator[Any]:
        """Yield a Dask client. If this method creates the client or a cluster, they are closed afterwards."""
        if self._client is not None:
            yield self._client
            return
        distributed = _import_distributed()
        if self.address is not None:
            with distributed.Client(self.address) as client:
                yield client
            return
        import dask

        options = {"n_workers": self.workers, "threads_per_worker": 1, "dashboard_address": None}
        # Dask deletes folders that it considers abandoned in the folder of its temporary files.
        with (
            create_workspace(Path(tempfile.gettempdir())) as folder,
            dask.config.set({"temporary-directory": str(folder)}),
            distributed.LocalCluster(**options) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client


class _MergeTree:
    """A tree of tasks in which each inner task merges the results of ``_MERGED`` tasks of the level below.

    A merging task is submitted as soon as its level has enough tasks, so there are few unmerged results at any time.

    Args:
        merge: Function that submits a task that merges the results of the tasks in a list, and returns its future.
    """

    def __init__(self, merge: Callable[[list[Any]], Any]) -> None:
        self._merge = merge
        self._levels: list[list[Any]] = []

    def add_task(self, task: Any, level: int = 0) -> None:
        """Add the future of a task to a level of the tree. Results are merged in the order in which tasks are added."""
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append(task)
        if len(self._levels[level]) == _MERGED:
            tasks, self._levels[level] = self._levels[level], []
            self.add_task(self._merge(tasks), level + 1)

    def submit_root_task(self) -> Any:
        """Submit a task that merges all results, and return its future. Return None if there are no tasks."""
        left = [task for level in reversed(self._levels) for task in level]  # higher levels contain earlier results
        return self._merge(left) if left else None


def _import_distributed() -> Any:
    """Import and return the package ``distributed``.

    Raises:
        TracekitError: Dask is not installed.
    """
    try:
        import distributed
    except ImportError as e:
        raise TracekitError(
            "the engine 'dask' needs the packages dask and distributed", hint=create_extra_hint("dask")
        ) from e
    return distributed


def _process_member(function: Callable[[Member], Result], member: Member) -> MemberResult[Result]:
    """Return the result or error of a function for a member. I/O errors are raised, so that Dask repeats the task."""
    result = call_and_collect_warnings(function, member)
    error = result.outcome
    if isinstance(error, Exception) and any(
        isinstance(e, OSError) and not isinstance(e, FileNotFoundError) for e in (error, error.__cause__)
    ):
        raise error
    return result


def _keep_only_error(member_result: MemberResult[Any]) -> MemberResult[Any]:
    """Return the result of a member unchanged if it is an error. Otherwise, return an empty result.

    Workers then send errors to the client, but no results.
    """
    return member_result if isinstance(member_result.outcome, Exception) else MemberResult(None)


def _merge_results(
    merge: Callable[[list[Result]], Result], results: list[MemberResult[Result]]
) -> MemberResult[Result]:
    """Merge the results of several members into one result that has the warnings of all members."""
    outcomes = [r.outcome for r in results if not isinstance(r.outcome, Exception)]
    return MemberResult(merge(outcomes), tuple(text for r in results for text in r.warnings))


def _wait_for_result(future: Any, member: Member) -> Any:
    """Wait for a task, and return its result or its error, for example if several workers died during the task."""
    from distributed.scheduler import KilledWorker

    try:
        return future.result().reissue_warnings_and_get_outcome()
    except (TracekitError, OSError) as e:
        return e
    except KilledWorker:
        return TracekitError(
            "several workers died while they read this capture", path=member.path, hint="start workers with more memory"
        )


def _wait_for_merged_result(root_task: Any) -> Any:
    """Wait for the task that merges all results, and return its result.

    Raises:
        TracekitError: Several workers died.
    """
    from distributed.scheduler import KilledWorker

    try:
        return root_task.result().reissue_warnings_and_get_outcome()
    except KilledWorker as e:
        raise TracekitError(
            "several workers died while they merged results", hint="start workers with more memory"
        ) from e
