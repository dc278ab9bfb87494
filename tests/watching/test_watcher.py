"""Windows of captures that arrive in any order, late, twice, damaged, or not at all."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest
import tracekit as tk
from tests.builders.watched_ranks import Delay, write_window
from tracekit.core.watch import Limits, MatchRule
from tracekit.errors import TracekitError, TracekitWarning
from tracekit.sets.engines import LocalEngine
from tracekit.watching import watcher
from tracekit.watching.files import WatchedFolder
from tracekit.watching.watcher import MAX_ATTEMPTS, MAX_WINDOWS, Watcher, WatchOptions, open_state

if TYPE_CHECKING:
    from pathlib import Path

    from tests.watching.conftest import Site


def kinds(alarms: list[Any]) -> list[tuple[str, int | None, int | None]]:
    return [(a.kind, a.rank, None if a.window is None else a.window.number) for a in alarms]


def test_each_window_is_compared_when_all_ranks_are_there(site: Site) -> None:
    site.add(0, 0, 1, 2, 3)
    site.add(1, 0, 1, 2)
    assert site.watch() == []
    assert site.reports == ["window 1, steps 0 to 7: 4 ranks, 0 missing, 0 alarms"]
    site.add(1, 3)
    (alarm,) = site.watch()
    assert (alarm.kind, alarm.rank, alarm.phase, alarm.file) == ("late_rank", 1, "data", "rank1_1.pt.trace.json")
    assert alarm.window is not None
    assert (alarm.window.first_step, alarm.window.last_step) == (8, 15)
    assert site.engine.read == [f"rank{r}_{w}.pt.trace.json" for w, r in [(0, 0), (0, 1), (0, 2), (0, 3)]] + [
        f"rank{r}_1.pt.trace.json" for r in range(4)
    ]
    assert site.watch() == []
    assert len(site.engine.read) == 8
    assert (site.count("captures"), site.count("windows"), site.count("alarms late_rank")) == (8, 2, 1)


def test_alarms_are_delivered_again_until_the_next_one_is_requested(site: Site) -> None:
    site.add(1, 0, 1, 2, 3)
    site.add(3, 0, 1, 2, 3)
    folder = WatchedFolder(site.folder)
    options = WatchOptions(once=True, settle_s=0, rule=MatchRule("steps"))
    with open_state(site.state, folder) as state:
        first = next(Watcher(folder, state, options, site.engine).run())
    assert [a.id for a in site.watch()] == [first.id, first.id + 1]
    assert site.watch() == []


def test_consecutive_windows_are_counted(site: Site) -> None:
    for window in (1, 3, 0, 5):
        site.add(window, 0, 1, 2, 3)
        for alarm in site.watch():
            assert alarm.consecutive == {1: 1, 3: 2, 5: 1}[window]
    assert site.count("alarms late_rank") == 3


def test_missing_ranks_are_reported_after_the_wait(site: Site) -> None:
    site.add(0, 0, 1, 3)
    assert site.watch() == []
    (alarm,) = site.watch(wait_s=0)
    assert (alarm.kind, alarm.rank, alarm.ranks) == ("missing_rank", 2, 3)
    site.add(0, 2)
    assert site.watch(wait_s=0) == []  # it came late, and is not slow
    site.add(2, 0, 1, 2)
    assert kinds(site.watch(wait_s=0)) == [("missing_rank", 3, 2)]
    site.add(4, 0)
    assert kinds(site.watch(wait_s=0, world_size=2)) == [("missing_rank", 1, 3)]


def test_a_capture_that_comes_late_is_still_compared(site: Site) -> None:
    site.add(1, 0, 2, 3)
    assert kinds(site.watch(wait_s=0)) == [("missing_rank", 1, 1)]
    site.add(1, 1)
    assert kinds(site.watch()) == [("late_rank", 1, 1)]
    assert site.watch() == []


def test_without_a_state_everything_is_compared_at_the_end(site: Site) -> None:
    site.add(1, 0, 1)
    folder = WatchedFolder(site.folder)
    options = WatchOptions(once=True, settle_s=0, rule=MatchRule("steps"))
    with open_state(None, folder) as state:
        alarms = list(Watcher(folder, state, options, site.engine).run())
    assert {a.kind for a in alarms} == {"late_rank", "missing_rank"}


def test_the_same_capture_under_two_names_is_counted_once(site: Site) -> None:
    site.add(0, 0, 1, 2)
    shutil.copy(site.folder / "rank1_0.pt.trace.json", site.folder / "copy.pt.trace.json")
    assert site.watch() == []
    (site.folder / "rank2_0.pt.trace.json").rename(site.folder / "moved.pt.trace.json")
    site.add(0, 3)
    site.watch()
    assert (site.count("captures"), site.count("duplicates"), site.count("windows")) == (4, 2, 1)


def test_a_file_that_grows_after_it_was_read_replaces_its_capture(site: Site) -> None:
    site.add(0, 0, 1)
    site.watch()
    site.add(0, 1, more="events")
    site.add(0, 2, 3)
    site.watch()
    assert (site.count("captures"), site.count("windows")) == (5, 1)
    assert site.reports == ["window 1, steps 0 to 7: 4 ranks, 0 missing, 0 alarms"]


def test_names_that_are_not_utf8(site: Site) -> None:
    site.add(0, 0, 1, name="rank{rank}\udcff.pt.trace.json")
    (site.folder / "rank7\udcfe.pt.trace.json").write_text("{")
    (alarm,) = site.watch()
    assert (alarm.kind, alarm.file) == ("broken_capture", "rank7\\udcfe.pt.trace.json")
    assert site.watch() == []
    assert (site.count("captures"), len(site.engine.read)) == (2, 3)


def test_other_files_are_ignored(site: Site) -> None:
    site.add(0, 0, name="notes.txt", other=True)
    site.watch()
    site.watch()
    assert site.engine.read == ["notes.txt"]
    assert site.count("captures") == 0


def test_a_damaged_capture_raises_one_alarm(site: Site) -> None:
    path = site.folder / "rank3_0.pt.trace.json"
    path.write_text("{")
    (alarm,) = site.watch()
    assert (alarm.kind, alarm.rank, alarm.file) == ("broken_capture", 3, path.name)
    assert alarm.sentence == f"{path.name} cannot be read: the capture is damaged (hint: record it again)"
    assert site.watch() == []
    path.write_text("{{")  # it changes, but is still damaged
    assert site.watch() == []
    site.add(0, 3)
    assert site.watch() == []
    assert path.exists()
    assert (site.count("captures"), site.count("alarms broken_capture")) == (1, 1)


def test_a_capture_is_tried_several_times(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (site.folder / "rank3_0.pt.trace.json").write_text("{")
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    folder = WatchedFolder(site.folder)
    options = WatchOptions(settle_s=2, rule=MatchRule("steps"))
    with open_state(site.state, folder) as state:
        watch = Watcher(folder, state, options, site.engine)
        alarms = []
        for _ in range(20):
            alarms += list(watch.look())
            now += 1
    assert len(site.engine.read) == MAX_ATTEMPTS
    assert kinds(alarms) == [("broken_capture", 3, None)]


def test_files_are_read_once_they_do_not_change(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    folder = WatchedFolder(site.folder)
    path = site.folder / "rank0_0.pt.trace.json"
    with open_state(site.state, folder) as state:
        watch = Watcher(folder, state, WatchOptions(settle_s=5, rule=MatchRule("steps")), site.engine)
        for size in range(4):
            path.write_text("{" + " " * size)
            list(watch.look())
            now += 4
        assert site.engine.read == []
        site.add(0, 0)
        list(watch.look())
        now += 6
        list(watch.look())
    assert site.engine.read == [path.name]


def test_old_files_are_read_at_once_even_if_clocks_jump(site: Site) -> None:
    site.add(0, 0, 1)
    old, future = site.folder / "rank0_0.pt.trace.json", site.folder / "rank1_0.pt.trace.json"
    os.utime(old, (1, 1))
    os.utime(future, (2**33, 2**33))
    folder = WatchedFolder(site.folder)
    with open_state(site.state, folder) as state:
        watch = Watcher(folder, state, WatchOptions(settle_s=1000), site.engine)
        list(watch.look())
    assert site.engine.read == [old.name]


def test_the_number_of_stored_windows_is_bounded(site: Site) -> None:
    for window in range(0, 4 * MAX_WINDOWS, 2):
        site.add(window, 0)
    alarms = site.watch()
    assert kinds(alarms) == [("missing_rank", rank, 1) for rank in (1, 2, 3)]  # others never had these ranks
    with open_state(site.state, WatchedFolder(site.folder)) as state:
        assert len(state.list_windows()) == MAX_WINDOWS
    assert site.count("captures") == 2 * MAX_WINDOWS


def test_a_folder_that_vanishes_is_awaited(site: Site) -> None:
    folder = WatchedFolder(site.folder)
    with open_state(site.state, folder) as state:
        watch = Watcher(folder, state, WatchOptions(settle_s=0, rule=MatchRule("steps")), site.engine)
        site.folder.rename(site.root / "away")
        with pytest.warns(TracekitWarning, match="the folder cannot be listed, and is tried again"):
            list(watch.look())
        list(watch.look())  # it does not warn again
        (site.root / "away").rename(site.folder)
        site.add(0, 0, 1, 2, 3)
        list(watch.look())
        assert state.get_count("windows") == 1
    shutil.rmtree(site.folder)
    with pytest.raises(FileNotFoundError):
        site.watch()


def test_files_that_vanish_are_no_alarm(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add(0, 0)
    path = site.folder / "rank0_0.pt.trace.json"
    engine_map = site.engine.map

    def remove_first(function: Any, members: Any) -> Any:
        path.unlink()
        return engine_map(function, members)

    monkeypatch.setattr(site.engine, "map", remove_first)
    assert site.watch() == []


def test_files_that_no_longer_exist_are_forgotten(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_KEPT_FILES", 0)
    site.add(0, 0, 1, 2, 3)
    site.watch()
    for path in list(site.folder.iterdir())[1:]:
        path.unlink()
    site.watch()
    with open_state(site.state, WatchedFolder(site.folder)) as state:
        assert state.count_files() == 1
    site.add(0, 0, 1, 2, 3)  # the same contents come back
    site.watch()
    assert (site.count("captures"), site.count("duplicates")) == (4, 3)


def test_a_report_and_its_export_are_one_capture(site: Site) -> None:
    site.add(0, 0, name="rank{rank}.nsys-rep")
    site.add(0, 0, name="rank{rank}.sqlite", export=True)
    site.add(0, 1, name="rank{rank}.sqlite", export=True)
    site.watch()
    assert sorted(site.engine.read) == ["rank0.nsys-rep", "rank1.sqlite"]
    site.add(0, 1, name="rank{rank}.nsys-rep")
    site.watch()
    assert sorted(site.engine.read) == ["rank0.nsys-rep", "rank1.sqlite"]
    # the export is read if the report is damaged
    (site.folder / "rank2.nsys-rep").write_text("{")
    site.add(0, 2, name="rank{rank}.sqlite", export=True)
    site.watch()
    site.watch()
    assert site.engine.read[2:] == ["rank2.nsys-rep", "rank2.sqlite"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (WatchOptions(rule=MatchRule("tims")), "there is no rule 'tims' to match captures"),
        (WatchOptions(interval_s=0), "interval_s is 0, but must be from 0.01 to 1e"),
        (WatchOptions(settle_s=-1), "settle_s is -1"),
        (WatchOptions(wait_s=float("nan")), "wait_s is nan"),
        (WatchOptions(world_size=-4), "world_size is -4"),
        (WatchOptions(limits=Limits(min_share=-0.1)), "min_share is -0.1"),
        (WatchOptions(limits=Limits(false_alarms=0.0)), "false_alarms is 0"),
    ],
)
def test_invalid_options(site: Site, options: WatchOptions, message: str) -> None:
    folder = WatchedFolder(site.folder)
    with open_state(None, folder) as state, pytest.raises(TracekitError, match=message):
        Watcher(folder, state, options, site.engine)


def test_real_captures_in_python(tmp_path: Path) -> None:
    write_window(tmp_path / "run", 0, range(3), steps=4, delays=[Delay(2, "data", 4000)])
    (tmp_path / "run" / "rank9.pt.trace.json").write_text("{}")
    (tmp_path / "run" / "readme.txt").write_text("nothing")
    alarms = list(tk.watch(tmp_path / "run", state=tmp_path / "state", once=True, settle_s=0))
    assert {(a.kind, a.rank, a.phase) for a in alarms} == {("broken_capture", 9, None), ("late_rank", 2, "data")}
    assert list(tk.watch(tmp_path / "run", state=tmp_path / "state", once=True, settle_s=0)) == []


def test_the_rank_of_a_folder_or_of_the_user(tmp_path: Path) -> None:
    files = write_window(tmp_path / "made", 0, range(2), steps=2)
    for file, folder in zip(files, ("rank0", "other"), strict=True):
        (tmp_path / "run" / folder).mkdir(parents=True)
        text = file.read_text().replace('"distributedInfo"', '"x"')
        (tmp_path / "run" / folder / "trace.pt.trace.json").write_text(text)
    alarms = list(tk.watch(tmp_path / "run", once=True, settle_s=0))
    assert [(a.kind, a.file) for a in alarms] == [("broken_capture", "other/trace.pt.trace.json")]
    assert "the rank of this capture is unknown" in alarms[0].sentence
    assert list(tk.watch(tmp_path / "run", once=True, settle_s=0, ranks={"other": 1})) == []


class KilledEngine(LocalEngine):
    """An engine whose worker is killed by one file."""

    def __init__(self) -> None:
        super().__init__(2)
        self.alone: list[str] = []

    def map(self, function: Any, members: Any) -> Any:
        yield members[0], function(members[0])
        raise TracekitError("a worker process was killed, possibly because memory ran out", hint="use fewer jobs")

    def call_in_other_process(self, function: Any, member: Any) -> Any:
        self.alone.append(member.path.name)
        return TracekitError("killed") if "bomb" in member.path.name else function(member)


def test_a_file_that_kills_its_worker_is_named(tmp_path: Path) -> None:
    write_window(tmp_path / "run", 0, range(2), steps=2)
    (tmp_path / "run" / "rank7_bomb.pt.trace.json").write_text("{}")
    engine = KilledEngine()
    alarms = list(tk.watch(tmp_path / "run", once=True, settle_s=0, engine=engine))
    assert ("broken_capture", 7) in [(a.kind, a.rank) for a in alarms]
    assert len(engine.alone) == 2


def test_one_file_in_another_process(tmp_path: Path) -> None:
    engine = LocalEngine(2)
    member = tk.sets.Member(tmp_path / "x", 0, "")
    assert engine.call_in_other_process(_get_name, member) == "x"
    error = engine.call_in_other_process(_kill, member)
    assert isinstance(error, TracekitError)
    assert "a worker process was killed" in str(error)


def _get_name(member: Any) -> str:
    return str(member.path.name)


def _kill(_: Any) -> None:
    os._exit(9)
