"""Read logs with one JSON object per line: of NCCL Inspector, and of profiler plug-ins of NCCL that log its events."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.readers.common.builders import TableBuilder
from tracekit.readers.common.json.document import Document, DocumentFormat
from tracekit.readers.common.json.scanner import AS_STRING, JsonCells, JsonScanner, parse_integer
from tracekit.readers.common.json.stream import Stream
from tracekit.readers.nccl import names
from tracekit.readers.nccl.flight_recorder import LIBRARY, map_texts_expr, multiply_expr

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracekit.readers.common.budget import Budget
    from tracekit.system.files import InputFile

_FEW_ROWS = 1 << 10
_MAX_NS = 1 << 62
_MAX_TEXT = 500
_NUMBER = r"\d{1,18}(?:\.\d{1,40})?(?:[eE][-+]?\d{1,3})?"
"""A number of JSON that is not negative. Some programs write large numbers with an exponent."""


class Log(NamedTuple):
    """The tables of a log.

    Attributes:
        tables: Rows by table. Times are those of the log, in ns.
        undecoded: Number of records that are in no table, by kind.
        versions: Entries of ``capture_info``.
    """

    tables: dict[str, pl.DataFrame]
    undecoded: dict[str, int]
    versions: dict[str, str]


class Lines(NamedTuple):
    """The values of all records of a file.

    Attributes:
        frame: One row per record. Members that are objects or arrays are JSON texts.
        document: The document that was read.
        damage: What is wrong with the compressed data, or None.
    """

    frame: pl.DataFrame
    document: Document
    damage: str | None


def read_objects(
    path: Path, file: InputFile, keys: Mapping[tuple[int, str], int], layout: DocumentFormat, budget: Budget
) -> Lines:
    """Read the requested members of all objects of a file as texts.

    Args:
        path: Path of the file.
        file: The file, plain or gzipped.
        keys: The slot of each member, given its level and key. Slot 0 is the member whose members are on level 1.
        layout: What the document consists of.
        budget: The memory budget for the values.
    """
    slots = sorted(set(keys.values()) - {0})
    scanner = JsonScanner({key: slot + AS_STRING if slot else 0 for key, slot in keys.items()})
    builder, rows = TableBuilder(_FEW_ROWS), 0
    with Stream(file, compressed=file.read(0, 2) == b"\x1f\x8b") as stream:
        document = Document(path, stream, scanner, layout)
        for _ in document.parse_in_batches():
            cells = JsonCells(scanner, Counter())
            every = np.arange(cells.rows)
            batch = {str(s): cells.get_member_strings(s, every, include_other_types=True) for s in slots}
            budget.reserve(sum(column.nbytes for column in batch.values()), 2, "bytes of records")
            builder.append(batch)
            rows += cells.rows
        damage = stream.damage
    columns = builder.finish()
    series = {name: _convert(column) for name, column in columns.items()}
    frame = pl.DataFrame(series) if rows else pl.DataFrame(schema=dict.fromkeys(map(str, slots), pl.String))
    return Lines(frame, document, damage)


def _convert(column: pa.Array | pa.ChunkedArray) -> pl.Series:
    return pl.Series(column.cast(pa.string()))


_LAYOUT = DocumentFormat(None, "records", "copy the log again")
INSPECTOR_MEMBERS = {
    **dict.fromkeys(("coll", "p2p"), 1),
    **dict.fromkeys(("coll_sn", "p2p_sn"), 2),
    **dict.fromkeys(("coll_msg_size_bytes", "p2p_msg_size_bytes"), 3),
    **dict.fromkeys(("coll_exec_time_us", "p2p_exec_time_us"), 4),
    **dict.fromkeys(("coll_algobw_gbs", "p2p_algobw_gbs"), 5),
    **dict.fromkeys(("coll_busbw_gbs", "p2p_busbw_gbs"), 6),
    "p2p_peer": 7,
    "event_trace_ts": 8,
    "coll_algo": 9,
    "coll_proto": 10,
    "coll_n_channels": 11,
}
_HEADER, _METADATA = 12, 13
_INSPECTOR_KEYS = {
    (0, "coll_perf"): 0,
    (0, "p2p_perf"): 0,
    (0, "header"): _HEADER,
    (0, "metadata"): _METADATA,
    **{(1, key): slot for key, slot in INSPECTOR_MEMBERS.items()},
}


def read_inspector_log(path: Path, file: InputFile, budget: Budget) -> tuple[Log, Lines]:
    """Read a log of NCCL Inspector.

    The id of a communicator is written as a hexadecimal number. It becomes decimal, as in the NVTX ranges of NCCL.
    """
    lines = read_objects(path, file, _INSPECTOR_KEYS, _LAYOUT, budget)
    frame = lines.frame
    member = {name: pl.col(str(slot)) for name, slot in INSPECTOR_MEMBERS.items()}
    header, metadata, trace = pl.col(str(_HEADER)), pl.col(str(_METADATA)), member["event_trace_ts"]
    is_call = member["coll"].is_not_null()
    number = header.str.extract(r'"id"\s*:\s*"0x([0-9a-fA-F]{1,16})"').str.to_integer(
        base=16, dtype=pl.UInt64, strict=False
    )
    communicator = pl.coalesce(number.cast(pl.String), header.str.extract(r'"id"\s*:\s*"([^"]{1,100})"'))
    recorded = frame.filter(is_call)
    starts, ends = (_list_times(recorded.select(trace).to_series(), f"kernel_{kind}_ts") for kind in ("start", "stop"))
    calls = recorded.select(
        process_id=_member_expr(metadata, "pid"),
        library=pl.lit(LIBRARY),
        kind=map_texts_expr(str(INSPECTOR_MEMBERS["coll"]), names.find_call_kind),
        name=member["coll"],
        communicator=communicator,
        communicator_name=header.str.extract(r'"comm_name"\s*:\s*"([^"]{1,200})"'),
        communicator_size=_positive_expr(_member_expr(header, "n_ranks"), 1),
        communicator_rank=_positive_expr(_member_expr(header, "rank")),
        sequence=_integer_expr(member["coll_sn"]),
        peer=_integer_expr(member["p2p_peer"]),
        message_bytes=_positive_expr(_integer_expr(member["coll_msg_size_bytes"])),
        state=pl.lit("completed"),
        created_ns=_nanoseconds_expr(_decimal_expr(trace, "(?:coll|p2p)_start_ts")),
        start_ns=starts.list.min(),
        end_ns=ends.list.max(),
        end_seen_ns=_nanoseconds_expr(_decimal_expr(metadata, "dump_timestamp_us")),
        duration_ns=_nanoseconds_expr(member["coll_exec_time_us"]),
        algorithm=member["coll_algo"],
        protocol=member["coll_proto"],
        channel_count=_integer_expr(member["coll_n_channels"]).cast(pl.Int32, strict=False),
        recorded_algorithm_gb_per_s=_float_expr(member["coll_algobw_gbs"]),
        recorded_bus_gb_per_s=_float_expr(member["coll_busbw_gbs"]),
    )
    is_valid = (pl.col("start_ns") <= pl.col("end_ns")).fill_null(value=False)
    calls = calls.with_columns(pl.when(is_valid).then(pl.col("start_ns", "end_ns")))
    calls = _rank_by_largest_communicator(calls)
    version = frame.select(metadata.str.extract(r'"inspector_output_format_version"\s*:\s*"([^"]{1,50})"').drop_nulls())
    versions = {"schema_version": version.item(0, 0)} if version.height else {}
    undecoded = {"records without a call": frame.height - calls.height} if frame.height > calls.height else {}
    ranks = calls["rank"].drop_nulls().unique()
    if len(ranks) == 1:
        versions |= {"distributed_rank": str(ranks[0]), "distributed_world_size": str(calls["communicator_size"].max())}
    return Log({"communication_calls": calls}, undecoded, {"tool": "NCCL Inspector", **versions}), lines


def _rank_by_largest_communicator(calls: pl.DataFrame) -> pl.DataFrame:
    """Add the rank of each process in the job: its rank in its only communicator with the most ranks."""
    largest = calls.drop_nulls(["communicator_size", "communicator_rank"])
    largest = largest.filter(pl.col("communicator_size") == pl.col("communicator_size").max())
    ranks = largest.group_by("process_id").agg(rank=pl.col("communicator_rank").unique())
    ranks = ranks.filter(pl.col("rank").list.len() == 1).with_columns(
        pl.col("rank").list.first().cast(pl.Int32, strict=False)
    )
    return calls.join(ranks, on="process_id", how="left", nulls_equal=True, maintain_order="left")


EVENT_MEMBERS = {
    "func": 1,
    "seq": 2,
    "algo": 3,
    "proto": 4,
    "channels": 5,
    "count": 6,
    "root": 7,
    "dtype": 8,
    "nranks": 9,
    "commName": 10,
    "gridX": 11,
    "gridY": 12,
    "gridZ": 13,
    "blockX": 14,
    "blockY": 15,
    "blockZ": 16,
    "peer": 17,
    "channel": 18,
}
EVENT_FIELDS = {
    "recordType": 20,
    "type": 21,
    "commId": 22,
    "rank": 23,
    "start": 24,
    "stop": 25,
    "extCorrId": 26,
    "corrId": 27,
    "deviceId": 28,
    "name": 29,
    "stream": 30,
    "parentObj": 31,
    "eventAddr": 32,
    "ctx": 33,
    "func": 34,
}
_EVENT_KEYS = {
    (0, "details"): 0,
    **{(0, key): slot for key, slot in EVENT_FIELDS.items()},
    **{(1, key): slot for key, slot in EVENT_MEMBERS.items()},
}
_CALL, _CHANNEL, _LAUNCH, _KERNEL = "ncclProfileColl", "ncclProfileKernelCh", "ncclProfileKernelLaunch", "KERNEL"
_MESSAGE = "ncclProfileP2p"
STATE = "state "
AUXILIARY = (
    *("ProfilerLifecycle", _LAUNCH, "ncclProfileGroup", "ncclProfileGroupApi"),
    *("ncclProfileCollApi", "ncclProfileP2pApi"),
)
"""Kinds of records whose content is in the rows of calls, or that only enclose calls."""


def read_event_log(path: Path, file: InputFile, budget: Budget) -> tuple[Log, Lines]:
    """Read a log in which a profiler plug-in of NCCL wrote the events of NCCL and the kernels that CUPTI recorded."""
    lines = read_objects(path, file, _EVENT_KEYS, _LAYOUT, budget)
    fields = EVENT_FIELDS | {name: EVENT_MEMBERS[name] for name in EVENT_MEMBERS if name not in EVENT_FIELDS}
    frame = lines.frame.select(pl.col(str(slot)).alias(name) for name, slot in fields.items())
    frame = frame.with_columns(
        details_func=lines.frame[str(EVENT_MEMBERS["func"])],
        start_ns=_nanoseconds_expr(_decimal_expr(pl.col("start"), "ts")),
        end_ns=_nanoseconds_expr(_decimal_expr(pl.col("stop"), "ts")),
        process_id=_member_expr(pl.col("start"), "pid"),
        thread_id=_member_expr(pl.col("start"), "tid"),
        device_id=_positive_expr(_integer_expr(pl.col("deviceId")).cast(pl.Int32, strict=False)),
    )
    is_timed = (pl.col("start_ns") <= pl.col("end_ns")).fill_null(value=False)
    is_kernel = (pl.col("recordType") == "cuptiActivity") & (pl.col("type") == _KERNEL) & is_timed
    is_kernel &= pl.col("device_id").is_not_null()
    kernels = frame.filter(is_kernel).with_row_index("kernel_id", 1).with_columns(pl.col("kernel_id").cast(pl.Int64))
    is_call = pl.col("type").is_in([_CALL, _MESSAGE]) & (pl.col("recordType") == "event")
    calls = frame.filter(is_call)
    tables = {
        "communication_calls": _build_event_calls(frame, calls, kernels),
        "kernels": _build_kernels(kernels),
    }
    rest = frame.filter(~(is_kernel | is_call).fill_null(value=False))
    label = pl.coalesce(pl.col("type"), pl.format(STATE + "{}", "name"), pl.lit("other")).str.head(_MAX_TEXT)
    undecoded = dict(rest.group_by(label.alias("kind")).len().sort("kind").head(1000).iter_rows())
    return Log(tables, undecoded, {"tool": "NCCL profiler plug-in"}), lines


def _build_event_calls(frame: pl.DataFrame, calls: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of ``communication_calls``.

    A call runs in the kernel that its communicator launched in the same group: the launch has the communicator of the
    call, and an id that the kernel has as well. It is only known if the communicator launched a single kernel per
    call.
    """
    initialized = frame.filter(pl.col("func") == "ProfilerInit").select(
        "commId", size=_positive_expr(_integer_expr(pl.col("nranks")), 1), communicator_name="commName"
    )
    initialized = initialized.unique("commId", keep="first", maintain_order=True)
    by, keys = ["process_id", "ctx"], ["process_id", "extCorrId"]
    launches = frame.filter(type=_LAUNCH).select(*keys, "ctx").unique(keys, keep="first", maintain_order=True)
    launched = kernels.select(
        *keys, "kernel_id", kernel_start="start_ns", kernel_end="end_ns", kernel_device="device_id"
    ).join(launches, on=keys)
    single = launched.filter(pl.len().over(by) == 1).drop("extCorrId")
    rows = calls.join(initialized, on="commId", how="left", maintain_order="left")
    rows = rows.join(single, on=by, how="left", maintain_order="left")
    width = map_texts_expr("data_type", names.find_item_bytes, pl.Int64)
    return (
        rows.with_columns(
            data_type=map_texts_expr("dtype", names.normalize_data_type), element_count=_integer_expr(pl.col("count"))
        )
        .with_columns(kind=map_texts_expr("details_func", names.find_call_kind))
        .select(
            "process_id",
            "thread_id",
            device_id="kernel_device",
            library=pl.lit(LIBRARY),
            kind="kind",
            name="details_func",
            communicator="commId",
            communicator_name=pl.when(pl.col("communicator_name") != "").then("communicator_name"),
            communicator_size="size",
            communicator_rank=_positive_expr(_integer_expr(pl.col("rank"))),
            sequence=_integer_expr(pl.col("seq")),
            peer=_integer_expr(pl.col("peer")),
            root=pl.when(pl.col("kind").is_in(["broadcast", "reduce", "gather", "scatter"])).then(
                _integer_expr(pl.col("root"))
            ),
            data_type="data_type",
            element_count="element_count",
            message_bytes=multiply_expr(pl.col("element_count"), width),
            state=pl.when(pl.col("kernel_id").is_not_null()).then(pl.lit("completed")),
            created_ns="start_ns",
            start_ns="kernel_start",
            end_ns="kernel_end",
            algorithm="algo",
            protocol="proto",
            channel_count=_integer_expr(pl.col("channels")).cast(pl.Int32, strict=False),
            kernel_id="kernel_id",
        )
    )


