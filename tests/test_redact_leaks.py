"""Nothing of generated private strings is left in any format that ``redact`` reads, and no name changes that is public.

``make test-all`` hides 1,000 private strings in each format, ``make test`` some of them.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import gzip
import html
import json
import pickle
import re
import sqlite3
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

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
from tracekit.readers.common.protobuf.decoding import Message
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


def made_chrome_trace(folder: Path, private: list[str]) -> Path:
    events = [
        {"ph": "X", "pid": 1, "tid": 2, "ts": 1, "dur": 1, "name": text, "cat": text, "args": {"note": text, text: 1}}
        for text in (AS_TEXT, *private)
    ]
    named = {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": private[0]}}
    frames = {str(i): {"name": text} for i, text in enumerate(private)}
    document = {"traceEvents": [*events, named], "stackFrames": frames, "otherData": {"notes": private}}
    path = folder / "made.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def made_tree(folder: Path, private: list[str]) -> Path:
    metrics = {"count": 1, "time (ns)": 5, "device_id": "0", "device_type": "CUDA"}
    leaves = [
        {"frame": {"name": text, "type": "function"}, "children": [], "metrics": metrics | {"note": text}}
        for text in (AS_TEXT, *private)
    ]
    root = {"frame": {"name": "ROOT", "type": "function"}, "children": leaves, "metrics": {}}
    path = folder / "made.hatchet"
    path.write_text(json.dumps([root, {"CUDA": {"0": {"arch": private[0]}}}], ensure_ascii=False), "utf-8")
    return path


def made_records(folder: Path, private: list[str]) -> Path:
    document = json.loads((FIXTURES / "rocm" / "train_results.json").read_text("utf-8"))
    (process,) = document["rocprofiler-sdk-tool"]
    process["metadata"] |= {"command": private, "environment": ENVIRONMENT}
    process["strings"]["marker_api"] = [{"key": i, "value": text} for i, text in enumerate(private)]
    process["strings"]["code_object_snapshot_filenames"] = private
    process["kernel_symbols"] = [
        symbol | {"kernel_name": text} for symbol in process["kernel_symbols"][:1] for text in private
    ]
    path = folder / "made_results.json"
    path.write_text(json.dumps(document), "utf-8")
    return path


def quoted(cells: list[str]) -> str:
    return ",".join('"{}"'.format(cell.replace('"', '""')) for cell in cells)


def made_csv(folder: Path, private: list[str]) -> Path:
    header = (
        '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp","Note"\r\n'
    )
    rows = [f"{quoted(['MARKER', text])},1,2,3,4,5,{quoted([text])}\r\n" for text in (AS_TEXT, *private)]
    path = folder / "made_marker_api_trace.csv"
    path.write_bytes(b"\xef\xbb\xbf" + (header + "".join(rows)).encode())
    return path


def made_printed_tables(folder: Path, private: list[str]) -> Path:
    header = '"Start","Duration","Grid X","Grid Y","Grid Z","Device","Context","Stream","Name"\n'
    rows = [f"1.0,2.0,1,1,1,{quoted([text])},1,7,{quoted([text])}\n" for text in (AS_TEXT, *private)]
    lines = ["==42== NVPROF is profiling process 42, command: ./a.out " + private[0].replace("\n", " ")]
    lines += [text for text in private if not text.startswith("==")]
    path = folder / "made.csv"
    path.write_bytes(("\n".join(lines) + "\n==42== Profiling result:\n" + header + "".join(rows) + "\n").encode())
    return path


def made_lines(folder: Path, private: list[str]) -> Path:
    first, *lines = (FIXTURES / "nsys_jsonlines" / "nvtx_features.jsonlines").read_text("utf-8").splitlines()
    texts_of_line = [*json.loads(first)["data"], AS_TEXT, "PATH=/bin", "HOME=/root", *private]
    event = {"Type": 59, "Timestamp": "1", "GlobalTid": "1", "DomainId": "0", "NsTime": True}
    added = [{"Type": 59, "NvtxEvent": event | {"Text": text}} for text in private]
    added += [{"Type": 110, "DiagnosticEvent": {"Text": text, "Source": text}} for text in private]
    path = folder / "made.jsonlines"
    records = [json.dumps(record, separators=(",", ":")) for record in ({"data": texts_of_line}, *added)]
    path.write_text("\n".join([*records[:1], *lines, *records[1:]]), "utf-8")
    return path


def made_profile_of_nvprof(folder: Path, private: list[str]) -> Path:
    path = folder / "made.sqlite"
    path.write_bytes((FIXTURES / "nvprof" / "program.nvprof").read_bytes())
    with contextlib.closing(sqlite3.connect(path)) as db:
        rows = [(FIRST_ID + i, text) for i, text in enumerate(dict.fromkeys((AS_TEXT, *private)))]
        db.executemany("INSERT INTO StringTable (_id_, value) VALUES (?, ?)", rows)
        db.execute("CREATE TABLE notes (note, kind BLOB)")
        db.executemany("INSERT INTO notes VALUES (?, ?)", [(text, text.encode()) for text in private])
        db.commit()
    return path


def made_session(folder: Path, private: list[str]) -> Path:
    packed = gzip.compress(made_profile_of_nvprof(folder, private).read_bytes())
    variables = "".join(f"<env name={quoteattr(n)} value={quoteattr(v)}/>" for n, v in VARIABLES.items())
    elements = "".join(f"<timeline pathname={quoteattr(text)} kind='1'>{escape(text)}</timeline>" for text in private)
    half = len(packed) // 2
    splits = "".join(f"<split>{base64.b64encode(part).decode()}</split>" for part in (packed[:half], packed[half:]))
    path = folder / "made.nvvp"
    path.write_text(
        f'<?xml version="1.0"?>\n<session version="2"><executable file="/opt/a" args={quoteattr(private[0])}>'
        f"<envs>{variables}</envs></executable><!-- {private[0].replace('--', '')} -->{elements}"
        f"<timelinepdm>\n<pdm>{splits}</pdm>\n</timelinepdm></session>",
        "utf-8",
    )
    return path


def made_packets(folder: Path, private: list[str]) -> Path:
    def packet(*fields: tuple[int, object]) -> tuple[int, object]:
        return 1, message((10, 1), *fields)

    texts_of_trace = (AS_TEXT, *private)
    interned = [(2, message((1, i), (2, text))) for i, text in enumerate(texts_of_trace, 1)]
    interned += [(29, message((1, i), (2, text))) for i, text in enumerate(texts_of_trace, 1)]
    first = packet((13, 1), (12, message(*interned)))
    process = packet(
        (60, message((1, 5), (3, message((1, 9), (2, "a.out"), *((2, t) for t in private), (6, "a.out")))))
    )
    events = [
        packet(
            (8, 5), (11, message((9, 3), (11, 5), (23, t), (4, message((10, "note"), (6, t))), (4, message((10, t)))))
        )
        for t in texts_of_trace
    ]
    unknown = [packet((8, 5), (900, message((7, t)))) for t in private]
    metadata = packet((5, message(*((2, message((1, "note"), (2, t))) for t in private))))
    compressed = (1, message((50, zlib.compress(message(*events, *unknown)))))
    path = folder / "made.pftrace.gz"
    path.write_bytes(gzip.compress(message(first, process, compressed, metadata, *events)))
    return path


MAKERS: dict[str, Callable[[Path, list[str]], Path]] = {
    "chrome-trace": made_chrome_trace,
    "proton": made_tree,
    "rocprofv3-json": made_records,
    "rocprof-csv": made_csv,
    "nvprof-csv": made_printed_tables,
    "nsys-jsonlines": made_lines,
    "nvprof": made_profile_of_nvprof,
    "nvprof session": made_session,
    "perfetto": made_packets,
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
        data = gzip.decompress(data)
        return data + b"".join(decompressed_packets(data)) if ".pftrace" in path.name else data
    if path.suffix == ".nvvp":
        packed = b"".join(base64.b64decode(part) for part in re.findall(rb"<split>([^<]*)</split>", data))
        return re.sub(rb"<split>[^<]*", b"", data) + html.unescape(data.decode()).encode() + gzip.decompress(packed)
    if path.suffix in (".pickle", ".pb", ".json", ".csv", ".jsonlines", ".hatchet"):
        return data.replace(b'""', b'"') + data
    return b"\0".join(texts(path)) + (data if path.suffix == ".sqlite" else b"")


def decompressed_packets(data: bytes) -> Iterator[bytes]:
    for packet in Message(memoryview(data)).messages(1):
        yield from (zlib.decompress(bytes(content)) for content in packet.bytes_values(50))


def left(path: Path, private: list[Private]) -> list[tuple[str, str]]:
    """The values that are left, each with the string that it was hidden in, also where they are escaped."""
    levels = list(iterate_levels(contents(path)))
    return [(value, p.text) for p in private for value in p.values if any(value.encode() in level for level in levels)]


def test_every_format_that_can_be_redacted_is_attacked() -> None:
    assert {maker.partition(" ")[0] for maker in MAKERS} == {
        name for name, reader in registry.readers().items() if reader.redact is not None
    }


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
    out = folder / f"copy{''.join(path.suffixes)}"
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
