"""Which reader and exporter is taken, and that a plug-in cannot break the rest."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
import tracekit as tk
from tracekit import registry
from tracekit.errors import TracekitError, TracekitWarning, UnknownFormatError
from tracekit.registry import detection
from tracekit.registry.interface import Exporter, Reader
from tracekit.registry.source import Source

FIXTURES = Path(__file__).parents[2] / "fixtures"


def nothing(*_: object) -> None:
    """Do nothing."""


def reader(format: str, *, sniff=lambda _: False, suffixes: tuple[str, ...] = ()) -> Reader:
    table = pa.table({"name": ["made"], "value": ["by a plug-in"]})
    return Reader(format, "a test", suffixes, sniff, lambda _: {"capture_info": table})


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget what other tests have collected."""
    registry.readers.cache_clear()
    registry.exporters.cache_clear()
    yield
    registry.readers.cache_clear()
    registry.exporters.cache_clear()


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch):
    """Pretend that packages with these parts are installed."""

    def install(group: str = "tracekit.readers", /, **parts: object) -> None:
        module = ModuleType("some_plugin")
        module.__dict__.update(parts)
        monkeypatch.setitem(sys.modules, "some_plugin", module)
        entries = [importlib.metadata.EntryPoint(n, f"some_plugin:{n}", group) for n in parts]
        found = {group: entries}
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: found.get(group, []))

    return install


def test_the_built_in_ones() -> None:
    assert set(registry.readers()) >= {"nsys-sqlite", "parquet", "arrow"}
    assert set(registry.exporters()) >= {"chrome-trace", "perfetto", "csv", "parquet", "arrow"}
    for name, part in {**registry.readers(), **registry.exporters()}.items():
        assert part.format == name
        assert part.doc
        assert all(s.startswith((".", "_")) for s in part.suffixes)
    for name, (_, suffixes) in registry.BUILTIN_READERS.items():
        assert registry.reader(name) is registry.readers()[name]
        assert registry.reader(name).suffixes == suffixes
    for name in registry.BUILTIN_EXPORTERS:
        assert registry.exporter(name) is registry.exporters()[name]
    assert registry.reader("parquet") is registry.readers()["parquet"]
    assert registry.exporter("parquet") is registry.exporters()["parquet"]


def test_no_such_format() -> None:
    with pytest.raises(
        UnknownFormatError,
        match=r"^no reader is called 'nsys'\nHint: did you mean 'nsys-rep'\? choose one of these readers: nsys-sqlite",
    ):
        registry.reader("nsys")
    said = r"^no exporter is called 'xml'\nHint: choose one of these exporters: chrome-trace, "
    with pytest.raises(UnknownFormatError, match=said):
        registry.exporter("xml")


def test_the_longest_suffix_counts(plugins) -> None:
    plugins("tracekit.exporters", other=Exporter("other", "a test", (".gz", ".mine.parquet"), nothing))
    assert registry.find_exporter_for("a.parquet").format == "parquet"
    assert registry.find_exporter_for("a.mine.parquet").format == "other"
    assert registry.find_exporter_for(Path("x/a.json.gz")).format == "chrome-trace"
    assert registry.find_exporter_for("a.gz").format == "other"
    with pytest.raises(UnknownFormatError, match=r"^a.xyz: no exporter writes files with this suffix\nHint: choose"):
        registry.find_exporter_for("a.xyz")


def test_the_content_decides_and_the_suffix_only_orders(plugins, tmp_path: Path) -> None:
    asked: list[str] = []

    def sniffer(name: str):
        def sniff(source: Source) -> bool:
            asked.append(name)
            return source.head.startswith(b"MINE")

        return sniff

    first = reader("first", sniff=sniffer("first"), suffixes=(".one",))
    second = reader("second", sniff=sniffer("second"), suffixes=(".two",))
    plugins(first=first, second=second)
    for name, order in (("a.one", ["first"]), ("a.TWO", ["second"]), ("a", ["first"]), ("a.parquet", ["first"])):
        asked.clear()
        (tmp_path / name).write_bytes(b"MINE")
        trace = tk.load(tmp_path / name)
        assert (trace.format, asked) == (order[-1], order)
        assert trace.info == {"made": "by a plug-in"}


def test_a_plug_in_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("gone", "no_such_module_at_all:READER", "tracekit.readers")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [entry])
    message = "plug-in 'no_such_module_at_all:READER' was skipped: ModuleNotFoundError: No module named"
    with pytest.warns(TracekitWarning, match=message):
        assert "nsys-sqlite" in registry.readers()


@pytest.mark.parametrize("error", [RuntimeError("no licence"), SystemExit(3)])
def test_a_plug_in_that_fails_when_imported(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    class Entry:
        value = "bad:READER"

        def load(self) -> object:
            raise error

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [Entry()])
    with pytest.warns(TracekitWarning, match=f"plug-in 'bad:READER' was skipped: {type(error).__name__}: {error}"):
        assert "nsys-sqlite" in registry.readers()


