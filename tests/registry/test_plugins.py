"""Errors inside plug-ins name the plug-in, and none of them ends the program or stops other formats."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit import registry, schemas
from tracekit.errors import PluginError, TracekitError, TracekitWarning
from tracekit.registry import analyses, detection
from tracekit.registry.analyses import RECIPE, REPORT, RULE, Analysis, Option, ResultColumn
from tracekit.registry.source import Source

TABLE = pa.table({"name": ["made"], "value": ["by a plug-in"]})
NAME = "the plug-in 'some_plugin:part' of some-plugin 1.5"


class Special(BaseException):
    """An exception that is no Exception, as test runners and libraries for threads define them."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class OwnInterrupt(KeyboardInterrupt):
    """A subclass of the exception that Ctrl-C raises."""


ERRORS = [
    ValueError("bad value"),
    KeyError("kernels"),
    OSError(28, "No space left on device"),
    MemoryError(),
    RecursionError("too deep"),
    StopIteration(),
    SystemExit(0),
    SystemExit("no licence"),
    Special(),
    asyncio.CancelledError(),
]


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget what other tests have collected."""
    caches = (
        *(registry.readers, registry.exporters, registry.load_plugin_tables),
        *(analyses._load_plugins, analyses._load_all_plugins, schemas.table_names, schemas._build_table_schema),
    )
    for cached in caches:
        cached.cache_clear()
    yield
    schemas._added_tables.clear()
    for cached in caches:
        cached.cache_clear()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that a distribution with a reader or an exporter is installed."""

    def add(part: object, group: str = "tracekit.readers") -> None:
        module = ModuleType("some_plugin")
        module.__dict__["part"] = part
        monkeypatch.setitem(sys.modules, "some_plugin", module)
        entry = importlib.metadata.EntryPoint("part", "some_plugin:part", group)
        vars(entry)["dist"] = SimpleNamespace(name="some-plugin", version="1.5")
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [entry] * (group == entry.group))

    return add


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.mine"
    path.write_bytes(b"MINE")
    return path


def is_mine(source: Source) -> bool:
    return source.head == b"MINE"


def text_of(error: BaseException) -> str:
    kind = type(error).__name__
    try:
        return f"{kind}: {error}" if str(error) else kind
    except RuntimeError:
        return kind


class TestImport:
    """A plug-in that cannot be imported is skipped with a warning, whatever it raises."""

    @pytest.mark.parametrize("error", [*ERRORS, KeyboardInterrupt(), OwnInterrupt(), GeneratorExit()], ids=text_of)
    @pytest.mark.parametrize("in_thread", [False, True])
    def test_is_skipped(self, error: BaseException, in_thread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        entry = SimpleNamespace(value="bad:READER", load=failing(error))
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [entry])
        handler = signal.getsignal(signal.SIGINT)
        formats: list[str] = []

        def list_formats() -> None:
            formats.extend(registry.readers())

        thread = threading.Thread(target=list_formats)
        with pytest.warns(TracekitWarning, match="the plug-in 'bad:READER' was skipped: ") as caught:
            (thread.run if not in_thread else lambda: (thread.start(), thread.join()))()
        assert "nsys-sqlite" in formats
        assert type(error).__name__ in str(caught[0].message)
        assert signal.getsignal(signal.SIGINT) is handler

    def test_ctrl_c_interrupts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def press_ctrl_c() -> None:
            os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(
            importlib.metadata, "entry_points", lambda **_: [SimpleNamespace(value="a:b", load=press_ctrl_c)]
        )
        with pytest.raises(KeyboardInterrupt):
            registry.readers()

    def test_a_handler_of_the_plug_in_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def handle(*_: object) -> None:
            """Do nothing."""

        def load() -> None:
            signal.signal(signal.SIGINT, handle)
            raise ValueError

        before = signal.getsignal(signal.SIGINT)
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [SimpleNamespace(value="a:b", load=load)])
        try:
            with pytest.warns(TracekitWarning, match="ValueError"):
                registry.readers()
            assert signal.getsignal(signal.SIGINT) is handle
        finally:
            signal.signal(signal.SIGINT, before)

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"format": None}, "its field 'format' is not a string"),
            ({"doc": b"text"}, "its field 'doc' is not a string"),
            ({"suffixes": None}, "its field 'suffixes' is not a tuple"),
            ({"suffixes": ".a"}, "its field 'suffixes' is not a tuple"),
            ({"suffixes": (b".a",)}, "its field 'suffixes' is not a tuple"),
            ({"suffixes": ("",)}, "its field 'suffixes' is not a tuple of nonempty strings"),
            ({"open": None}, "its field 'open' is not a function"),
            ({"redact": 1}, "its field 'redact' is not a function"),
            ({"format": "parquet"}, "the format 'parquet' already has another reader"),
        ],
    )
    def test_fields_of_other_types(self, changes: dict[str, Any], problem: str, install: Callable[..., None]) -> None:
        fields = {"format": "mine", "doc": "a test", "suffixes": (), "sniff": is_mine, "open": is_mine}
        install(tk.Reader(**{**fields, **changes}))
        with pytest.warns(TracekitWarning, match=f"^{NAME} was skipped: {problem}"):
            assert "mine" not in registry.readers()

    def test_damaged_metadata(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Damaged:
            @property
            def name(self) -> str:
                raise KeyError("Name")

        entry = SimpleNamespace(value="a:b", load=failing(ValueError("x")), dist=Damaged())
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [entry])
        with pytest.warns(TracekitWarning, match="^the plug-in 'a:b' was skipped: ValueError: x"):
            registry.readers()


