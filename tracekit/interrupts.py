"""What Ctrl-C and a request to end do to the program: it cleans up and exits at once, or finishes what is complete.

Raising an exception from a signal handler is not enough: it may land in an import, in a library that swallows it, or
between two steps that belong together. So the handler itself runs the clean-ups that are registered, says
"interrupted" and ends the process with the status that a shell expects, 128 plus the number of the signal. From the
moment at which a complete output is put in its place, signals are ignored: the program is about to end anyway.

Only the program ``tracekit`` calls ``watch``; a process that imports tracekit as a library keeps its own handlers.
"""

from __future__ import annotations

import os

try:
    # the module signal first imports enum and collections, and a signal may come meanwhile
    import _signal as signal  # type: ignore[import-not-found]
except ImportError:
    import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + 2, as of a shell."""
MESSAGE = b"tracekit: interrupted\n"

_cleanups: list[Callable[[], object]] = []
_complete = False


def watch() -> None:
    """Let each of the signals clean up and end this process, unless it is ignored, as under nohup."""
    for number in _numbers():
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _end)


def ignore() -> None:
    """Ignore the signals that ``watch`` watches: the program has done its work and ends."""
    for number in _numbers():
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_IGN)


class cleaning_up:  # noqa: N801 - used like a function
    """Context in which a signal that ends the program runs a clean-up first."""

    def __init__(self, cleanup: Callable[[], object]) -> None:
        self._cleanup = cleanup

    def __enter__(self) -> None:
        _cleanups.append(self._cleanup)

    def __exit__(self, *_: object) -> None:
        _cleanups.remove(self._cleanup)


class completing:  # noqa: N801 - used like a function
    """Context that puts a complete output in its place: signals are ignored from its begin on, unless it fails."""

    def __enter__(self) -> None:
        global _complete
        self._before, _complete = _complete, True

    def __exit__(self, kind: object, *_: object) -> None:
        global _complete  # noqa: PLW0603
        if kind is not None:
            _complete = self._before


def begin() -> None:
    """Note that a command begins: nothing is complete yet."""
    global _complete  # noqa: PLW0603
    _complete = False


def is_complete() -> bool:
    """Return whether the output is complete, so that an interruption no longer matters."""
    return _complete


def _numbers() -> Iterator[int]:
    for name in SIGNALS:
        number = getattr(signal, name, None)
        if number is not None:
            yield number


def _end(number: int, _: object) -> None:
    if _complete:
        return
    ignore()
    for cleanup in reversed(_cleanups):
        try:
            cleanup()
        except Exception:  # noqa: BLE001, S112 - the others are still to be run
            continue
    try:
        os.write(2, MESSAGE)
    finally:
        os._exit(128 + number)
