"""Write alarms as lines of JSON, and metrics as text for the textfile collector of Prometheus.

Source: Prometheus, "Exposition formats" (text format 0.0.4: escaping and types).
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.core.watch import ALARM_KINDS, SCHEMA
from tracekit.errors import TracekitError
from tracekit.system import interrupts
from tracekit.system.platform.open_files import open_for_appending
from tracekit.system.targets import open_atomic_output
from tracekit.text import shorten_middle, to_printable
from tracekit.watching.watcher import LAST_WINDOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.core.watch import Alarm
    from tracekit.watching.state import WatchState

HEADER = "# Written by tracekit watch."
"""First line of a file of metrics. Other files are not replaced."""
_TAIL_BYTES = 1 << 20
_SECONDS = 1_000_000_000
_COUNTERS = (
    ("captures", "captures_total", "Captures that were read."),
    ("duplicates", "duplicates_total", "Captures with the content of another capture, which were not counted again."),
    ("captures without steps", "captures_without_steps_total", "Captures whose steps are unknown."),
    ("windows", "windows_total", "Windows whose ranks were compared."),
)


class AlarmFile:
    """A file of alarms, to which lines are appended. Each alarm of a state is in it once, even after a kill.

    A line is written before the state forgets the alarm. If the process is killed in between, the alarm is delivered
    again. The last line of the file tells that it is already there. If the process is killed while it writes, the
    incomplete line is completed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a file, which is created if it does not exist.

        Raises:
            TracekitError: The file contains something else, or cannot be written.
        """
        self.path = Path(path)
        try:
            if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
                raise TracekitError("this is not a regular file", path=self.path, hint="choose another file")
            self._last, self._partial = self._read_tail()
            self._descriptor = open_for_appending(self.path)
        except OSError as e:
            message = f"the alarms cannot be written: {e.strerror or e}"
            raise TracekitError(message, path=self.path, hint="choose another file or folder") from e

    def _read_tail(self) -> tuple[tuple[str, int], bytes]:
        """Return the identity of the last complete alarm, and the incomplete line after it."""
        if not self.path.exists():
            return ("", 0), b""
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).split(b"\n")
        complete = [line for line in lines[:-1] if line]
        partial = lines[-1]
        if not complete:
            start = f'{{"schema":"{SCHEMA}"'.encode()
            if partial[: len(start)] != start[: len(partial)]:
                raise self._create_foreign_error()
            return ("", 0), partial
        try:
            values = json.loads(complete[-1])
            is_own = values["schema"] == SCHEMA
            last = str(values["watch"]), int(values["id"])
        except (ValueError, KeyError, TypeError, RecursionError):
            is_own = False
        if not is_own:
            raise self._create_foreign_error()
        return last, partial

    def _create_foreign_error(self) -> TracekitError:
        message = "this file contains something else than alarms, and is not changed"
        return TracekitError(message, path=self.path, hint="choose another file")

    def write(self, alarm: Alarm) -> None:
        """Append an alarm, unless it is already in the file.

        Raises:
            TracekitError: The alarm cannot be written.
        """
        watch, number = self._last
        if alarm.watch == watch and alarm.id <= number:
            return
        line = f"{alarm.to_json()}\n".encode("ascii")
        if self._partial:
            line = line[len(self._partial) :] if line.startswith(self._partial) else b"\n" + line
            self._partial = b""
        try:
            self._check_path()
            while line:
                line = line[os.write(self._descriptor, line) :]
            os.fsync(self._descriptor)
        except OSError as e:
            message = f"the alarms cannot be written: {e.strerror or e}"
            raise TracekitError(message, path=self.path, hint="free space on the disk, or choose another file") from e
        self._last = alarm.watch, alarm.id

    def _check_path(self) -> None:
        """Open the file again if it was moved or deleted, as programs that rotate logs do."""
        opened = os.fstat(self._descriptor)
        try:
            current = os.stat(self.path)  # noqa: PTH116
        except FileNotFoundError:
            current = None
        if current is None or (current.st_dev, current.st_ino) != (opened.st_dev, opened.st_ino):
            os.close(self._descriptor)
            self._descriptor = open_for_appending(self.path)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def check_metrics_file(path: Path) -> None:
    """Check that a file does not exist, is empty or contains metrics of a watch, so that it may be replaced.

    Raises:
        TracekitError: The file contains something else, or is no regular file, or its folder does not exist.
    """
    if not path.exists():
        if not path.parent.is_dir():
            raise TracekitError("the folder of the metrics does not exist", path=path, hint=f"create {path.parent}")
        return
    if not path.is_file():
        raise TracekitError("this is not a regular file", path=path, hint="choose another file")
    with path.open("rb") as file:
        head = file.read(len(HEADER))
    if head and head != HEADER.encode():
        message = "this file contains something else than metrics of tracekit watch, and is not replaced"
        raise TracekitError(message, path=path, hint="choose another file")


def write_metrics(path: Path, state: WatchState) -> None:
    """Replace a file of metrics atomically, as the textfile collector requires."""
    check_metrics_file(path)
    try:
        with open_atomic_output(path, overwrite=True) as new:
            new.write_text(format_metrics(state), "utf-8", newline="\n")
    finally:
        interrupts.mark_output_incomplete()  # the watch goes on, so signals have to end it


def format_metrics(state: WatchState) -> str:
    """Return the metrics of a state in the text format of Prometheus."""
    lines = [HEADER]
    for name, metric, meaning in _COUNTERS:
        lines += _format_metric(metric, "counter", meaning, [("", state.get_count(name))])
    alarms = [(f'{{kind="{kind}"}}', state.get_count(f"alarms {kind}")) for kind in ALARM_KINDS]
    lines += _format_metric("alarms_total", "counter", "Alarms by kind.", alarms)
    read = state.get_number("last capture")
    if read:
        values = [("", _to_seconds(read))]
        lines += _format_metric("last_capture_timestamp_seconds", "gauge", "When a capture was read last.", values)
    waiting = [("", sum(not w.is_closed for w in state.list_windows()))]
    lines += _format_metric("open_windows", "gauge", "Windows that wait for captures of further ranks.", waiting)
    last = state.get_json_fact(LAST_WINDOW)
    if last is not None:
        lines += _format_window(last)
    return "\n".join(lines) + "\n"


def _format_window(window: dict[str, object]) -> list[str]:
    """Return the metrics of the window that was compared last."""
    lines = _format_metric("window", "gauge", "Number of the window that was compared last.", [("", window["number"])])
    lines += _format_metric("window_ranks", "gauge", "Ranks of this window.", [("", window["ranks"])])
    lines += _format_metric("window_missing_ranks", "gauge", "Missing ranks of this window.", [("", window["missing"])])
    if isinstance(window["step_ns"], int):
        values = [("", _to_seconds(window["step_ns"]))]
        lines += _format_metric(
            "step_seconds", "gauge", "Median over the ranks of the mean duration of a step.", values
        )
    worst = window["worst"]
    rows = [
        (
            f'{{rank="{row["rank"]}",kind="{row["kind"]}",phase="{escape_label(row["phase"])}"}}',
            _to_seconds(row["lost_ns"]),
        )
        for row in (worst if isinstance(worst, list) else [])
    ]
    meaning = "Time that ranks lost in this window, for the ranks that lost most."
    return [*lines, *_format_metric("lost_seconds", "gauge", meaning, rows)]


def _format_metric(name: str, kind: str, meaning: str, values: Sequence[tuple[str, object]]) -> list[str]:
    """Return the lines of one metric, given its labels and values."""
    full = f"tracekit_watch_{name}"
    return [
        f"# HELP {full} {meaning}",
        f"# TYPE {full} {kind}",
        *(f"{full}{labels} {value}" for labels, value in values),
    ]


def _to_seconds(ns: int) -> str:
    """Return a time in seconds, exactly."""
    return f"{ns // _SECONDS}.{ns % _SECONDS:09}"


def escape_label(value: str) -> str:
    """Return the value of a label, shortened, printable and escaped."""
    text = to_printable(shorten_middle(value))
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
