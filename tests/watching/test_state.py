"""The state: atomic, locked, bounded, and never mistaken for another file."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.conftest import ALL
from tracekit.core.watch import CapturePlace
from tracekit.errors import TracekitError
from tracekit.watching import state as states
from tracekit.watching.state import FileRecord, WatchState


def test_facts_files_and_contents(tmp_path: Path) -> None:
    with WatchState(tmp_path / "s", "/run") as state:
        with state.change():
            state.count("captures")
            state.count("captures", 4)
            state.set_file("a", FileRecord("1", states.RETRY, 2))
            assert state.add_content("x")
            assert not state.add_content("x")
        watch = state.watch
    with WatchState(tmp_path / "s", "/run") as state:
        assert (state.get_count("captures"), state.get_file("a"), state.watch) == (
            5,
            FileRecord("1", "retry", 2),
            watch,
        )
        assert state.get_file("b") is None
        assert not state.add_content("x")


def test_an_error_undoes_a_change(tmp_path: Path) -> None:
    with WatchState(tmp_path / "s", "/run") as state:
        with contextlib.suppress(KeyError), state.change():
            state.count("captures")
            raise KeyError
        assert state.get_count("captures") == 0


def test_contents_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MAX_CONTENTS", 10)
    with WatchState(None, "/run") as state:
        assert all(state.add_content(str(number)) for number in range(30))
        assert not state.add_content("25")
        assert state.add_content("5")


def test_windows_and_their_ranks(tmp_path: Path) -> None:
    with WatchState(None, "/run") as state:
        assert state.add_window(CapturePlace(0, 9, 5, 6)) == 1
        assert state.add_window(CapturePlace()) == 2
        first, second = state.list_windows()
        assert first.window.place == CapturePlace(0, 9, 5, 6)
        assert second.window.place == CapturePlace()
        assert not first.is_closed
        state.close_window(1)
        assert [w.is_closed for w in state.list_windows()] == [True, False]
        state.delete_window(1)
        state.delete_window(2)
        assert state.list_windows() == []
        assert state.add_window(CapturePlace()) == 3  # numbers are not used again


def test_two_watches_cannot_use_one_state(tmp_path: Path) -> None:
    with WatchState(tmp_path / "s", "/run"), pytest.raises(TracekitError, match="another watch uses this state"):
        WatchState(tmp_path / "s", "/run")
    WatchState(tmp_path / "s", "/run").close()


def test_a_state_belongs_to_one_folder(tmp_path: Path) -> None:
    WatchState(tmp_path / "s", "/run").close()
    with pytest.raises(TracekitError, match="this state belongs to another folder: /run"):
        WatchState(tmp_path / "s", "/other")


@pytest.mark.parametrize("content", [b"hello", b"SQLite format 3\0" + bytes(200), os.urandom(4096), b"\0" * 10 + b"x"])
def test_other_files_are_not_changed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s"
    path.write_bytes(content)
    with pytest.raises(TracekitError, match="this is not a state of tracekit watch"):
        WatchState(path, "/run")
    assert path.read_bytes() == content


def test_a_capture_is_not_a_state(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(Path("fixtures/empty.sqlite").read_bytes())
    before = path.read_bytes()
    with pytest.raises(TracekitError, match="this is not a state of tracekit watch"):
        WatchState(path, "/run")
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [path]


def test_paths_that_cannot_be_a_state(tmp_path: Path) -> None:
    with pytest.raises(TracekitError, match="this is a folder, not a state file"):
        WatchState(tmp_path, "/run")
    with pytest.raises(TracekitError, match="the folder of the state file does not exist"):
        WatchState(tmp_path / "no" / "s", "/run")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TracekitError, match="this is not a regular file"):
        WatchState(tmp_path / "pipe", "/run")


def edit(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("PRAGMA user_version = 2", "this state has version 2, but this version of tracekit reads version 1"),
        ("DROP TABLE contents", "the state is damaged"),
        ("CREATE TRIGGER t AFTER INSERT ON files BEGIN DELETE FROM files; END", "the state is damaged"),
        ("CREATE VIEW v AS SELECT 1", "the state is damaged"),
    ],
)
def test_other_versions_and_schemas(tmp_path: Path, statement: str, message: str) -> None:
    path = tmp_path / "s"
    WatchState(path, "/run").close()
    edit(path, statement)
    with pytest.raises(TracekitError, match=message) as caught:
        WatchState(path, "/run")
    assert "move it away to start anew" in str(caught.value)
    assert path.exists()


def test_damaged_states_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with WatchState(path, "/run") as state, state.change():
        for number in range(2000):
            state.set_file(f"file{number}", FileRecord("x" * 50, states.READ))
    whole = path.read_bytes()
    for start in range(4096, len(whole), 8192):
        path.write_bytes(whole[:start] + b"\xff" * 4096 + whole[start + 4096 :])
        with pytest.raises(TracekitError, match="the state is damaged"):
            WatchState(path, "/run")
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TracekitError, match="the state is damaged"):
        WatchState(path, "/run")


@pytest.mark.parametrize(
    "statement",
    [
        *(
            "UPDATE windows SET place = 'x'",
            "UPDATE windows SET place = '[[1]]'",
            "UPDATE windows SET place = '[0,0,0,0,0]'",
        ),
        *(
            "UPDATE windows SET opened_utc_ns = 'x'",
            "INSERT INTO alarms VALUES (1, '{')",
            "INSERT INTO alarms VALUES (1, '[]')",
        ),
        *(
            "UPDATE facts SET value = 'x' WHERE name LIKE 'count%'",
            "UPDATE facts SET value = '{' WHERE name = 'json'",
            "UPDATE facts SET value = x'ff'",
        ),
    ],
)
def test_values_that_a_state_cannot_contain_are_reported(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "s"
    with WatchState(path, "/run") as state, state.change():
        state.add_window(CapturePlace(0, 9, 5, 6))
        state.count("captures")
        state.set_fact("json", '{"a": 1}')
        assert (state.get_json_fact("json"), state.get_json_fact("missing")) == ({"a": 1}, None)
    edit(path, statement)

    def read() -> None:
        with WatchState(path, "/run") as state:
            state.list_windows()
            state.read_alarms()
            state.get_json_fact("json")
            state.get_count("captures")

    with pytest.raises(TracekitError, match=r"the state is damaged|this state belongs to another folder"):
        read()


def test_a_state_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"")
    WatchState(path, "/run").close()  # an empty file is a new state
    assert path.stat().st_size > 0


def test_kills_leave_all_or_nothing(tmp_path: Path) -> None:
    """A process that changes two tables in each transaction is killed at random moments."""
    program = textwrap.dedent(
        f"""
        from tracekit.watching.state import FileRecord, WatchState
        with WatchState({str(tmp_path / "s")!r}, "/run") as state:
            print("ready", flush=True)
            while True:
                with state.change():
                    state.count("captures")
                    state.set_file(str(state.get_count("captures")), FileRecord("x" * 2000, "read"))
        """
    )
    last = 0
    for number in range(4 if ALL else 2):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05 + 0.07 * number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with WatchState(tmp_path / "s", "/run") as state:
            assert state.get_count("captures") == state.count_files() >= last
            last = state.count_files()
    assert last > 0