def _build_kernels(kernels: pl.DataFrame) -> pl.DataFrame:
    sizes = {f"{prefix}_{axis}": f"{prefix}{axis.upper()}" for prefix in ("grid", "block") for axis in "xyz"}
    return kernels.select(
        "kernel_id",
        "start_ns",
        "end_ns",
        "process_id",
        "device_id",
        stream_id=pl.coalesce(
            pl.col("stream").str.extract("^0x([0-9a-fA-F]{1,15})$").str.to_integer(base=16, strict=False),
            _integer_expr(pl.col("stream")),
        ),
        correlation_id=_integer_expr(pl.col("corrId")),
        mangled_name=pl.when(pl.col("name").str.starts_with("_Z")).then("name"),
        short_name=pl.coalesce(
            pl.col("name").str.extract(r"^_Z\d{1,3}(nccl\w+?_[A-Z0-9]+_(?:LL128|LL|SIMPLE))"), "name"
        ),
        name="name",
        **{n: _integer_expr(pl.col(key)).cast(pl.Int32, strict=False) for n, key in sizes.items()},
    )


def _member_expr(text: pl.Expr, key: str) -> pl.Expr:
    """Return an expression for an integer member of JSON objects that are given as texts."""
    return text.str.extract(rf'"{key}"\s*:\s*(-?\d{{1,18}})[,}}\s]').cast(pl.Int64, strict=False)