def check(use: Callable[[], object], error: BaseException, what: str, path: Path | None) -> None:
    """Check that a call raises an error of tracekit that names the plug-in, its function and the file."""
    with pytest.raises(PluginError) as raised:
        use()
    assert raised.value.message == f"{what} of {NAME} failed: {text_of(error)}"
    assert raised.value.path == (None if path is None else str(path))
    assert raised.value.hint == "report the problem to the authors of the plug-in"
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", ERRORS, ids=text_of)
class TestReader:
    """Every function of a reader and every method of its capture."""

    def test_sniff(self, error: BaseException, install: Callable[..., None], file: Path) -> None:
        install(tk.Reader("mine", "a test", (), failing(error), is_mine))
        message = f"the reader 'mine' was skipped: the function 'sniff' of {NAME} failed: {type(error).__name__}"
        with pytest.warns(TracekitWarning, match=message):
            assert detection.find_reader(Source(file)) is None

    def test_open(self, error: BaseException, install: Callable[..., None], file: Path) -> None:
        install(tk.Reader("mine", "a test", (), is_mine, failing(error)))
        check(lambda: tk.load(file), error, "the function 'open'", file)

    @pytest.mark.many(20)
    @pytest.mark.parametrize(
        ("method", "use"),
        [
            ("names", lambda t: t.count_all()),
            ("may_have", lambda t: t.count("kernels")),
            ("count", lambda t: t.count("kernels")),
            ("read", lambda t: t.table("kernels")),
            ("count_many", lambda t: t.count_all()),
            ("read_many", lambda t: t.correlate().frame("kernels").collect()),
            ("count_undecoded", lambda t: t.undecoded),
            ("close", lambda t: t.close()),
        ],
    )
    def test_methods(
        self,
        method: str,
        use: Callable[[tk.Trace], object],
        error: BaseException,
        install: Callable[..., None],
        file: Path,
    ) -> None:
        methods = {
            "names": lambda _: ["kernels", "api_calls"],
            "count": lambda *_: 0,
            "read": lambda *_: tk.schemas.empty(tk.schemas.table("kernels")),
        }
        capture = type("Mine", (tk.Capture,), {**methods, method: failing(error)})
        install(tk.Reader("mine", "a test", (), is_mine, lambda _: capture()))
        trace = tk.load(file)
        if method == "close":
            trace.count("kernels")
        called = "may_have" if method == "names" else method  # which asks for the names by default
        check(lambda: use(trace), error, f"the method '{called}' of the capture", file)

    def test_a_mapping(self, error: BaseException, install: Callable[..., None], file: Path) -> None:
        class Tables(Mapping[str, pa.Table]):
            def __getitem__(self, key: str) -> pa.Table:
                raise error

            def __iter__(self) -> Iterator[str]:
                return iter(["kernels"])

            def __len__(self) -> int:
                return 1

            def __contains__(self, key: object) -> bool:
                return key == "kernels"

        install(tk.Reader("mine", "a test", (), is_mine, lambda _: Tables()))
        with tk.load(file) as trace:
            check(lambda: trace.table("kernels"), error, "the mapping of tables", file)
            assert trace.count("api_calls") == 0

    def test_redact(self, error: BaseException, install: Callable[..., None], file: Path, tmp_path: Path) -> None:
        fail = failing(error)
        install(tk.Reader("mine", "a test", (), is_mine, is_mine, redact=fail, unredacted=fail))
        check(lambda: tk.unredacted(file), error, "the function 'unredacted'", file)
        check(lambda: tk.redact(file, tmp_path / "out.mine"), error, "the function 'redact'", file)
        assert not (tmp_path / "out.mine").exists()