def test_a_built_in_wins_over_its_name(plugins) -> None:
    plugins(mine=reader("parquet"))
    with pytest.warns(
        TracekitWarning, match="'some_plugin:mine' was skipped: the format 'parquet' already has another reader"
    ):
        assert registry.readers()["parquet"].doc != "a test"


def test_of_two_plug_ins_the_first_wins(plugins) -> None:
    plugins(one=reader("mine"), two=reader("mine"))
    with pytest.warns(
        TracekitWarning, match="plug-in 'some_plugin:two' was skipped: the format 'mine' already has another reader"
    ):
        assert registry.readers()["mine"]


def test_a_plug_in_of_the_wrong_kind(plugins) -> None:
    plugins(mine={"format": "mine"})
    with pytest.warns(
        TracekitWarning, match="'some_plugin:mine' was skipped: its object is a dict, not a tracekit.Reader"
    ):
        assert "mine" not in registry.readers()


def test_a_sniffer_that_fails_is_skipped(plugins, tmp_path: Path) -> None:
    def fail(source: Source) -> bool:
        raise IndexError("list index out of range")

    plugins(bad=reader("bad", sniff=fail, suffixes=(".mine",)), good=reader("good", sniff=lambda _: True))
    path = tmp_path / "a.mine"
    path.write_bytes(b"x")
    failed = "the function 'sniff' of the plug-in 'some_plugin:bad' failed: IndexError: list index out of range"
    message = f"^{path}: the reader 'bad' was skipped: {failed}$"
    with pytest.warns(TracekitWarning, match=message):
        assert detection.detect_reader(Source(path)).format == "good"


def test_a_source_reads_its_head_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 9000)
    source = Source(path)
    assert (source.head, source.size, source.names) == (b"x" * 4096, 9000, frozenset())
    path.write_bytes(b"")
    assert source.head == b"x" * 4096
    folder = Source(tmp_path)
    assert (folder.head, folder.names) == (b"", {"a"})


def test_a_file_that_goes_away(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        print(Source(tmp_path / "gone").size)
    with pytest.raises(FileNotFoundError, match="gone"):
        detection.detect_reader(Source(tmp_path / "gone"))


def test_a_folder_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(TracekitError, match="cannot be read: permission denied"):
        detection.detect_reader(Source(tmp_path / "closed" / "a.sqlite"))


def test_a_plug_in_that_gives_no_tables(plugins, tmp_path: Path) -> None:
    odd = Reader("odd", "a test", (), lambda _: True, lambda _: {"kernels": [1, 2]})  # type: ignore[dict-item]
    plugins(odd=odd)
    path = tmp_path / "a"
    path.write_bytes(b"x")
    trace = tk.load(path)
    for ask in (trace.table, trace.count):
        with pytest.raises(TracekitError, match=f"^{path}: table 'kernels' is a list, not a pyarrow.Table"):
            ask("kernels")


class TestFoldersOfCaptures:
    """Folders that hold captures, which are read one by one."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("train_amp.sqlite", "empty.nsys-rep", "empty.sqlite"):
            shutil.copy(FIXTURES / name, tmp_path)
        (tmp_path / "notes.txt").write_text("a note")
        os.mkfifo(tmp_path / "pipe")
        return tmp_path

    def test_say_what_they_hold(self, folder: Path) -> None:
        what = r"a folder of 3 captures \(1 of nsys-rep, 2 of nsys-sqlite\)"
        how = "pass one of its files: empty.nsys-rep, empty.sqlite, train_amp.sqlite"
        with pytest.raises(UnknownFormatError, match=f"{what}\nHint: {how}$"):
            tk.load(folder)

    def test_are_no_event_files_because_a_folder_below_has_some(self, folder: Path) -> None:
        events = next((FIXTURES / "tensorflow").rglob("events.out.*"))
        (folder / "runs").mkdir()
        shutil.copy(events, folder / "runs")
        with pytest.raises(UnknownFormatError, match="a folder of 3 captures"):
            tk.load(folder)
        assert detection.detect_reader(Source(folder / "runs")).format == "tfevents"
        shutil.copy(events, folder)
        assert detection.detect_reader(Source(folder)).format == "tfevents"

    def test_name_a_few_files(self, tmp_path: Path) -> None:
        for number in range(7):
            shutil.copy(FIXTURES / "empty.nsys-rep", tmp_path / f"rank{number}.nsys-rep")
        with pytest.raises(UnknownFormatError, match=r"7 captures \(7 of nsys-rep\)\n.*rank4.nsys-rep, …$"):
            tk.load(tmp_path)
