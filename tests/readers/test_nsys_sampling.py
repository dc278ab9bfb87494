"""CPU samples and thread scheduling, from reports and from exports."""

from __future__ import annotations

from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.nsys_rep import Parts, event, message, strings
from tests.builders.nsys_sqlite import edited
from tests.readers.test_nsys_rep import rows, written
from tracekit.errors import CorruptTraceError

THREAD = 1 << 48 | 7 << 24 | 9


def switch(*fields: tuple[int, int | bytes]) -> bytes:
    return event(41, 106, *fields)


def test_samples_of_a_report(tmp_path: Path) -> None:
    full = event(31, 104, (1, 5), (3, 2), (5, message((1, 1), (2, 40))), (6, 7), (11, THREAD))
    bare = event(31, 104, (1, 6), (5, message((2, 1))))
    capture = written(tmp_path, Parts([full + bare], [strings()]).pack())
    assert rows(capture, "cpu_samples") == [(1, 5, 7, 9, 2, "Waiting", 40, None), (2, 6, *[None] * 4, 1, None)]
    assert capture.undecoded == {}


def test_switches_of_a_report(tmp_path: Path) -> None:
    full = switch((1, 5), (3, 2), (4, 1), (5, 5), (6, THREAD), (8, 6))
    bare = switch((1, 6), (3, 0), (4, 0))
    capture = written(tmp_path, Parts([full + bare], [strings()]).pack())
    assert rows(capture, "cpu_scheduling") == [
        (1, 5, 7, 9, 2, True, "Terminated", "Mutex"),
        (2, 6, None, None, 0, False, None, None),
    ]


def test_a_switch_without_a_direction_is_damage(tmp_path: Path) -> None:
    capture = written(tmp_path, Parts([switch((1, 5), (3, 2))], [strings()]).pack())
    with pytest.raises(CorruptTraceError, match=r"row 1.*is_scheduled_in is null"):
        rows(capture, "cpu_scheduling")


def test_every_number_but_0_starts_a_thread(tmp_path: Path) -> None:
    path = edited(tmp_path, "UPDATE SCHED_EVENTS SET isSchedIn = rowid - 2", of="osrt_libs")
    with tk.load(path) as trace:
        assert trace["cpu_scheduling"]["is_scheduled_in"].to_pylist()[:3] == [True, False, True]


def test_exports_of_older_versions_have_no_states(tmp_path: Path) -> None:
    drop = "ALTER TABLE SCHED_EVENTS DROP COLUMN"
    with tk.load(edited(tmp_path, f"{drop} threadState", f"{drop} threadBlock", of="osrt_libs")) as trace:
        assert trace["cpu_scheduling"]["thread_state"].null_count == trace.count("cpu_scheduling") == 58
