"""The file of alarms and the metrics of Prometheus."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import pytest
from tracekit.core.watch import Alarm, describe_broken_capture, identify
from tracekit.errors import TracekitError
from tracekit.watching.outputs import (
    HEADER,
    AlarmFile,
    check_metrics_file,
    escape_label,
    format_metrics,
    write_metrics,
)
from tracekit.watching.state import WatchState
from tracekit.watching.watcher import LAST_WINDOW

if TYPE_CHECKING:
    from pathlib import Path


def alarm(number: int, watch: str = "w") -> Alarm:
    return identify(describe_broken_capture(f"f{number}", "r"), id=number, time_utc="t", watch=watch, consecutive=1)


def write(path: Path, *alarms: Alarm) -> None:
    file = AlarmFile(path)
    for each in alarms:
        file.write(each)
    file.close()


def read(path: Path) -> list[tuple[str, int]]:
    return [(line["watch"], line["id"]) for line in map(json.loads, path.read_text().splitlines())]


def test_alarms_are_appended_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, alarm(1), alarm(2))
    write(path, alarm(2), alarm(3))  # the second one is delivered again after a kill
    assert read(path) == [("w", 1), ("w", 2), ("w", 3)]
    write(path, alarm(1, "other"))
    assert read(path)[3:] == [("other", 1)]


@pytest.mark.parametrize("cut", [1, 20, 50, 200])
def test_a_line_that_was_cut_by_a_kill_is_completed(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a"
    write(path, alarm(1), alarm(2))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    write(path, alarm(2), alarm(3))
    assert path.read_bytes() == whole + f"{alarm(3).to_json()}\n".encode()
    # the first line of the file
    path.write_bytes(whole[:cut])
    write(path, alarm(1))
    assert path.read_bytes() == whole.splitlines(keepends=True)[0]


def test_a_cut_line_of_another_state_stays_apart(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, alarm(1), alarm(2))
    path.write_bytes(path.read_bytes()[:-9])
    write(path, alarm(1, "other"))
    assert json.loads(path.read_text().splitlines()[-1])["watch"] == "other"
    assert len(path.read_text().splitlines()) == 3


def test_a_rotated_file_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = AlarmFile(path)
    file.write(alarm(1))
    path.rename(tmp_path / "a.1")
    file.write(alarm(2))
    file.close()
    assert (read(tmp_path / "a.1"), read(path)) == ([("w", 1)], [("w", 2)])


@pytest.mark.parametrize(
    "content", ["hello\n", "{}\n", "[" * 9999 + "\n", '{"schema":"x"}\n', "no end", '{"schema":"tracekit.w']
)
def test_other_files_are_not_appended_to(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a"
    path.write_text(content)
    if content.startswith('{"schema":"tracekit.w'):
        AlarmFile(path).close()  # the start of a first line
        return
    with pytest.raises(TracekitError, match="this file contains something else than alarms"):
        AlarmFile(path)
    assert path.read_text() == content


def test_alarms_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(TracekitError, match="this is not a regular file"):
        AlarmFile(tmp_path)
    with pytest.raises(TracekitError, match="the alarms cannot be written: No such file or directory"):
        AlarmFile(tmp_path / "no" / "a")


LINE = re.compile(
    r'(?:# (?:HELP|TYPE) tracekit_watch_\w+ .+|tracekit_watch_\w+(?:\{(?:\w+="(?:[^"\\\n]|\\[\\"n])*",?)*\})? [0-9.]+)'
)


def test_metrics_are_valid(tmp_path: Path) -> None:
    with WatchState(None, "/run") as state:
        state.count("captures", 7)
        state.set_fact("last capture", "1700000000123456789")
        worst = [{"kind": "late_rank", "rank": 3, "phase": 'a"b\\c\nd\x1b', "lost_ns": 1_500_000_000}]
        values = {"number": 4, "ranks": 9, "missing": 1, "step_ns": 12_000_000, "worst": worst}
        state.set_fact(LAST_WINDOW, json.dumps(values))
        first, *lines = format_metrics(state).splitlines()
        assert first == HEADER
        assert [line for line in lines if not LINE.fullmatch(line)] == []
        assert "tracekit_watch_captures_total 7" in lines
        assert "tracekit_watch_last_capture_timestamp_seconds 1700000000.123456789" in lines
        assert "tracekit_watch_step_seconds 0.012000000" in lines
        (lost,) = [line for line in lines if line.startswith("tracekit_watch_lost_seconds{")]
        assert lost.endswith("} 1.500000000")
        assert 'phase="a\\"b\\\\c\\\\nd\\\\x1b"' in lost
        helps = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        assert len(helps) == len(set(helps))
        path = tmp_path / "t.prom"
        write_metrics(path, state)
        state.count("captures")
        write_metrics(path, state)
        assert "captures_total 8" in path.read_text()
        assert [p.name for p in tmp_path.iterdir()] == ["t.prom"]


def test_labels_are_bounded() -> None:
    assert len(escape_label("x" * 10_000)) <= 80
    assert escape_label('"\\') == '\\"\\\\'


def test_other_files_are_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "t.prom"
    path.write_text("node_load1 5\n")
    with pytest.raises(TracekitError, match="something else than metrics of tracekit watch, and is not replaced"):
        check_metrics_file(path)
    with pytest.raises(TracekitError, match="the folder of the metrics does not exist"):
        check_metrics_file(tmp_path / "no" / "t.prom")
    with pytest.raises(TracekitError, match="this is not a regular file"):
        check_metrics_file(tmp_path)
    path.write_text("")
    check_metrics_file(path)
    os.truncate(path, 0)