def _decimal_expr(text: pl.Expr, key: str) -> pl.Expr:
    """Return an expression for the text of a number that is a member of JSON objects and not negative."""
    return text.str.extract(rf'"{key}"\s*:\s*({_NUMBER})[,}}\]\s]')


def _integer_expr(text: pl.Expr) -> pl.Expr:
    return text.cast(pl.Int64, strict=False)


def _positive_expr(number: pl.Expr, least: int = 0) -> pl.Expr:
    """Return an expression for numbers that are at least 0, or at least another number. Others become null."""
    return pl.when(number >= least).then(number)


def _float_expr(text: pl.Expr) -> pl.Expr:
    value = text.cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def _nanoseconds_expr(microseconds: pl.Expr) -> pl.Expr:
    """Return an expression that converts texts of microseconds to whole ns without rounding.

    Only numbers with an exponent are rounded. Texts that are not valid times become null.
    """
    whole = microseconds.str.extract(r"^(\d{1,18})(?:\.\d{0,40})?$").cast(pl.Int64, strict=False)
    fraction = microseconds.str.extract(r"\.(\d{1,3})").str.pad_end(3, "0").cast(pl.Int64, strict=False).fill_null(0)
    has_exponent = microseconds.str.contains(rf"^{_NUMBER}$") & microseconds.str.contains("[eE]")
    scientific = map_texts_expr(
        pl.when(has_exponent).then(microseconds), lambda text: parse_integer(text, 1000), pl.Int64
    )
    plain = pl.when(whole <= _MAX_NS // 1000).then(whole * 1000 + fraction)
    return pl.coalesce(plain, pl.when(scientific <= _MAX_NS).then(scientific))


def _list_times(texts: pl.Series, key: str) -> pl.Series:
    """Return the list of all times that are not 0 and have a key in each of some JSON texts, in ns."""
    listed = texts.str.extract_all(rf'"{key}"\s*:\s*{_NUMBER}[,}}\]\s]').alias("member").to_frame()
    members = listed.with_row_index("row").explode("member").drop_nulls("member")
    number = pl.col("member").str.extract(rf":\s*({_NUMBER})")
    times = members.with_columns(time=_nanoseconds_expr(number)).filter(pl.col("time") > 0)
    by_row = times.group_by("row", maintain_order=True).agg("time")
    return listed.with_row_index("row").join(by_row, on="row", how="left", maintain_order="left")["time"]
