"""Watch a folder: read new captures, compare the ranks of complete windows, and yield alarms."""

from __future__ import annotations

import functools
import heapq
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.core.watch import (
    RULES,
    CapturePlace,
    Limits,
    MatchRule,
    choose_window,
    compare_ranks,
    create_alarm_window,
    describe_broken_capture,
    describe_findings,
    describe_missing_ranks,
    merge_summaries,
)
from tracekit.errors import TracekitError, create_choices_hint, warn
from tracekit.sets.engines import LocalEngine, resolve_engine
from tracekit.sets.member import Member
from tracekit.sets.paths import compute_natural_sort_key, describe_error
from tracekit.sets.ranks import parse_ranks_in_file_name
from tracekit.system.remote import KeptCopy
from tracekit.text.urls import remove_secrets
from tracekit.watching import state as states
from tracekit.watching.files import SettleClock, WatchedFolder, list_other_forms
from tracekit.watching.reduction import ReductionOptions, reduce_capture
from tracekit.watching.state import FileRecord, WatchState

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tracekit.core.watch import Alarm
    from tracekit.core.watch.comparison import RankFinding
    from tracekit.sets.engines import Engine
    from tracekit.watching.files import WatchedFile
    from tracekit.watching.reduction import ReducedCapture
    from tracekit.watching.state import StoredWindow

MAX_WINDOWS = 8
"""Number of windows whose summaries are stored."""
MAX_ATTEMPTS = 3
"""How often a capture that cannot be read is tried before there is an alarm."""
MAX_RANKS_IN_METRICS = 20
LAST_WINDOW = "last window compared"
_BATCH = 1024
_KEPT_FILES = 1 << 16
_NS_PER_S = 1_000_000_000


class WatchOptions(NamedTuple):
    """How a folder is watched.

    Attributes:
        interval_s: Time between two looks at the folder.
        settle_s: Time for which a file must not change before it is read.
        wait_s: Time after the first capture of a window after which the window is compared without the others.
        once: Whether to look only once.
        format: Name of the format of all captures. None if it is detected.
        ranks: Ranks that the user specifies, by name of a file or folder.
        world_size: Number of ranks that every window should have. None if it is unknown.
        rule: How captures are matched.
        limits: What counts as a finding.
    """

    interval_s: float = 10.0
    settle_s: float = 5.0
    wait_s: float = 600.0
    once: bool = False
    format: str | None = None
    ranks: Mapping[str, int] = {}
    world_size: int | None = None
    rule: MatchRule = MatchRule()
    limits: Limits = Limits()


def watch(
    folder: str | os.PathLike[str],
    *,
    state: str | os.PathLike[str] | None = None,
    once: bool = False,
    interval_s: float = 10.0,
    settle_s: float = 5.0,
    wait_s: float = 600.0,
    format: str | None = None,  # noqa: A002 - as for load
    ranks: Mapping[str, int] | None = None,
    world_size: int | None = None,
    match: str = "auto",
    min_share: float = 0.02,
    false_alarms: float = 0.001,
    engine: Any = None,
) -> Iterator[Alarm]:
    """Watch a folder to which the ranks of a job write captures, and yield alarms as soon as ranks can be compared.

    Each capture is read once, and reduced to a summary of a few kilobytes. Captures of the same steps form a window.
    When all ranks are present, or after ``wait_s``, the ranks of a window are compared.

    Args:
        folder: The folder, which is searched with its subfolders, or a URL of a folder.
        state: File that stores the progress, so that a later call continues where this one ended, even if the process
            was killed. An alarm is delivered once the next one is requested. If None, all captures are read.
        once: Whether to end after all files in the folder were read, instead of waiting for further ones. Windows that
            are not complete are then compared only if they are older than ``wait_s``, or if there is no state.
        interval_s: Time between two looks at the folder in seconds.
        settle_s: Time in seconds for which a file must not change before it is read.
        wait_s: Time in seconds after the first capture of a window after which missing ranks are reported.
        format: Name of the format of all captures. If None, it is detected.
        ranks: Ranks by name of a file or of a subfolder. Other ranks are those that captures record or names contain.
        world_size: Number of ranks that every window should have. If None, it is the recorded number for the first
            window, and afterwards the ranks that earlier windows contain are expected.
        match: How captures of different ranks are matched: ``auto``, ``steps``, ``time`` or ``order``.
        min_share: Smallest loss of time per step that is reported, as a share of a step.
        false_alarms: Number of alarms per window that are expected by chance.
        engine: What reads the captures, as for ``load_many``.

    Returns:
        An iterator over the alarms. It ends only if ``once`` is true.

    Raises:
        TracekitError: An argument is invalid, or the state cannot be used.
        FileNotFoundError: The folder does not exist.

    Examples:
        >>> import tracekit as tk
        >>> list(tk.watch("fixtures/ranks", once=True, settle_s=0))  # no rank is late
        []
    """
    options = WatchOptions(
        interval_s=interval_s,
        settle_s=settle_s,
        wait_s=wait_s,
        once=once,
        format=format,
        ranks=dict(ranks or {}),
        world_size=world_size,
        rule=MatchRule(match),
        limits=Limits(min_share, false_alarms),
    )
    watched = WatchedFolder(folder)
    opened = open_state(state, watched)
    try:
        watcher = Watcher(watched, opened, options, resolve_engine(engine))
    except BaseException:
        opened.close()
        raise
    return _run_and_close(watcher, opened)