@pytest.mark.parametrize("error", ERRORS, ids=text_of)
class TestExporter:
    """Every function of an exporter. No output is left."""

    @pytest.mark.many(9)
    @pytest.mark.parametrize("name", ["write", "write_table"])
    def test_functions(self, name: str, error: BaseException, install: Callable[..., None], tmp_path: Path) -> None:
        functions = {name: failing(error)}
        install(tk.Exporter("mine", "a test", (".mine",), **functions), "tracekit.exporters")
        with tk.load(FIXTURES / "empty.sqlite") as trace, pytest.raises(PluginError) as raised:
            trace.export(tmp_path / "out.mine", tables=["kernels"] if name == "write_table" else None)
        assert raised.value.message == f"the function '{name}' of {NAME} failed: {text_of(error)}"
        assert raised.value.__cause__ is error
        assert raised.value.path in (None, str(tmp_path / "out.mine"))
        assert list(tmp_path.iterdir()) == []

    def test_wrote(self, error: BaseException, install: Callable[..., None], tmp_path: Path) -> None:
        install(tk.Exporter("mine", "a test", (".mine",), wrote=failing(error)), "tracekit.exporters")
        (tmp_path / "notes").write_text("mine")
        with pytest.warns(
            TracekitWarning, match=f"the exporter 'mine' wrote this file: the function 'wrote' of {NAME}"
        ):
            assert not registry.is_exported_file(tmp_path / "notes")


class TestWhatStays:
    """Errors of tracekit, of the caller and of the user keep their class and text."""

    def test_errors_of_tracekit(self, install: Callable[..., None], file: Path) -> None:
        install(tk.Reader("mine", "a test", (), is_mine, failing(TracekitError("line 3 is wrong", path="x"))))
        with pytest.raises(TracekitError, match=r"^x: line 3 is wrong$") as raised:
            tk.load(file)
        assert type(raised.value) is TracekitError

    def test_ctrl_c(self, install: Callable[..., None], file: Path) -> None:
        install(tk.Reader("mine", "a test", (), is_mine, failing(KeyboardInterrupt())))
        with pytest.raises(KeyboardInterrupt):
            tk.load(file)

    def test_errors_of_the_progress_callback(self, install: Callable[..., None], tmp_path: Path) -> None:
        def write(_: object, path: Path, progress: Callable[[int, int], None]) -> None:
            path.write_text("x")
            progress(1, 2)

        install(tk.Exporter("mine", "a test", (".mine",), write=write), "tracekit.exporters")
        with tk.load(FIXTURES / "empty.sqlite") as trace:
            with pytest.raises(LookupError, match="stop"):
                trace.export(tmp_path / "out.mine", progress=failing(LookupError("stop")))
            assert trace.export(tmp_path / "out.mine").read_text() == "x"

    def test_options_are_checked_before_an_exporter_is_called(
        self, install: Callable[..., None], tmp_path: Path
    ) -> None:
        def write(_: object, path: Path, __: object, *, options: dict[str, object]) -> None:
            path.write_text(repr(options))

        level = Option("level", "A level.", "integer", 3, maximum=9)
        install(tk.Exporter("mine", "a test", (".mine",), write=write, options=(level,)), "tracekit.exporters")
        with tk.load(FIXTURES / "empty.sqlite") as trace:
            assert trace.export(tmp_path / "a.mine").read_text() == "{'level': 3}"
            assert trace.export(tmp_path / "b.mine", options={"level": "1"}).read_text() == "{'level': 1}"
            with pytest.raises(tk.errors.UnknownFormatError, match="the format mine: 10 is not a valid value"):
                trace.export(tmp_path / "c.mine", options={"level": 10})

    def test_options_of_an_old_exporter_are_refused(self, install: Callable[..., None]) -> None:
        install(tk.Exporter("mine", "a test", (".mine",), options={"level": "A level."}), "tracekit.exporters")  # type: ignore[arg-type]
        with pytest.warns(TracekitWarning, match="its field 'options' is not a tuple of objects of the class Option"):
            assert "mine" not in registry.exporters()

    def test_guarded_readers_can_be_pickled(self, install: Callable[..., None]) -> None:
        install(tk.Reader("mine", "a test", (), is_mine, is_mine))
        assert pickle.loads(pickle.dumps(registry.reader("mine"))) == registry.reader("mine")

    def test_results_of_other_types(self, install: Callable[..., None], file: Path) -> None:
        methods = {"names": lambda _: ["kernels"], "count": lambda *_: "many", "read": lambda *_: None}
        odd = type("Odd", (tk.Capture,), methods)
        install(tk.Reader("mine", "a test", (), is_mine, lambda _: odd()))
        with tk.load(file) as trace:
            with pytest.raises(PluginError, match=f"the method 'count' of the capture of {NAME} failed: TypeError"):
                trace.count("kernels")
            with pytest.raises(TracekitError, match=r"not a pyarrow\.Table"):
                trace.table("kernels")


