"""Nothing that tracekit writes of a capture shows its environments, users, hosts, command lines and addresses.

What the program itself wrote as a name is content and is written: the names, texts and payloads of kernels, ranges,
marks and graphs. So are the ids and PCI addresses of GPUs, in the table ``devices``, and the names of processes and
threads, which may be named after the account that they run as, or after a device. A secret that stands in one of these
is no secret here. Everything else must not stand in any file of any exporter, in any report, or in what is known of
the capture.

Messages of failures say kinds and numbers only.
"""

from __future__ import annotations

import gzip
import io
import json
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tracekit as tk
from pyarrow import ipc
from tests.builders.reports import REPORTS_OF_NSYS
from tests.conftest import ALL
from tests.secrets_of import Secrets, left, secrets_of, texts
from tests.test_redact import CORPUS, OWN, SHARED, SUFFIXES, named
from tracekit import cli, registry
from tracekit.errors import TracekitError, TracekitWarning

FIXTURES = [p for p in OWN if p.parent.name == "fixtures"]
BESIDE = [p for p in OWN if p not in FIXTURES] + sorted(
    p for p in (SHARED / "captures" / "h200_more").rglob("*") if p.suffix in SUFFIXES
)
SMALL = 1 << 20
"""Size in bytes below which public captures are exported without TRACEKIT_TESTS=all."""
CONTENT = ("kernels", "nvtx_ranges", "nvtx_marks", "graph_launches", "streams", "devices")
PROGRAMS = ("processes", "threads")
NAMED_AFTER = ("user", "bus")


def values_of(table: pa.Table) -> bytes:
    """Every different value of every column."""
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return "\0".join(str(v) for column in frame for v in column.unique().to_list()).encode("utf-8", "replace")


def content(trace: tk.Trace, names: tuple[str, ...]) -> bytes:
    """The texts of some tables."""
    return b"\0".join(values_of(trace[name].select(columns_of_text(trace[name]))) for name in names)


def columns_of_text(table: pa.Table) -> list[str]:
    return [f.name for f in table.schema if pa.types.is_dictionary(f.type) or pa.types.is_string(f.type)]


def hidden(path: Path, trace: tk.Trace) -> Secrets:
    """The secrets of a capture that must not be shown."""
    own, programs = content(trace, CONTENT), content(trace, PROGRAMS)
    return {
        kind: {
            v for v in values
            if not left({kind: {v}}, own) and not (kind in NAMED_AFTER and left({kind: {v}}, programs))
        }
        for kind, values in secrets_of(path).items()
    }  # fmt: skip


def contents(path: Path) -> Iterator[bytes]:
    """What stands in an exported file, unpacked."""
    data = path.read_bytes()
    yield data
    if data.startswith(b"\x1f\x8b"):
        yield gzip.decompress(data)
    elif data.startswith(b"PAR1"):
        yield values_of(pq.read_table(path))
    elif data.startswith(b"ARROW1"):
        yield values_of(ipc.open_file(path).read_all())
    elif data.startswith(b"SQLite format 3"):
        yield from texts(path.rename(path.with_suffix(".sqlite")))


def exported(trace: tk.Trace, folder: Path) -> Iterator[tuple[str, bytes]]:
    """What every exporter writes that can hold the trace."""
    for name, exporter in registry.exporters().items():
        target = folder / f"{name}{exporter.suffixes[0] if exporter.suffixes else ''}"
        try:
            trace.export(target, format=name)
        except TracekitError:
            continue
        files = [p for p in target.rglob("*") if p.is_file()] if target.is_dir() else [target]
        yield from ((name, data) for file in files for data in contents(file))


def reported(trace: tk.Trace) -> Iterator[tuple[str, bytes]]:
    """What every report shows that the trace has something for."""
    for name in REPORTS_OF_NSYS:
        try:
            yield name, values_of(tk.stats(trace, name).to_arrow())
        except TracekitError:
            continue


def shown(path: Path, folder: Path) -> dict[str, dict[str, int]]:
    """How many secrets of each kind are shown, by exporter, report or verb."""
    found: dict[str, Counter[str]] = {}
    with warnings.catch_warnings(), tk.load(path) as trace:
        warnings.simplefilter("ignore", TracekitWarning)
        secrets = hidden(path, trace)
        info = json.dumps([trace.info, list(trace.undecoded)]).encode()
        written = [*exported(trace, folder), *reported(trace), ("info", info)]
    for name, data in written:
        if hits := left(secrets, data):
            found.setdefault(name, Counter()).update(hits)
    assert {"csv", "parquet", "arrow", "info"} <= {name for name, _ in written}
    assert any(secrets.values()), "nothing to hide"
    return {name: dict(hits) for name, hits in found.items()}


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("path", FIXTURES, ids=named)
def test_nothing_private_is_in_what_is_exported(path: Path, tmp_path: Path) -> None:
    assert shown(path, tmp_path) == {}


@pytest.mark.thorough
@pytest.mark.corpus
@pytest.mark.parametrize("path", BESIDE, ids=named)
def test_nothing_private_of_captures_beside_the_checkout_is_in_what_is_exported(path: Path, tmp_path: Path) -> None:
    assert shown(path, tmp_path) == {}


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS, reason="no corpus beside the checkout")
@pytest.mark.many(1)
@pytest.mark.parametrize("number", [n for n, path in enumerate(CORPUS) if ALL or path.stat().st_size < SMALL])
def test_nothing_private_of_public_captures_is_in_what_is_exported(number: int, tmp_path: Path) -> None:
    assert shown(CORPUS[number], tmp_path) == {}


@pytest.mark.parametrize("path", FIXTURES, ids=named)
def test_info_shows_nothing_private(path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with tk.load(path) as trace:
        secrets = hidden(path, trace)
    for options in ([], ["--json"]):
        cli.cli.main(["info", str(path), *options], standalone_mode=False)
        said = capfdbinary.readouterr()
        assert len(said.out) > 100
        assert left(secrets, said.out + said.err) == {}


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    """Every way to write a secret is looked into: the search itself is tested, for each kind of file."""
    secret = {"environment": {b"m4rk3r-0f-a-s3cr3t"}}
    table = pa.table({"name": pa.array(["a", "of m4rk3r-0f-a-s3cr3t"]).dictionary_encode()})
    (tmp_path / "a.txt").write_bytes(b"is m4rk3r-0f-a-s3cr3t here")
    with gzip.open(tmp_path / "a.gz", "wb") as f:
        f.write(b"is m4rk3r-0f-a-s3cr3t here")
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    sink = io.BytesIO()
    with ipc.new_file(sink, table.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    (tmp_path / "a.arrow").write_bytes(sink.getvalue())
    for path in sorted(tmp_path.iterdir()):
        assert left(secret, b"\0".join(contents(path))) == {"environment": 1}, path.suffix
    assert left(secret, b"xm4rk3r-0f-a-s3cr3t") == {}
