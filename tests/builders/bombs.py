"""Small files that announce a lot: what compression, repetition and references make of a few bytes."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc, parquet
from tests.builders.nsys_rep import Parts, event, message, strings
from tracekit import schemas

FIXTURES = Path(__file__).parents[2] / "fixtures"
Write = Callable[[pa.Table, Path], None]
MANY, LONG, PER_BLOCK = 20_000_000, 2_000_000, 131_072
RANGE = ((1, 59), (2, 1), (9, 1 << 48), (10, 2))
EMPTY_STRING = b"\x0a\x00"
COMPRESSED = ipc.IpcWriteOptions(compression="zstd")


def empty_strings(path: Path) -> None:
    """A report whose blocks of strings hold 20 million empty ones."""
    blocks = [EMPTY_STRING * PER_BLOCK] * (MANY // PER_BLOCK)
    path.write_bytes(Parts([], blocks, stream=message((1, 0), (3, PER_BLOCK * len(blocks)), (9, "lz4"))).pack())


def equal_events(path: Path) -> None:
    """A report whose blocks repeat one range 10 million times."""
    path.write_bytes(_of_blocks([event(59, 102, *RANGE, (7, b"x")) * PER_BLOCK] * 80))


def long_names(path: Path) -> None:
    """A report with one string of 2 MB, which a million ranges are called."""
    path.write_bytes(_of_blocks([event(59, 102, *RANGE, (12, 1)) * PER_BLOCK] * 8, strings("a", "x" * LONG)))


def long_payloads(path: Path) -> None:
    """A report with one string of 2 MB, which is the payload of a million ranges."""
    payload = (8, message((7, 1)))
    path.write_bytes(_of_blocks([event(59, 102, *RANGE, payload) * PER_BLOCK] * 8, strings("a", "x" * LONG)))


def _of_blocks(blocks: list[bytes], *texts: bytes) -> bytes:
    stream = message((1, PER_BLOCK * len(blocks)), (3, 2 * len(texts)), (9, "lz4"))
    return Parts(blocks, texts, stream=stream).pack()


def rows(write: Write, path: Path) -> None:
    """A table of ours whose columns repeat one value on 20 million rows."""
    schema = schemas.arrow_schema(schemas.table("syncs"))
    sevens = pa.nulls(MANY, pa.int64()).fill_null(7)
    columns = [sevens.cast(f.type) if pa.types.is_integer(f.type) else pa.nulls(MANY, f.type) for f in schema]
    write(pa.table(columns, schema=schema), path)


def texts(write: Write, path: Path) -> None:
    """A table of ours with one long text on 20,000 rows."""
    schema = schemas.arrow_schema(schemas.table("capture_info"))
    name = pa.array(["n"] * 20_000)
    value = pa.DictionaryArray.from_arrays(pa.nulls(20_000, pa.int32()).fill_null(0), ["x" * LONG])
    write(pa.table({"name": name, "value": value}).replace_schema_metadata(schema.metadata), path)


def write_parquet(table: pa.Table, path: Path) -> None:
    parquet.write_table(table, path, compression="zstd", use_dictionary=True)


def write_arrow(table: pa.Table, path: Path) -> None:
    with ipc.new_file(path, table.schema, options=COMPRESSED) as file:
        file.write_table(table)


def folder(write: Write, suffix: str, table: str, columns: Sequence[str], path: Path) -> None:
    """A folder of nsys one of whose tables repeats its values on 16 million rows."""
    path.mkdir()
    zeros = pa.nulls(16_000_000, pa.int64()).fill_null(0)
    write(pa.table(dict.fromkeys(columns, zeros)), path / f"{table}{suffix}")
    write(pa.table({"id": pa.array([0]), "value": pa.array(["x"])}), path / f"StringIds{suffix}")


def gzipped_events(path: Path) -> None:
    """A trace of PyTorch of 100 MB of equal events, packed."""
    one = json.dumps({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, "args": {}})
    inner = ",".join([one] * 1_000_000)
    with gzip.open(path, "wt", compresslevel=9) as file:
        file.write(f'{{"schemaVersion": 1, "traceEvents": [{inner}]}}')


PARQUET, ARROW = (write_parquet, ".parquet"), (write_arrow, ".arrow")
KERNEL = (
    "start",
    "end",
    "deviceId",
    "contextId",
    "streamId",
    "correlationId",
    "globalPid",
    "demangledName",
    "shortName",
)
BOMBS: Mapping[str, tuple[str, str, Callable[[Path], None]]] = {
    "strings": ("a.nsys-rep", "nsys-rep", empty_strings),
    "events": ("a.nsys-rep", "nsys-rep", equal_events),
    "names": ("a.nsys-rep", "nsys-rep", long_names),
    "payloads": ("a.nsys-rep", "nsys-rep", long_payloads),
    "rows of Parquet": ("syncs.parquet", "parquet", functools.partial(rows, write_parquet)),
    "texts of Parquet": ("capture_info.parquet", "parquet", functools.partial(texts, write_parquet)),
    "rows of Arrow": ("syncs.arrow", "arrow", functools.partial(rows, write_arrow)),
    "texts of Arrow": ("capture_info.arrow", "arrow", functools.partial(texts, write_arrow)),
    "kernels of a folder": (
        "a",
        "nsys-parquetdir",
        functools.partial(folder, *PARQUET, "CUPTI_ACTIVITY_KIND_KERNEL", KERNEL),
    ),
    "kernels of an Arrow folder": (
        "a",
        "nsys-arrowdir",
        functools.partial(folder, *ARROW, "CUPTI_ACTIVITY_KIND_KERNEL", KERNEL),
    ),
    "GPUs of a folder": (
        "a",
        "nsys-arrowdir",
        functools.partial(folder, *ARROW, "TARGET_INFO_GPU", ("id", "smCount")),
    ),
    "packed events": ("a.json.gz", "kineto", gzipped_events),
}
"""What to call the file, its format, and what makes it."""
