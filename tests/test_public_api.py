"""The public interface: names, signatures, docstrings, and what importing it does."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tracekit as tk
from tracekit import errors
from tracekit.sets.plots import SetPlots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NAMES = [
    "Capture",
    "Envelope",
    "Exporter",
    "Reader",
    "Trace",
    "TraceSet",
    "TracekitError",
    "TracekitWarning",
    "Undecoded",
    "analyze",
    "answer",
    "check",
    "convert",
    "diff",
    "errors",
    "formats",
    "load",
    "load_many",
    "redact",
    "save_baseline",
    "save_runs",
    "stats",
    "unredacted",
    "watch",
]


def public(owner: type | Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions and methods of a class or module."""
    for name, value in vars(owner).items():
        function = value.__func__ if isinstance(value, classmethod) else value
        if not name.startswith("_") and inspect.isfunction(function):
            yield f"{owner.__name__}.{name}", function


FUNCTIONS = dict(
    [
        *public(tk.Trace),
        *public(tk.TraceSet),
        *public(SetPlots),
        *((n, getattr(tk, n)) for n in NAMES if inspect.isfunction(getattr(tk, n))),
    ]
)
ERRORS = [e for e in vars(errors).values() if inspect.isclass(e) and issubclass(e, (errors.TracekitError, UserWarning))]


def test_names() -> None:
    assert tk.__all__ == NAMES
    assert [n for n in NAMES if not hasattr(tk, n)] == []


def test_the_package_stays_short() -> None:
    """A name takes three lines: an import for type checkers, an import when it is first used, and its export."""
    assert len((ROOT / "tracekit" / "__init__.py").read_text("utf-8").splitlines()) <= 3 * len(NAMES) - 6


def test_signatures_are_the_contract() -> None:
    written = {name: str(inspect.signature(f)) for name, f in FUNCTIONS.items()}
    assert written["load"] == (
        "(path: 'str | os.PathLike[str]', format: 'ReaderName | str | None' = None, *, via: 'str | None' = None, "
        "cache: 'bool | None' = None, layers: 'Layers | None' = None) -> 'Trace'"
    )
    assert written["stats"] == (
        "(trace: 'Captures', report: 'ReportName', *, options: 'Mapping[str, bool | int] | None' = None) "
        "-> 'pl.DataFrame'"
    )
    assert list(inspect.signature(tk.convert).parameters)[:3] == ["source", "target", "to"]
    assert {"Trace.correlate", "Trace.export", "Trace.frame", "Trace.select", "Trace.table"} <= FUNCTIONS.keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_most_two_parameters_are_positional(name: str) -> None:
    parameters = [p for p in inspect.signature(FUNCTIONS[name]).parameters.values() if p.name not in ("self", "cls")]
    assert len([p for p in parameters if p.kind in POSITIONAL]) <= 2
    assert not [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_everything_has_types(name: str) -> None:
    signature = inspect.signature(FUNCTIONS[name])
    untyped = [
        p.name for p in signature.parameters.values() if p.annotation is p.empty and p.name not in ("self", "cls")
    ]
    assert untyped == []
    assert signature.return_annotation is not signature.empty


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_say_what_is_returned_and_raised(name: str) -> None:
    doc = inspect.getdoc(FUNCTIONS[name]) or ""
    summary = doc.partition("\n")[0]
    assert summary.endswith((".", ":")), summary
    parameters = [p for p in inspect.signature(FUNCTIONS[name]).parameters if p not in ("self", "cls")]
    if len(parameters) > 1:
        assert "\nArgs:\n" in doc
        assert [p for p in parameters if f"\n    {p}: " not in doc] == []
    if {"path", "name", "format", "report", "target"} & set(parameters):
        assert "\nRaises:\n" in doc or name in QUIET, f"{name} can fail; say how"
    raised = set(_raised(doc))
    known = {e.__name__ for e in ERRORS} | {"FileNotFoundError"}
    assert raised <= known, raised - known


QUIET = {"Trace.frame", "TraceSet.frame"}


def _raised(doc: str) -> Iterator[str]:
    _, _, section = doc.partition("\nRaises:\n")
    for line in section.partition("\n\n")[0].splitlines():
        if line.startswith("    ") and not line.startswith("     ") and ":" in line:
            yield line.strip().partition(":")[0]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.__name__)
