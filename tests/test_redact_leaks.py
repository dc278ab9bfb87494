"""Nothing of generated private strings is left in any format that ``redact`` reads, and no name changes that is public.

``make test-all`` hides 1,000 private strings in each format, ``make test`` some of them.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import pickle
import re
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.builders import kineto
from tests.builders.nsys_rep import Parts, event, message, strings
from tests.builders.nsys_sqlite import edited
from tests.builders.private_values import HOSTS, KINDS_OF_VALUES, NAMES, Private, private_values
from tests.conftest import FIXTURES, examples
from tests.secrets_of import texts
from tests.test_redact import CORPUS, OWN, named
from tracekit import registry
from tracekit.errors import TracekitError, TracekitWarning
from tracekit.readers.redaction.escapes import iterate_levels
from tracekit.readers.redaction.matcher import PrivateValueMatcher

STRINGS_PER_FILE = 25
FIRST_ID = 900_000
VARIABLES = dict(
    zip(
        ("USER", "LOGNAME", "USERNAME", "SUDO_USER", "SLURM_JOB_USER", "HOSTNAME", "COMPUTERNAME"),
        (*NAMES, *HOSTS),
        strict=True,
    )
)
ENVIRONMENT = {"PATH": "/opt", "TERM": "xterm", **VARIABLES}
AS_TEXT = "".join(f"{name}={value}\0" for name, value in ENVIRONMENT.items())


def made_export(folder: Path, private: list[str]) -> Path:
    values = (AS_TEXT, *private)
    statements = [
        f"INSERT INTO StringIds VALUES ({FIRST_ID + i}, CAST(X'{t.encode().hex()}' AS TEXT))"
        for i, t in enumerate(values)
    ]
    messages = ", ".join(f"({i}, CAST(X'{t.encode().hex()}' AS TEXT))" for i, t in enumerate(private))
    return edited(
        folder, *statements, "CREATE TABLE MESSAGES (id, text)", f"INSERT INTO MESSAGES VALUES {messages}", of="empty"
    )


def made_report(folder: Path, private: list[str]) -> Path:
    marks = [event(59, 102, (1, 59), (2, 1), (7, text), (9, 7 << 24 | 7), (10, 2)) for text in private]
    errors = [event(49, 110, (1, message((1, 1))), (4, text), (5, 7 << 24)) for text in private]
    path = folder / "made.nsys-rep"
    path.write_bytes(Parts([b"".join((*marks, *errors))], [strings(AS_TEXT, *private)]).pack())
    return path


def made_trace(folder: Path, private: list[str]) -> Path:
    events = [
        json.loads(kineto.op(text)) | {"args": {"Call stack": text, "inner": json.dumps({"a": text})}}
        for text in private
    ]
    document = {"schemaVersion": 1, "metadata": {"env": ENVIRONMENT}, "INFO": private, "traceEvents": events}
    path = folder / "made.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def made_snapshot(folder: Path, private: list[str]) -> Path:
    frames = [{"name": text, "filename": text, "line": 1} for text in private]
    event = {"action": "alloc", "addr": 1, "size": 1, "stream": 0, "time_us": 1, "frames": frames}
    events = [event | {"user_metadata": text, "compile_context": text} for text in private]
    notes = [{"stage": "START", "name": text, "device": 0, "time_us": 1} for text in (AS_TEXT, *private)]
    path = folder / "made.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events], "external_annotations": notes}))
    return path


def made_profile(folder: Path, private: list[str]) -> Path:
    texts_of_plane = (AS_TEXT, *private)
    names = [(4, message((1, i), (2, message((1, i), (2, text))))) for i, text in enumerate(texts_of_plane, 1)]
    statistics = (5, message((1, 1), (2, message((1, 1), (2, "note")))))
    events = [(4, message((1, i), (3, 1000), (4, message((1, 1), (5, t))))) for i, t in enumerate(texts_of_plane, 1)]
    line = (3, message((1, 1), (2, "python"), (3, 1), *events))
    path = folder / "made.xplane.pb"
    path.write_bytes(message((1, message((2, "/host:CPU"), *names, statistics, line))))
    return path


def made_database(folder: Path, private: list[str], name: str) -> Path:
    path = folder / "made.sqlite"
    path.write_bytes((FIXTURES / "rocm" / name).read_bytes())
    with contextlib.closing(sqlite3.connect(path)) as db:
        tables = [table for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        strings_of_names = next(table for table in tables if table.startswith("rocpd_string"))
        rows = [(FIRST_ID + i, text) for i, text in enumerate((AS_TEXT, *private))]
        db.executemany(f'INSERT INTO "{strings_of_names}" (id, string) VALUES (?, ?)', rows)
        for table in (t for t in tables if t.startswith("rocpd_info_process")):
            db.execute(f'UPDATE "{table}" SET environment = ?, command = ?', (json.dumps(ENVIRONMENT), private[0]))
        db.commit()
    return path


def made_log(folder: Path, private: list[str]) -> Path:
    log = json.loads((FIXTURES / "nccl" / "stuck_rank0.json").read_text("utf-8"))
    frames = [{"name": text, "filename": text, "line": 1} for text in private]
    log["entries"] = [entry | {"frames": frames} for entry in log["entries"][:1]]
    path = folder / "made.json"
    path.write_text(json.dumps(log | {"env": ENVIRONMENT, "notes": private}), "utf-8")
    return path


def made_timeline(folder: Path, private: list[str]) -> Path:
    events = json.loads((FIXTURES / "ascend" / "trace_view.json").read_text("utf-8"))
    first = {"ph": "X", "pid": 4242, "tid": 4242, "ts": "1795822680000000.000", "dur": 1.0, "cat": "cpu_op"}
    added = [first | {"name": text, "args": {"Call stack": text}} for text in (AS_TEXT, *private)]
    path = folder / "made.json"
    path.write_text(json.dumps([*events, *added]), "utf-8")
    return path


MAKERS: dict[str, Callable[[Path, list[str]], Path]] = {
    "nsys-sqlite": made_export,
    "nsys-rep": made_report,
    "kineto": made_trace,
    "memory-snapshot": made_snapshot,
    "xplane": made_profile,
    "nccl": made_log,
    "ascend": made_timeline,
    "rocpd": functools.partial(made_database, name="train_results.db"),
    "rpd": functools.partial(made_database, name="train.rpd"),
}


def contents(path: Path) -> bytes:
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    if path.suffix in (".pickle", ".pb", ".json"):
        return data
    return b"\0".join(texts(path)) + (data if path.suffix == ".sqlite" else b"")


def left(path: Path, private: list[Private]) -> list[tuple[str, str]]:
    """The values that are left, each with the string that it was hidden in, also where they are escaped."""
    levels = list(iterate_levels(contents(path)))
    return [(value, p.text) for p in private for value in p.values if any(value.encode() in level for level in levels)]


def test_every_format_that_can_be_redacted_is_attacked() -> None:
    assert MAKERS.keys() == {name for name, reader in registry.readers().items() if reader.redact is not None}


@pytest.mark.parametrize("name", MAKERS)
@settings(
    max_examples=examples(1000 // STRINGS_PER_FILE),
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    private=st.lists(
        st.sampled_from(KINDS_OF_VALUES).flatmap(private_values), min_size=STRINGS_PER_FILE, max_size=STRINGS_PER_FILE
    )
)
def test_nothing_of_generated_private_strings_is_left(
    name: str, private: list[Private], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp(name)
    path = MAKERS[name](folder, [p.text for p in private])
    assert len(left(path, private)) >= sum(len(p.values) for p in private)
    out = folder / f"copy{path.suffix}"
    assert tk.unredacted(path) == tk.redact(path, out)
    assert left(out, private) == []
    assert left(out, [Private(value, (value,)) for value in VARIABLES.values()]) == []
    assert not any(tk.unredacted(out).values())


NAMED = {
    "kernels": ("name", "short_name", "mangled_name"),
    "nvtx_ranges": ("name", "domain", "category"),
    "nvtx_marks": ("name", "domain", "category"),
    "api_calls": ("name",),
    "stacks": ("symbol",),
    "graph_nodes": ("name",),
    "osrt_calls": ("name",),
    "mpi_calls": ("name",),
}
"""Columns with names of kernels, functions and ranges."""
HOME = re.compile(rb"((?:/home|/Users|\\Users)[/\\])[^/\\\s:'\",]+")
MATCHER = PrivateValueMatcher(())


def names_of(path: Path) -> Iterator[bytes]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        with tk.load(path) as trace:
            for table, columns in NAMED.items():
                for column in trace[table].column_names if table in trace.tables else ():
                    if column in columns and pa.types.is_dictionary(trace[table][column].type):
                        values = pl.from_arrow(trace[table][column]).unique().drop_nulls().to_list()
                        yield from (str(value).encode() for value in values)


def changed_names(path: Path) -> list[bytes]:
    """The names that change although they contain no name of a home folder."""
    data = b"\0".join(set(names_of(path)))
    starts = {data.rfind(b"\0", 0, start) + 1 for start, _, _ in MATCHER.find_candidates(data)}
    candidates = [data[start:].partition(b"\0")[0] for start in starts]
    return [name for name in candidates if HOME.sub(rb"\1", MATCHER.redact_copy(name)) != HOME.sub(rb"\1", name)]


@pytest.mark.parametrize("path", [*OWN, kineto.TRACE], ids=named)
def test_names_of_kernels_functions_and_ranges_stay(path: Path) -> None:
    assert changed_names(path) == []


PUBLIC = [*CORPUS, *(sorted(kineto.CORPUS.rglob("*.json*")) if kineto.CORPUS.is_dir() else ())]


@pytest.mark.corpus
@pytest.mark.skipif(not PUBLIC, reason="no corpus beside the checkout")
@pytest.mark.many(2)
@pytest.mark.parametrize("number", range(len(PUBLIC)))
def test_names_of_public_captures_stay(number: int) -> None:
    try:
        number_of_names = len(changed_names(PUBLIC[number]))
    except TracekitError:
        pytest.skip("the capture cannot be read")
    assert number_of_names == 0