def _run_and_close(watcher: Watcher, state: WatchState) -> Iterator[Alarm]:
    with state:
        yield from watcher.run()


def open_state(path: str | os.PathLike[str] | None, folder: WatchedFolder) -> WatchState:
    """Open the state of a folder."""
    state = WatchState(path, remove_secrets(folder.source))
    if path is not None:
        folder.ignore(path)
    return state


class Watcher:
    """Reads the new captures of a folder, and compares ranks.

    Attributes:
        state: The state.
    """

    def __init__(
        self,
        folder: WatchedFolder,
        state: WatchState,
        options: WatchOptions,
        engine: Engine | None = None,
        *,
        report: Callable[[str], None] = lambda _: None,
        after_look: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare a watch.

        Args:
            folder: The folder.
            state: Its state.
            options: The options.
            engine: What reads the captures. None reads them in this process.
            report: Callback that receives a sentence about each window.
            after_look: Callback that is called after each look at the folder, after each window, and while many files
                are read.

        Raises:
            TracekitError: An option is invalid.
        """
        _check_options(options)
        self.state = state
        self._folder = folder
        self._options = options
        self._engine = engine or LocalEngine()
        self._report = report
        self._update = after_look
        self._updated = time.monotonic()
        self._settle = SettleClock(options.settle_s)
        self._retry_at: dict[str, float] = {}
        self._opened: dict[int, float] = {}
        self._problem: str | None = None
        source = "" if folder.is_remote else folder.source
        reduction = ReductionOptions(source, options.format, options.ranks, options.world_size)
        self._reduce = functools.partial(reduce_capture, reduction)

    def run(self) -> Iterator[Alarm]:
        """Yield alarms. Those that were not delivered before are the first ones."""
        yield from self._deliver()
        yield from self._compare_windows(self.state.list_windows())
        while True:
            yield from self.look()
            if self._options.once and not self._settle.is_waiting:
                break
            time.sleep(self._options.settle_s if self._options.once else self._options.interval_s)
        yield from self._compare_old_windows()
        self._after_look()

    def look(self) -> Iterator[Alarm]:
        """Read the files that are new and complete, compare windows, and yield alarms."""
        waiting: set[str] = set()
        while True:
            seen = 0
            waiting.clear()

            def list_due_files(waiting: set[str] = waiting) -> Iterator[WatchedFile]:
                nonlocal seen
                for file in self._list_files():
                    seen += 1
                    if self._is_due(file, waiting):
                        yield file

            # the oldest files come first, so that the windows of many files are compared one after the other
            oldest = heapq.nsmallest(_BATCH, list_due_files(), key=_get_age_key)
            if not oldest:
                break
            yield from self._read(oldest)
        self._settle.keep_only(waiting)
        self._retry_at = {name: at for name, at in self._retry_at.items() if name in waiting}
        if self._problem is None and self.state.count_files() > 2 * seen + _KEPT_FILES:
            self.state.forget_files(self._folder.exists)
        if not self._options.once:
            yield from self._compare_old_windows()
        self._after_look()

    def _after_look(self) -> None:
        """Call the callback after a look at the folder or after a window."""
        self._updated = time.monotonic()
        self._update()

    def _list_files(self) -> Iterator[WatchedFile]:
        """Yield the files of the folder. If the folder is not accessible for some time, warn, and yield no files."""
        try:
            yield from self._folder.list_files()
            self._problem = None
        except (OSError, TracekitError) as e:
            problem = describe_error(e)
            if self._options.once:
                raise
            if problem != self._problem:
                warn(f"the folder cannot be listed, and is tried again: {problem}", path=self._folder.source)
            self._problem = problem

    def _is_due(self, file: WatchedFile, waiting: set[str]) -> bool:
        """Return whether a file has to be read now. Files to read later are added to ``waiting``."""
        record = self.state.get_file(file.name)
        status = record.status if record is not None and record.fingerprint == file.fingerprint else None
        if status in states.FINAL:
            return False
        must_settle = not self._folder.is_remote and status != states.RETRY
        if must_settle and not self._settle.is_settled(file):
            waiting.add(file.name)
            return False
        if time.monotonic() < self._retry_at.get(file.name, 0):
            waiting.add(file.name)
            return False
        return not self._is_other_form(file)

    def _is_other_form(self, file: WatchedFile) -> bool:
        """Return whether another file contains the same run as a file, which is then not read."""
        preferred, others = list_other_forms(file.name)
        records = {name: self.state.get_file(name) for name in (*preferred, *others)}
        own = self.state.get_file(file.name)
        if own is not None and own.status == states.READ:
            return False
        if any(r is not None and r.status == states.READ for r in records.values()):
            status = states.DUPLICATE
        elif not self._folder.is_remote and any(
            self._folder.exists(name) and (r := records[name], r is None or r.status != states.BROKEN)[1]
            for name in preferred
        ):
            status = states.REPLACED
        else:
            return False
        record = FileRecord(file.fingerprint, status)
        if record != own:
            with self.state.change():
                self.state.set_file(file.name, record)
        return True

    # Captures

    def _read(self, files: Sequence[WatchedFile]) -> Iterator[Alarm]:
        """Reduce captures, and record the results."""
        members = [self._create_member(file) for file in files]
        done = 0
        try:
            for (_, result), file in zip(self._engine.map(self._reduce, members), files, strict=True):
                done += 1
                yield from self._record(file, result)
        except TracekitError:
            if not isinstance(self._engine, LocalEngine) or self._engine.jobs == 1:
                raise
            # a worker was killed: each of the others gets a process of its own, to find out which file is the reason
            for file, member in zip(files[done:], members[done:], strict=True):
                yield from self._record(file, self._engine.call_in_other_process(self._reduce, member))

    def _create_member(self, file: WatchedFile) -> Member:
        path = self._folder.get_path(file.name)
        if self._folder.is_remote:
            return Member(path, 0, "", is_read=False, url=file.name, kept_copy=KeptCopy())
        return Member(path, 0, "", is_read=False)

    def _record(self, file: WatchedFile, result: ReducedCapture | Exception) -> Iterator[Alarm]:
        """Record the result for a file, and yield the alarms that follow from it."""
        if not isinstance(result, Exception):
            window = self._record_capture(file, result)
            if window is not None:
                yield from self._compare_windows(w for w in self.state.list_windows() if w.window.number == window)
                yield from self._limit_windows()
        elif self._folder.exists(file.name):
            self._record_failure(file, result)
            yield from self._deliver()
        if time.monotonic() - self._updated >= self._options.interval_s:
            self._after_look()

    def _record_failure(self, file: WatchedFile, error: Exception) -> None:
        """Record that a file cannot be read. There is an alarm after some attempts, once for each file."""
        record = self.state.get_file(file.name)
        continues = record is not None and (record.fingerprint == file.fingerprint or record.status == states.BROKEN)
        attempts = (record.attempts if record is not None and continues else 0) + 1
        limit = 1 if self._options.once else MAX_ATTEMPTS
        is_final = attempts >= limit
        with self.state.change():
            status = states.BROKEN if is_final else states.RETRY
            self.state.set_file(file.name, FileRecord(file.fingerprint, status, attempts))
            if is_final and (record is None or record.status != states.BROKEN):
                ranks = parse_ranks_in_file_name(self._folder.get_path(file.name).name)
                rank = ranks.pop() if len(ranks) == 1 else None
                alarm = describe_broken_capture(_get_shown_name(file), describe_error(error), rank)
                self.state.add_alarms([alarm], is_new_window=False)
        if not is_final:
            self._retry_at[file.name] = time.monotonic() + max(self._options.settle_s, 1.0) * 2 ** (attempts - 1)

    def _record_capture(self, file: WatchedFile, result: ReducedCapture) -> int | None:
        """Add a capture to its window, and return the number of the window, or None if it belongs to none."""
        with self.state.change():
            if result.summary is None:
                self.state.set_file(file.name, FileRecord(file.fingerprint, states.OTHER))
                return None
            if not self.state.add_content(result.content):
                self._record_known_content(file)
                return None
            self.state.remove_summary(_get_shown_name(file))
            self.state.set_file(file.name, FileRecord(file.fingerprint, states.READ))
            self.state.count("captures")
            self.state.set_fact("last capture", str(time.time_ns()))
            if not result.summary.ranks["steps"].max():
                self.state.count("captures without steps")
                warn("the capture has no steps, so its rank cannot be compared", path=self._folder.get_path(file.name))
            place = CapturePlace.from_summary(result.summary)
            windows = [stored.window for stored in self.state.list_windows()]
            number = choose_window(place, result.summary.ranks["rank"].to_list(), windows, self._options.rule)
            if number is None:
                number = self.state.add_window(place)
            self.state.add_summary(number, result.summary, _get_shown_name(file))
            return number

    def _record_known_content(self, file: WatchedFile) -> None:
        """Record that a file has the content of another one, or the content that it had when it was read before."""
        record = self.state.get_file(file.name)
        is_same_file = record is not None and record.status == states.READ
        self.state.set_file(file.name, FileRecord(file.fingerprint, states.READ if is_same_file else states.DUPLICATE))
        if not is_same_file:
            self.state.count("duplicates")

    # Windows

    def _compare_windows(self, windows: Iterable[StoredWindow]) -> Iterator[Alarm]:
        """Compare the windows that are complete, and the captures that were added to closed windows."""
        for stored in windows:
            number = stored.window.number
            self._opened.setdefault(number, time.monotonic())
            expected = self._list_expected_ranks(stored)
            if stored.is_closed:
                late = {rank for rank, (_, is_compared) in self.state.list_members(number).items() if not is_compared}
                if late:
                    yield from self._compare_late_captures(stored, late)
            elif expected and expected <= set(stored.window.ranks):
                yield from self._close_window(stored)

    def _list_expected_ranks(self, stored: StoredWindow) -> set[int]:
        """Return the ranks that a window should have. They are unknown if the result is empty."""
        if self._options.world_size is not None:
            return set(range(self._options.world_size))
        if self.state.get_count("windows"):
            return self.state.list_ranks()
        return set(range(stored.world_size)) if stored.world_size is not None else set()

    def _compare_old_windows(self) -> Iterator[Alarm]:
        """Compare the windows whose missing ranks are not awaited any more."""
        for stored in self.state.list_windows():
            age_s = time.monotonic() - self._opened.setdefault(stored.window.number, time.monotonic())
            if self._options.once:
                age_s = max(age_s, (time.time_ns() - stored.opened_utc_ns) / _NS_PER_S)
            is_over = age_s >= self._options.wait_s or (self._options.once and self.state.path is None)
            if is_over and not stored.is_closed:
                yield from self._close_window(stored)

    def _limit_windows(self) -> Iterator[Alarm]:
        """Delete the oldest windows if there are too many. They are compared before."""
        windows = self.state.list_windows()
        for stored in sorted(windows, key=lambda w: (not w.is_closed, w.window.number))[: -MAX_WINDOWS or None]:
            if not stored.is_closed:
                yield from self._close_window(stored)
            with self.state.change():
                self.state.delete_window(stored.window.number)
            self._opened.pop(stored.window.number, None)

    def _close_window(self, stored: StoredWindow) -> Iterator[Alarm]:
        """Compare the ranks of a window, and yield the alarms."""
        number = stored.window.number
        summary = merge_summaries(self.state.read_summaries(number))
        findings = compare_ranks(summary, self._options.limits)
        window = create_alarm_window(number, CapturePlace.from_summary(summary))
        files = {rank: file for rank, (file, _) in self.state.list_members(number).items()}
        missing = sorted(self._list_expected_ranks(stored) - files.keys())
        alarms = [*describe_findings(findings, window, files), *describe_missing_ranks(missing, len(files), window)]
        with self.state.change():
            self.state.add_alarms(alarms, is_new_window=True)
            self.state.close_window(number)
            self.state.count("windows")
            step_ns = _compute_median_step(summary)
            self.state.set_fact(LAST_WINDOW, _describe_window(number, findings, len(files), len(missing), step_ns))
        what = "" if window.first_step is None else f", steps {window.first_step} to {window.last_step}"
        count = f"{len(alarms)} alarm{'' if len(alarms) == 1 else 's'}"
        self._report(f"window {number}{what}: {len(files)} ranks, {len(missing)} missing, {count}")
        self._after_look()
        yield from self._deliver()

    def _compare_late_captures(self, stored: StoredWindow, late: set[int]) -> Iterator[Alarm]:
        """Compare ranks whose captures were added to a window after it was compared."""
        number = stored.window.number
        summary = merge_summaries(self.state.read_summaries(number))
        findings = [f for f in compare_ranks(summary, self._options.limits) if f.rank in late]
        window = create_alarm_window(number, CapturePlace.from_summary(summary))
        files = {rank: file for rank, (file, _) in self.state.list_members(number).items()}
        with self.state.change():
            self.state.add_alarms(describe_findings(findings, window, files), is_new_window=False)
            self.state.close_window(number)
        yield from self._deliver()

    def _deliver(self) -> Iterator[Alarm]:
        """Yield the alarms that were not delivered yet. An alarm is delivered when the next one is requested."""
        for alarm in self.state.read_alarms():
            yield alarm
            self.state.delete_alarm(alarm.id)


def _get_shown_name(file: WatchedFile) -> str:
    """Return the name of a file without secrets. Bytes that are not valid UTF-8 are escaped."""
    return remove_secrets(file.name).encode("utf-8", "backslashreplace").decode("utf-8")


def _get_age_key(file: WatchedFile) -> tuple[int, list[tuple[int, int, str]]]:
    """Return a sort key that orders files by the time of their last change, and then by their names."""
    return file.modified_ns, compute_natural_sort_key(file.name)


def _compute_median_step(summary: Any) -> int | None:
    """Return the median over the ranks of the mean duration of a step."""
    import polars as pl

    steps = summary.times.filter(pl.col("on") == "step").group_by("rank")
    middle = steps.agg(pl.col("sum_ns").sum() / pl.col("count").sum())["sum_ns"].median()
    return None if middle is None else round(middle)


def _describe_window(
    number: int, findings: Sequence[RankFinding], ranks: int, missing: int, step_ns: int | None
) -> str:
    """Return what metrics state about the window that was compared last, as JSON."""
    worst = [
        {
            "kind": f.kind,
            "rank": f.rank,
            "phase": f.causes[0].phase if f.causes else "",
            "lost_ns": f.lost_ns,
        }
        for f in findings[:MAX_RANKS_IN_METRICS]
    ]
    return json.dumps({"number": number, "ranks": ranks, "missing": missing, "step_ns": step_ns, "worst": worst})


def _check_options(options: WatchOptions) -> None:
    """Check options.

    Raises:
        TracekitError: An option is invalid.
    """
    if options.rule.by not in RULES:
        message = f"there is no rule {options.rule.by!r} to match captures"
        raise TracekitError(message, hint=create_choices_hint("rules", RULES, options.rule.by))
    bounds = {
        "interval_s": (options.interval_s, 0.01, 1e6),
        "settle_s": (options.settle_s, 0, 1e6),
        "wait_s": (options.wait_s, 0, 1e9),
        "world_size": (options.world_size or 1, 1, 1e7),
        "min_share": (options.limits.min_share, 0, 1e6),
        "false_alarms": (options.limits.false_alarms, 1e-9, 1e3),
    }
    for name, (value, low, high) in bounds.items():
        if not low <= value <= high:
            raise TracekitError(f"{name} is {value}, but must be from {low:g} to {high:g}", hint=f"change {name}")