def test_errors_form_one_tree_drawn_in_the_docs(error: type[Exception]) -> None:
    assert issubclass(error, errors.TracekitError | errors.TracekitWarning)
    drawn = next(line for line in (errors.__doc__ or "").splitlines() if error.__name__ in line.split("─ ")[-1].split())
    builtin = [b.__name__ for b in error.__bases__ if b.__module__ == "builtins"]
    assert all(f"({b})" in drawn for b in builtin if b != "Exception")
    assert error.__doc__


def test_nothing_is_printed_or_configured_by_importing() -> None:
    code = (
        "import logging, warnings, signal\n"
        "state = lambda: (logging.root.handlers[:], warnings.filters[:], signal.getsignal(2))\n"
        "before = state()\n"
        "import tracekit, tracekit.cli\n"
        "assert before == state()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout + done.stderr == b""


def modules() -> list[str]:
    return ["tracekit", *(m.name for m in pkgutil.walk_packages(tk.__path__, "tracekit.") if "__main__" not in m.name)]


def source_of(name: str) -> str:
    path = ROOT / name.replace(".", "/")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in modules() if ">>> " in source_of(name)])
def test_examples_in_docstrings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


def test_the_verbs_of_the_interface_have_an_example() -> None:
    for name in ("load", "stats", "convert", "redact", "formats", "Trace.correlate", "Trace.select", "Trace.export"):
        assert ">>> " in (inspect.getdoc(FUNCTIONS[name]) or ""), f"{name} has no example"


def test_every_module_says_what_it_is() -> None:
    first_lines = {name: (inspect.getdoc(importlib.import_module(name)) or "").partition("\n")[0] for name in modules()}
    assert len(first_lines) > 300
    assert [name for name, line in first_lines.items() if not line.strip().endswith((".", ":"))] == []


@pytest.mark.many(1)
@pytest.mark.parametrize("old", ["pieces", "prefetch", "model"])
def test_former_names_warn_and_work(old: str) -> None:
    arguments = {"pieces": ("kernels",), "prefetch": ({"kernels": None},), "model": ("dlprof",)}
    new = {"pieces": "registry.read_chunks", "prefetch": "registry.prefetch", "model": "View.model"}[old]
    removal = "deprecated since version 1.0.0, and version 2.0.0 removes it"
    with tk.load(ROOT / "fixtures" / "train_amp.sqlite") as trace:
        with pytest.warns(DeprecationWarning, match=f"^Trace.{old} is {removal}: use {new} in exporters$"):
            getattr(trace, old)(*arguments[old])
        with pytest.raises(AttributeError, match="'Trace' object has no attribute 'nonesuch'"):
            trace.nonesuch  # noqa: B018
        with pytest.warns(DeprecationWarning, match=f"^Trace.counts is {removal}: use Trace.count_all$"):
            assert trace.counts() == trace.count_all()


def test_the_former_option_of_convert_warns_and_works(tmp_path: Path) -> None:
    source = ROOT / "fixtures" / "graph_node.sqlite"
    with pytest.warns(
        DeprecationWarning, match=r"^convert\(format=\) is deprecated .*: use convert\(source_format=\)$"
    ):
        tk.convert(source, tmp_path / "old", to="parquet", format="nsys-sqlite")
    tk.convert(source, tmp_path / "new", to="parquet", source_format="nsys-sqlite")
    assert {p.name for p in (tmp_path / "old").iterdir()} == {p.name for p in (tmp_path / "new").iterdir()}


def test_a_capture_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracekit import registry

    reader = tk.Reader("odd", "Opens an object that is no capture", (".odd",), lambda _: True, lambda _: object())  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(registry, "reader", lambda _: reader)
    with pytest.raises(errors.SchemaError, match="the reader 'odd' returned object, which is neither a mapping"):
        tk.load(ROOT / "fixtures" / "graph_node.sqlite", "odd")