GROUP = "tracekit.analyses"
COLUMNS = (ResultColumn("Kernels", "int64", "Number of kernels.", field="count"),)


def count_kernels(request: Any) -> pl.LazyFrame:
    return request.frames("kernels").select(count=pl.len() * request.get_integer("factor"))


def create_analysis(name: str, compute: Any = count_kernels, **changes: Any) -> Analysis:
    results = (schemas.TableSchema(name, "A test.", (), COLUMNS),)
    options = (Option("factor", "A factor.", "integer", 1),)
    fields = {"kind": REPORT, "doc": "A test.", "compute": compute, "results": results, "options": options}
    return Analysis(name=name, **{**fields, **changes})


class TestAnalyses:
    """A plug-in adds reports, rules and recipes, and tables that its reader returns."""

    def test_report(self, install: Callable[..., None]) -> None:
        install(create_analysis("kernel_count", tables=("kernels",)), GROUP)
        trace = tk.load(FIXTURES / "train_amp.sqlite")
        assert trace.stats("kernel_count:factor=2").rows() == [(2 * trace.count("kernels"),)]
        assert "kernel_count" in analyses.list_names(REPORT)
        with pytest.raises(TracekitError, match="set factor to an integer"):
            trace.stats("kernel_count", options={"factor": "x"})
        assert tk.Trace.from_tables({}).explain_missing_rows("kernel_count").sentence

    def test_rule_and_recipe(self, install: Callable[..., None]) -> None:
        install(create_analysis("many_kernels", kind=RULE), GROUP)
        trace = tk.load(FIXTURES / "train_amp.sqlite")
        assert trace.analyze("many_kernels").rows() == [(trace.count("kernels"),)]
        analyses._load_plugins.cache_clear()
        analyses._load_all_plugins.cache_clear()
        install(create_analysis("mine", lambda request: {"mine": count_kernels(request).collect()}, kind=RECIPE), GROUP)
        tables = tk.load_many(FIXTURES / "ranks").recipe("mine", factor=0)  # type: ignore[call-arg]
        assert tables["mine"].rows() == [(0, 0), (0, 1)]

    def test_errors_name_the_plug_in(self, install: Callable[..., None]) -> None:
        install(create_analysis("kernel_count", failing(ValueError("bad value"))), GROUP)
        with pytest.raises(PluginError, match=f"the function 'compute' of {NAME} failed: ValueError: bad value"):
            tk.Trace.from_tables({}).stats("kernel_count")

    @pytest.mark.parametrize(
        ("analysis", "problem"),
        [
            (create_analysis("cuda_gpu_kern_sum"), "the report 'cuda_gpu_kern_sum' already exists"),
            (create_analysis("x", compute=3), "its field 'compute' is not a function"),
            (
                create_analysis("x", options=("factor",)),
                "its field 'options' is not a tuple of objects of the class Opt",
            ),
            (create_analysis("x", doc=None), "its field 'doc' is not a string"),
        ],
    )
    def test_is_skipped(self, analysis: Analysis, problem: str, install: Callable[..., None]) -> None:
        install(analysis, GROUP)
        with pytest.warns(TracekitWarning, match=f"^{NAME} was skipped: {problem}"):
            names = analyses.list_names(REPORT)
        assert "x" not in names
        assert tk.load(FIXTURES / "train_amp.sqlite").stats("cuda_gpu_kern_sum").height > 1

    def test_table(self, install: Callable[..., None]) -> None:
        column = schemas.Column("clock_mhz", "int64", "Clock rate.", "MHz")
        install(schemas.TableSchema("clocks", "A clock rate.", (), (column,)), "tracekit.tables")
        assert schemas.table("clocks").names == ["clock_mhz"]
        assert "clocks" in schemas.table_names()
        trace = tk.Trace.from_tables({"clocks": pa.table({"clock_mhz": [1500]})})
        assert trace["clocks"].to_pylist() == [{"clock_mhz": 1500}]

    def test_a_built_in_table_stays(self, install: Callable[..., None]) -> None:
        install(schemas.TableSchema("kernels", "Others.", (), ()), "tracekit.tables")
        with pytest.warns(TracekitWarning, match="the table 'kernels' already exists"):
            registry.readers()
        assert "name" in schemas.table("kernels")
