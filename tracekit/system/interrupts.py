"""Signal handlers of the command line, which clean up and exit unless the output is already complete.

Raising an exception from a signal handler is not enough: the exception may be raised during an import, in a library
that swallows it, or between two steps that belong together. The handler itself therefore runs the registered clean-up
functions, prints "interrupted" and ends the process with exit status 128 plus the signal number, as shells expect. As
soon as a complete output is moved to its target, signals are ignored, because the program is about to end.

Only the program ``tracekit`` calls ``install_signal_handlers``. A process that imports tracekit as a library keeps its
own handlers.
"""

from __future__ import annotations

import os

try:
    # the module signal imports enum and collections first, and a signal may arrive during that time
    import _signal as signal  # type: ignore[import-not-found]
except ImportError:
    import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
"""Names of the signals that end the program. Windows has no SIGHUP, and sends SIGBREAK for Ctrl-Break."""
INTERRUPTED = 130
"""Exit status after SIGINT (Ctrl-C): 128 plus the signal number 2."""
MESSAGE = b"tracekit: interrupted\n"

_cleanups: list[Callable[[], object]] = []
_complete = False


def install_signal_handlers() -> None:
    """Install the handler for signals that end the program. Signals that nohup or a shell ignores stay ignored."""
    for number in _list_signal_numbers():
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _clean_up_and_exit)


def ignore_signals() -> None:
    """Ignore further signals, because the program is about to exit.

    Signals with a handler other than tracekit's are unaffected.
    """
    for number in _list_signal_numbers():
        if signal.getsignal(number) is _clean_up_and_exit:
            signal.signal(number, signal.SIG_IGN)


class cleaning_up:  # noqa: N801 - used like a function
    """Context manager that registers a clean-up function, which runs if a signal ends the program in the block."""

    def __init__(self, cleanup: Callable[[], object]) -> None:
        self._cleanup = cleanup

    def __enter__(self) -> None:
        _cleanups.append(self._cleanup)

    def __exit__(self, *_: object) -> None:
        _cleanups.remove(self._cleanup)


class completing:  # noqa: N801 - used like a function
    """Context manager in which a complete output is moved to its target.

    Signals are ignored during the move. They are still ignored afterwards, unless the move fails.
    """

    def __enter__(self) -> None:
        global _complete
        self._before, _complete = _complete, True

    def __exit__(self, kind: object, *_: object) -> None:
        global _complete  # noqa: PLW0603
        if kind is not None:
            _complete = self._before


def mark_output_incomplete() -> None:
    """Mark the output of a command as incomplete, so that signals end the program again."""
    global _complete  # noqa: PLW0603
    _complete = False


def is_output_complete() -> bool:
    """Return whether the output of a command is complete. Signals that would end the program are then ignored."""
    return _complete


def _list_signal_numbers() -> Iterator[int]:
    for name in SIGNALS:
        number = getattr(signal, name, None)
        if number is not None:
            yield number


def _clean_up_and_exit(signal_number: int, _: object) -> None:
    if _complete:
        return
    ignore_signals()
    for cleanup in reversed(_cleanups):
        try:
            cleanup()
        except Exception:  # noqa: BLE001, S112 - the other clean-ups still have to run
            continue
    try:
        os.write(2, MESSAGE)
    finally:
        os._exit(128 + signal_number)
