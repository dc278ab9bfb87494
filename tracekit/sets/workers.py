"""Call a function for a member of a set in another process, and return its result or error with its warnings."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tracekit.errors import TracekitError, TracekitWarning
from tracekit.system import memory, no_pandas

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.sets.member import Member

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class MemberResult(Generic[Result]):
    """The result or error of a function for one member, with the warnings that were issued.

    Attributes:
        outcome: The result of the function, or the ``TracekitError`` or ``OSError`` that it raised.
        warnings: The texts of the warnings of tracekit.
    """

    outcome: Result | Exception
    warnings: tuple[str, ...] = ()

    def reissue_warnings_and_get_outcome(self) -> Result | Exception:
        """Issue the recorded warnings again in this process, and return the result or error."""
        for text in self.warnings:
            warnings.warn(text, TracekitWarning, stacklevel=3)
        return self.outcome


def call_and_collect_warnings(
    function: Callable[[Member], Result], member: Member, memory_limit: int | None = None
) -> MemberResult[Result]:
    """Call a function for a member, and return its result or error together with its warnings.

    Args:
        function: The function.
        member: The member.
        memory_limit: Memory in bytes for the columns of the capture. None means half of the free memory.
    """
    limited = contextlib.nullcontext() if memory_limit is None else memory.limit_memory_of_process(memory_limit)
    with limited, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TracekitWarning)
        result = call_or_return_error(function, member)
    texts = [str(w.message) for w in caught if issubclass(w.category, TracekitWarning)]
    return MemberResult(result, tuple(texts))


def call_or_return_error(function: Callable[[Member], Result], member: Member) -> Result | Exception:
    """Call a function for a member, and return its result or the ``TracekitError`` or ``OSError`` that it raises."""
    try:
        return function(member)
    except (TracekitError, OSError) as e:
        return e


def check_picklable(function: Callable[..., Any]) -> None:
    """Check that a function can be pickled, so that it can be sent to another process.

    Raises:
        TracekitError: The function cannot be pickled.
    """
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        message = f"the function cannot be sent to another process: {e}"
        raise TracekitError(message, hint="use a function of a module, or functools.partial of one") from e


def initialize_worker(polars_threads: int, hide_pandas: bool) -> None:  # noqa: FBT001 - initializers take positions
    """Initialize a worker process, which exits when its parent process ends.

    Args:
        polars_threads: Number of threads that polars uses in the process, unless ``POLARS_MAX_THREADS`` is set.
        hide_pandas: Whether to prevent pyarrow from importing pandas.
    """
    import multiprocessing
    import signal

    os.environ.setdefault("POLARS_MAX_THREADS", str(polars_threads))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hide_pandas:
        no_pandas.hide_pandas()
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with_parent_process, args=(parent,), daemon=True).start()


def _exit_with_parent_process(parent: Any) -> None:
    """Wait until the parent process has ended, and then exit."""
    parent.join()
    os._exit(1)
