"""Signal handlers of the command line: clean up and exit at once, unless the output is already complete.

Raising an exception from a signal handler is not enough: it may land in an import, in a library that swallows it, or
between two steps that belong together. So the handler itself runs the registered clean-ups, prints
"interrupted" and ends the process with the status that a shell expects, 128 plus the signal number. As soon as a
complete output is moved to its target, signals are ignored: the program is about to end anyway.

Only the program ``tracekit`` calls ``install_handlers``; a process that imports tracekit as a library keeps its own
handlers.
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

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
INTERRUPTED = 130
"""Exit status after Ctrl-C, as in a shell: 128 + 2."""
MESSAGE = b"tracekit: interrupted\n"

_cleanups: list[Callable[[], object]] = []
_complete = False


def install_handlers() -> None:
    """Install the handler for all signals that end the program, except those that are ignored, as under nohup."""
    for number in _signal_numbers():
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _handle_signal)


def ignore_signals() -> None:
    """Ignore further signals because the program has finished its work and is about to end."""
    for number in _signal_numbers():
        if signal.getsignal(number) is _handle_signal:
            signal.signal(number, signal.SIG_IGN)


class cleaning_up:  # noqa: N801 - used like a function
    """Context manager that registers a clean-up to run if a signal ends the program."""

    def __init__(self, cleanup: Callable[[], object]) -> None:
        self._cleanup = cleanup

    def __enter__(self) -> None:
        _cleanups.append(self._cleanup)

    def __exit__(self, *_: object) -> None:
        _cleanups.remove(self._cleanup)


class completing:  # noqa: N801 - used like a function
    """Context manager for moving a complete output to its target, which ignores signals from its start on."""

    def __enter__(self) -> None:
        global _complete
        self._before, _complete = _complete, True

    def __exit__(self, kind: object, *_: object) -> None:
        global _complete  # noqa: PLW0603
        if kind is not None:
            _complete = self._before


def reset() -> None:
    """Mark the output as incomplete, at the start of a command."""
    global _complete  # noqa: PLW0603
    _complete = False


def is_complete() -> bool:
    """Return whether the output is complete, so that an interruption has no effect."""
    return _complete


def _signal_numbers() -> Iterator[int]:
    for name in SIGNALS:
        number = getattr(signal, name, None)
        if number is not None:
            yield number


def _handle_signal(number: int, _: object) -> None:
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
        os._exit(128 + number)
