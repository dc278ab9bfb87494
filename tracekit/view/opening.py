"""Open the captures of a server in the background, and follow their files: new, replaced and growing ones.

The first capture is open when the server starts. A thread then opens the others one after the other, in the order in
which they are listed, and gives way to requests. Afterwards, it looks for changes of files every few seconds. A file is
opened when it did not change between two looks, so that a file that is being written is left until it is complete.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import TracekitError
from tracekit.sets.paths import (
    CapturePaths,
    has_capture_suffix,
    is_folder_of_captures,
    is_pattern,
    list_candidates,
    locate_captures,
    warn_about_unreadable,
)
from tracekit.sets.ranks import name_uniquely
from tracekit.system.files import FileState
from tracekit.trace import load
from tracekit.view import ranks
from tracekit.view.captures import CLOSING_S, ViewedCaptures

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.trace import Layers, Trace

INTERVAL_S = 2.0
"""Seconds between two looks at the files."""
MAX_SHARE = 0.02
"""Maximum share of the time that is spent on looking at files. It is kept by longer intervals."""
MAX_WAIT_S = 0.25
"""Maximum time for which the opening of a capture waits for the requests that are being answered."""
_JOURNAL = "-journal"


class CaptureOpener:
    """A thread that opens captures, explains the first one unless they are ranks of a job, and follows their files.

    Args:
        captures: The captures of the server, to which the opened ones are added.
        named: The files, folders and patterns that the user named.
        from_: Format of the captures. If None, it is detected.
        cache: Whether columns are read from the cache and stored in it.
        layers: Where the ranges inside of replays of CUDA graphs come from, as in ``tracekit.load``.
    """

    def __init__(
        self,
        captures: ViewedCaptures,
        named: Iterable[Path],
        from_: str | None,
        *,
        cache: bool | None,
        layers: Layers | None = None,
    ) -> None:
        self._captures = captures
        self._named, self._from, self._cache = list(named), from_, cache
        self._layers = layers
        self._waiting: list[Path] = []
        self._states = _read_states(self._named)
        self._growing: dict[Path, FileState] = {}
        self._names: dict[Path, str] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracekit-captures", daemon=True)

    def open_first(self, *, strict: bool) -> None:
        """Locate all captures, and open the first one that can be read. With ``strict``, open all of them.

        Raises:
            TracekitError: No capture can be read, or ``strict`` is true and a capture cannot be read.
        """
        located = CapturePaths()
        for each in self._named:
            captures = _locate(each, self._from)
            located.update(captures)
            self._waiting += captures.urls
        if strict:
            located.raise_first_error()
        self._names.update(_name_captures([*located.urls, *located.errors]))
        for path, error in located.errors.items():
            self._captures.add_unreadable(self._names[path], error)
        for path in list(self._waiting):
            if not strict and len(self._captures):
                break
            try:
                self._open(path)
            except (TracekitError, OSError) as e:
                if strict:
                    raise
                located.urls.pop(path, None)
                located.errors[path] = e
        located.report_skipped()

    def open_others(self) -> None:
        """Open the captures that are not open yet. A warning names each capture that cannot be read."""
        for path in list(self._waiting):
            try:
                self._open(path)
            except (TracekitError, OSError) as e:
                warn_about_unreadable(path, e)

    def start(self) -> None:
        """Start the thread. It ends when the captures are closed."""
        self._captures.stop_background_work = self._stop
        self._thread.start()

    def _stop(self) -> bool:
        """Stop the thread, and return whether it has ended. A capture that is being read is not waited for long."""
        self._closing.set()
        self._thread.join(CLOSING_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        for path in list(self._waiting):
            if self._closing.is_set():
                return
            self._captures.wait_for_requests(MAX_WAIT_S)
            self._open_ignoring_errors(path)
        if ranks.get_rank_set(self._captures) is None:
            self._captures.explain_first()
        interval = INTERVAL_S
        while not self._closing.wait(interval):
            began = time.perf_counter()
            self.look_for_changes()
            interval = max(INTERVAL_S, (time.perf_counter() - began) / MAX_SHARE)

    def _open_ignoring_errors(self, path: Path, *, replace: bool = False) -> None:
        """Open a capture. If it cannot be read, the captures list the reason."""
        try:
            self._open(path, replace=replace)
        except Exception as e:  # noqa: BLE001 - the thread must go on with the other captures
            self._captures.add_unreadable(self._names[path], e)

    def _load(self, path: Path) -> Trace:
        return load(path, self._from, cache=self._cache, layers=self._layers)

    def _open(self, path: Path, *, replace: bool = False) -> None:
        """Open a capture. With ``replace``, it replaces the open captures with the same path.

        Raises:
            TracekitError: The capture cannot be read. The captures list the reason.
        """
        name, full = self._names[path], _make_absolute(path)
        try:
            with self._captures.opening:
                self._captures.add(name, self._load(path), full, replace=replace)
        except (TracekitError, OSError) as e:
            self._captures.add_unreadable(name, e)
            raise
        finally:
            if path in self._waiting:
                self._waiting.remove(path)
            self._captures.waiting = [self._names[each] for each in self._waiting]

    def look_for_changes(self) -> None:
        """Open the files that appeared or changed, and that did not change since the last look."""
        states = _read_states(self._named)
        changed = {path: state for path, state in states.items() if self._states.get(path) != state}
        complete = [path for path, state in changed.items() if self._growing.get(path) == state]
        complete = [path for path in complete if not path.with_name(path.name + _JOURNAL).exists()]
        growing = {path: state for path, state in changed.items() if path not in complete}
        self._growing = growing
        self._captures.growing = [path.name for path in growing if has_capture_suffix(path.name)]
        if complete:
            self._states.update({path: changed[path] for path in complete})
            self._open_complete_files(complete)

    def _open_complete_files(self, complete: Iterable[Path]) -> None:
        located = CapturePaths()
        for each in self._named:
            try:
                located.update(_locate(each, self._from))
            except (TracekitError, OSError):  # a file or folder was removed in the meantime
                continue
        opened = {capture.path for capture in self._captures.all}
        for path in complete:
            exports = [each for each, report in located.replaced.items() if report == path]
            if any(_make_absolute(each) in opened for each in exports):
                continue  # another file with the same run is open
            if path not in self._names and (path in located.urls or path in located.errors):
                self._names[path] = name_uniquely(_make_absolute(path), list(map(_make_absolute, (*self._names, path))))
            if path in located.urls:
                self._open_ignoring_errors(path, replace=_make_absolute(path) in opened)
            elif path in located.errors:
                self._captures.add_unreadable(self._names[path], located.errors[path])


def open_captures(
    paths: Iterable[Path], from_: str | None = None, *, cache: bool | None = None, strict: bool = False
) -> ViewedCaptures:
    """Open files and folders as the captures of a server, all before the function returns.

    A warning names each capture that cannot be read, and the viewer lists it with the reason.

    Args:
        paths: The files, folders or patterns. All captures in a folder of captures are opened.
        from_: Format of the captures. If None, it is detected.
        cache: Whether columns are read from the cache and stored in it, as in ``tracekit.load``.
        strict: Whether a capture that cannot be read is an error.

    Raises:
        TracekitError: No capture can be read, or ``strict`` is true and a capture cannot be read.
    """
    captures, opener = open_first_capture(paths, from_, cache=cache, strict=strict)
    opener.open_others()
    return captures


def open_first_capture(
    paths: Iterable[Path],
    from_: str | None = None,
    *,
    cache: bool | None = None,
    layers: Layers | None = None,
    strict: bool = False,
) -> tuple[ViewedCaptures, CaptureOpener]:
    """Open the first of several captures, and return an opener that opens the others when it is started.

    The arguments and errors are those of ``open_captures``, and ``layers`` is that of ``tracekit.load``.
    """
    captures = ViewedCaptures([])
    opener = CaptureOpener(captures, paths, from_, cache=cache, layers=layers)
    try:
        opener.open_first(strict=strict)
    except BaseException:
        captures.close()
        raise
    return captures, opener


def _locate(path: Path, from_: str | None) -> CapturePaths:
    """Return the captures of a folder or pattern. Any other path is one capture, which may not be readable."""
    if is_folder_of_captures(path) or is_pattern(path):
        return locate_captures(path, from_)
    return CapturePaths({path: None})


def _name_captures(paths: Iterable[Path]) -> dict[Path, str]:
    """Return the shortest unique name of each capture, which usually is the name of its file."""
    absolute = {path: _make_absolute(path) for path in paths}
    distinct = list(dict.fromkeys(absolute.values()))
    counts = Counter(end for path in distinct for end in {path.name, path.stem})
    return {
        path: full.name if counts[full.name] == 1 else name_uniquely(full, distinct) for path, full in absolute.items()
    }


def _make_absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - without ..


def _read_states(named: Iterable[Path]) -> dict[Path, FileState]:
    """Return the states of the files that named files, folders and patterns refer to, without those that are gone."""
    states = {}
    for each in named:
        try:
            candidates = list_candidates(each)
        except (TracekitError, OSError):
            continue
        states.update({path: FileState.read_file(path, folders=True) for path in candidates})
    return {path: state for path, state in states.items() if state is not None}
