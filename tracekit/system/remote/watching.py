"""Run an operation of a remote storage in a thread, and stop waiting for it if it makes no progress."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from collections.abc import Callable
Result = TypeVar("Result")
STALL_S = 60.0
"""Time in seconds in which a server must answer or send at least ``MIN_BYTES``."""
MIN_BYTES = 1 << 20
"""Number of bytes that a server must send in each ``STALL_S`` seconds of a download: 17 kB/s."""
LISTING_S = 300.0
"""Maximum time in seconds to list the files of a folder or pattern."""


class Listing(NamedTuple):
    """The files and folders that a URL refers to.

    Attributes:
        files: Sorted URLs of the files.
        folders: Sorted URLs of the folders inside the folder, or of the folders that match the pattern.
        is_folder: Whether the URL is that of a folder.
    """

    files: list[str]
    folders: list[str]
    is_folder: bool = False


class DownloadProgress:
    """The progress of a download, which the thread that downloads reports and the thread that waits observes."""

    def __init__(self) -> None:
        self.bytes = 0
        self._is_cancelled = False

    def add_bytes(self, count: int) -> None:
        """Record that bytes were received.

        Raises:
            InterruptedError: The download was cancelled. Nothing may be written any more.
        """
        self.bytes += count
        if self._is_cancelled:
            raise InterruptedError

    def cancel(self) -> None:
        """Make the next call of ``add_bytes`` raise an error, which ends the download."""
        self._is_cancelled = True


def run_download(function: Callable[[DownloadProgress], None], url: str) -> None:
    """Run a download in a thread, and return when it has ended.

    The thread is abandoned if the server stalls, because a blocking call cannot be interrupted. It then writes nothing
    more and does not delay the end of the program.

    Raises:
        TracekitError: The server sent less than ``MIN_BYTES`` in ``STALL_S`` seconds.
        Exception: The error of the download.
    """
    progress = DownloadProgress()
    thread = _WatchedThread(lambda: function(progress))
    before = 0
    try:
        while not thread.has_ended(STALL_S):
            if progress.bytes - before < MIN_BYTES:
                message = f"the server sent only {progress.bytes - before:,} bytes in {STALL_S:g} s"
                raise TracekitError(message, path=url, hint="try again later, or download the file yourself")
            before = progress.bytes
    finally:
        progress.cancel()
    thread.get_result()


def run_listing(function: Callable[[], Result], url: str) -> Result:
    """Run a function that lists files in a thread, and return its result.

    Raises:
        TracekitError: The function took more than ``LISTING_S`` seconds.
        Exception: The error of the function.
    """
    thread = _WatchedThread(function)
    if not thread.has_ended(LISTING_S):
        message = f"the storage did not list its files within {LISTING_S:g} s"
        raise TracekitError(message, path=url, hint="name the files instead of a folder or pattern, or try again later")
    return thread.get_result()


class _WatchedThread(Generic[Result]):
    """A daemon thread that runs a function and stores its result or error."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self._result: Result
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tracekit-remote", daemon=True)
        self._thread.start()

    def has_ended(self, timeout_s: float) -> bool:
        """Return whether the function has ended after at most ``timeout_s`` seconds."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def get_result(self) -> Result:
        """Return the result of the function, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as e:  # noqa: BLE001 - raised again in the thread that waits
            self._error = e
