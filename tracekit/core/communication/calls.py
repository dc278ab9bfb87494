"""Read the communication calls of one trace: collectives and messages of NCCL and MPI, with the kernels of NCCL.

NCCL records each call as an NVTX range of the domain ``NCCL``, whose payload contains the communicator and the size of
the message. The kernel of a call is launched inside its range or, for calls between ``ncclGroupStart`` and
``ncclGroupEnd``, inside the range of the outermost ``ncclGroupEnd``. NCCL may run several calls of a group in one
kernel. A kernel without a range, such as one of a CUDA graph, counts as a call, whose kind is derived from the name of
the kernel.

The name of a kernel contains the data type of a reduction. It does not reliably identify the protocol, because NCCL
names its kernels after one of the functions that they contain.

The profiler of PyTorch records the calls of its process groups (see ``read_torch_calls``).

Sources: NCCL User Guide, "Group Calls"; the NVTX ranges of NCCL 2.18 and later.

Read the communication calls that the profiler of PyTorch records as ranges named ``record_param_comms``.

The arguments of a call are its payload: the process group, the collective, the data type and the numbers of elements.
``Rank`` is the root of a collective that has one, and otherwise the rank of the process. Kernels of NCCL are launched
in a range inside the call, such as ``nccl:all_reduce``. If PyTorch combines several calls, their kernels are launched
in a later range ``nccl:coalesced``.

Source: PyTorch, ``ParamCommsUtils.hpp`` (names of the arguments).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import intervals, mpi
from tracekit.core.relations import THREAD, fill_process_ids
from tracekit.core.runtimes import COLLECTIVE_KERNEL
from tracekit.core.series import map_categories_expr

if TYPE_CHECKING:
    from collections.abc import Callable

    Frames = Callable[[str], pl.LazyFrame]

NCCL, MPI = "NCCL", "MPI"
LOGGED = "communication_calls"
"""Table of the calls that the communication library or the framework logged."""
SYNCHRONIZING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Kinds of collectives that no rank can complete before all ranks have started them."""
MESSAGES = ("send", "recv")


_CALL, _INNER, _COMBINED = "record_param_comms", r"^nccl:", "nccl:coalesced"
_KINDS = {
    **dict.fromkeys(("allreduce", "all_reduce", "allreduce_coalesced", "allreduce_sparse"), "all_reduce"),
    **dict.fromkeys(("allgather", "all_gather", "_allgather_base", "allgather_coalesced"), "all_gather"),
    "allgather_into_tensor_coalesced": "all_gather",
    **dict.fromkeys(("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_base"), "reduce_scatter"),
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    **dict.fromkeys(("alltoall", "all_to_all", "alltoall_base", "all_to_allv"), "all_to_all"),
    **dict.fromkeys(("broadcast", "_broadcast_oop"), "broadcast"),
    **dict.fromkeys(("reduce", "_reduce_oop"), "reduce"),
    **{kind: kind for kind in ("gather", "scatter", "barrier", "send", "recv")},
}
_DATA_TYPES = {
    "Double": ("float64", 8),
    "Float": ("float32", 4),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "Float8_e4m3fn": ("float8_e4m3", 1),
    "Float8_e5m2": ("float8_e5m2", 1),
    "Long": ("int64", 8),
    "Int": ("int32", 4),
    "Short": ("int16", 2),
    "Char": ("int8", 1),
    "Byte": ("uint8", 1),
    "Bool": ("bool", 1),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
}
_LISTED = 60
"""Maximum number of characters of the list of ranks that is part of the name of a communicator."""
COLUMNS: dict[str, type[pl.DataType]] = {
    "library": pl.String,
    "kind": pl.String,
    "name": pl.String,
    "communicator": pl.String,
    "communicator_size": pl.Int64,
    "communicator_rank": pl.Int64,
    "peer": pl.Int64,
    "root": pl.Int64,
    "tag": pl.Int64,
    "reduction": pl.String,
    "data_type": pl.String,
    "message_bytes": pl.Int64,
    "process_id": pl.Int64,
    "thread_id": pl.Int64,
    "device_id": pl.Int32,
    "stream_id": pl.Int64,
    "call_id": pl.Int64,
    "call_start_ns": pl.Int64,
    "call_end_ns": pl.Int64,
    "kernel_id": pl.Int64,
    "kernel_start_ns": pl.Int64,
    "kernel_end_ns": pl.Int64,
    "kernel_calls": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "hidden_ns": pl.Int64,
    "recorded_sequence": pl.Int64,
}
"""Columns of ``read_communication_calls``."""
_NOT_LOGGED = (
    *("tag", "stream_id", "call_id", "call_start_ns", "call_end_ns", "kernel_start_ns", "kernel_end_ns"),
    *("kernel_calls", "hidden_ns", "recorded_sequence"),
)
"""Columns of ``read_communication_calls`` that the table of logged calls lacks."""
_NCCL_KINDS = {
    "ncclAllReduce": "all_reduce",
    "ncclAllGather": "all_gather",
    "ncclReduceScatter": "reduce_scatter",
    "ncclBroadcast": "broadcast",
    "ncclBcast": "broadcast",
    "ncclReduce": "reduce",
    "ncclAlltoAll": "all_to_all",
    "ncclAllToAll": "all_to_all",
    "ncclGather": "gather",
    "ncclScatter": "scatter",
    "ncclSend": "send",
    "ncclRecv": "recv",
}
_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_KERNEL_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "reduce": "reduce",
}
"""Maps a lower-case part of a kernel's name to the kind of call. ``reduce`` is last, because other names contain it."""
_BY_MESSAGES = ("send", "recv", "send_recv", "all_to_all", "gather", "scatter")
"""Kinds of calls that NCCL executes with its kernel for sending and receiving messages."""
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_TYPE = (
    r"_(f64|f32|f16|bf16|f8e4m3|f8e5m2|[iu](?:8|32|64)|u?int(?:8|32|64)_t|float|double|half|__nv_bfloat16)(?:_|\(|$)"
)
_TYPES = {
    "f64": "float64",
    "double": "float64",
    "f32": "float32",
    "float": "float32",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "__nv_bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3",
    "f8e5m2": "float8_e5m2",
    "i8": "int8",
    "i32": "int32",
    "i64": "int64",
    "int8_t": "int8",
    "int32_t": "int32",
    "int64_t": "int64",
    "u8": "uint8",
    "u32": "uint32",
    "u64": "uint64",
    "uint8_t": "uint8",
    "uint32_t": "uint32",
    "uint64_t": "uint64",
}
_MPI_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallw": "all_to_all",
    "bcast": "broadcast",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_block": "reduce_scatter",
    "gather": "gather",
    "gatherv": "gather",
    "scatter": "scatter",
    "scatterv": "scatter",
    "barrier": "barrier",
    "scan": "scan",
    "exscan": "scan",
    "sendrecv": "send_recv",
    "sendrecv_replace": "send_recv",
    **dict.fromkeys(("send", "bsend", "rsend", "ssend", "isend", "ibsend", "irsend", "issend"), "send"),
    **dict.fromkeys(("recv", "irecv"), "recv"),
}
_DEVICE = ("process_id", "device_id")
_KERNEL = ("kernel_id", "kernel_start_ns", "kernel_end_ns", "device_id", "stream_id")


def read_torch_calls(frames: Frames) -> pl.DataFrame:
    """Return the communication calls of PyTorch.

    Args:
        frames: Function that returns the table with a given name.

    Returns:
        One row per call in order of start: ``range_id``, ``start_ns``, ``end_ns``, ``process_id``, ``thread_id``,
        ``library`` (NCCL, or the backend of PyTorch), ``kind``, ``name``, ``communicator``, ``communicator_size``,
        ``communicator_rank``, ``peer``, ``root``, ``recorded_type`` and ``message_bytes``. The size is defined as in
        the calls that NCCL records (see ``read_communication_calls``).
    """
    columns = ("range_id", "start_ns", "end_ns", *THREAD, "payload_text")
    ranges = frames("nvtx_ranges").filter(pl.col("name") == _CALL).select(columns).collect()
    ranges = ranges.with_columns(name=_argument_string_expr("Collective name")).with_columns(
        kind=pl.col("name").replace_strict(_KINDS, default=None)
    )
    size, item = (
        _argument_integer_expr("Group size"),
        _argument_string_expr("dtype").replace_strict({n: b for n, (_, b) in _DATA_TYPES.items()}, default=None),
    )
    sent, received = _argument_integer_expr("In msg nelems"), _argument_integer_expr("Out msg nelems")
    kind = pl.col("kind")
    own = pl.when(kind == "all_to_all").then(sent // size).otherwise(sent)
    elements = pl.when(kind.is_in(["reduce_scatter", "recv", "scatter"])).then(received).otherwise(own)
    group = pl.coalesce(
        _argument_string_expr("Process Group Name"), _argument_integer_expr("Process Group ID").cast(pl.String)
    )
    name = [group, _argument_string_expr("Process Group Ranks").str.head(_LISTED), pl.format("of {}", size)]
    return (
        ranges.drop_nulls("kind")
        .with_columns(
            library=pl.lit(_choose_library_name(frames)),
            communicator=pl.when(group.is_not_null()).then(pl.concat_str(name, separator=" ", ignore_nulls=True)),
            communicator_size=size,
            peer=pl.when(kind == "send")
            .then(_argument_integer_expr("Dst Rank"))
            .when(kind == "recv")
            .then(_argument_integer_expr("Src Rank")),
            root=pl.when(kind.is_in(["broadcast", "reduce", "gather", "scatter"])).then(_argument_integer_expr("Rank")),
            _own=pl.when(kind.is_in(SYNCHRONIZING)).then(_argument_integer_expr("Rank")),
            recorded_type=_argument_string_expr("dtype").replace_strict(
                {n: t for n, (t, _) in _DATA_TYPES.items()}, default=None
            ),
            message_bytes=elements * item,
        )
        .with_columns(communicator_rank=pl.col("_own").max().over("process_id", "communicator"))
        .drop("payload_text", "_own")
        .sort("start_ns", "range_id")
    )


def _choose_library_name(frames: Frames) -> str:
    """Return the name of the library that executes the calls: NCCL, or the name of another PyTorch backend."""
    info = frames("capture_info").filter(pl.col("name") == "distributed_backend").select("value").collect()["value"]
    backend = next(iter(info.drop_nulls()), NCCL)
    return NCCL if NCCL.lower() in backend.lower() else backend


def read_launching_ranges(frames: Frames) -> pl.DataFrame:
    """Return the ranges in which PyTorch launches kernels.

    Returns:
        ``range_id``, ``process_id``, ``thread_id``, ``start_ns``, ``parent_id`` (the range of the call) and
        ``is_combined`` (whether it launches the kernels of earlier calls).
    """
    columns = ("range_id", *THREAD, "start_ns", "parent_id", "name")
    ranges = frames("nvtx_ranges").filter(pl.col("domain") == "user_annotation").select(columns)
    ranges = ranges.with_columns(pl.col("name").cast(pl.String)).filter(pl.col("name").str.contains(_INNER))
    return ranges.with_columns(is_combined=pl.col("name") == _COMBINED).drop("name").collect()


def add_launching_range_ids(calls: pl.DataFrame, launching_ranges: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Add the column ``unit``, the id of the range in which the kernels of each call are launched.

    This range is the range of the call itself. If no kernel is launched inside the call, it is the next range of the
    same thread that launches the kernels of combined calls.

    Args:
        calls: The result of ``read_torch_calls``.
        launching_ranges: The result of ``read_launching_ranges``.
        kernels: The kernels of NCCL, with the id ``range_id`` of the range in which they are launched.
    """
    launched = kernels.select("range_id").unique()
    inner = launching_ranges.join(launched, on="range_id", how="semi").select(range_id="parent_id")
    own = pl.concat([launched, inner]).unique().with_columns(_own=True)
    combined = launching_ranges.filter("is_combined").join(launched, on="range_id", how="semi").sort("start_ns")
    following = combined.select(*THREAD, "start_ns", _combined="range_id")
    rows = calls.sort("start_ns").join_asof(
        following, on="start_ns", by=THREAD, strategy="forward", check_sortedness=False
    )
    rows = rows.join(own, on="range_id", how="left", maintain_order="left")
    later = pl.when(pl.col("_own").is_null()).then("_combined")
    return rows.with_columns(unit=pl.coalesce(later, "range_id")).drop("_own", "_combined")


def _argument_string_expr(key: str) -> pl.Expr:
    return pl.col("payload_text").str.extract(rf'"{key}":\s*"([^"]*)"')


def _argument_integer_expr(key: str) -> pl.Expr:
    return pl.col("payload_text").str.extract(rf'"{key}":\s*"?(-?\d+)').cast(pl.Int64, strict=False)


def is_nccl_kernel_expr() -> pl.Expr:
    """Return an expression that is true for NCCL kernels. It reads the columns ``short_name`` and ``name``."""
    text = pl.coalesce("short_name", "name")
    return (
        map_categories_expr(text, lambda s: s.str.contains(COLLECTIVE_KERNEL).cast(pl.String)).cast(pl.String) == "true"
    )


def read_communication_calls(frames: Frames) -> pl.DataFrame:
    """Return the communication calls of one trace in order of start.

    Args:
        frames: Function that returns a table of a correlated trace, given the name of the table.

    Returns:
        One row per call of NCCL or MPI, or per kernel of NCCL outside of all calls, with the columns ``COLUMNS``. Sizes
        of NCCL calls are those that NCCL recorded: for an all-gather, the size of the data that one rank contributes.
        Sizes of MPI calls are totals of all ranks. ``start_ns`` and ``end_ns`` are the times of the kernel, or of the
        call if it has no kernel. ``kernel_calls`` is the number of calls that share the kernel. ``hidden_ns`` is the
        time of the kernel in which other kernels ran on the same GPU. ``recorded_sequence`` is the number of a logged
        collective in its communicator.
    """
    logged = _add_hidden_times(_read_logged_calls(frames), frames)
    calls = pl.concat([_read_nccl_calls(frames, logged), logged, _read_mpi_calls(frames)])
    single = calls.drop_nulls("device_id").group_by("process_id").agg(pl.col("device_id").unique())
    single = single.filter(pl.col("device_id").list.len() == 1).select(
        "process_id", only=pl.col("device_id").list.first()
    )
    calls = calls.join(single, on="process_id", how="left", nulls_equal=True, maintain_order="left")
    return calls.with_columns(pl.coalesce("device_id", "only")).select(*COLUMNS).sort("start_ns", maintain_order=True)


def _select_declared_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the columns and types of ``COLUMNS``. Missing columns are filled with nulls."""
    missing = [pl.lit(None, kind).alias(n) for n, kind in COLUMNS.items() if n not in rows.columns]
    return rows.with_columns(missing).select([pl.col(n).cast(kind) for n, kind in COLUMNS.items()])


def _read_logged_calls(frames: Frames) -> pl.DataFrame:
    """Return the calls that the communication library or the framework logged, which may have a kernel."""
    known = [name for name in COLUMNS if name not in _NOT_LOGGED]
    rows = frames(LOGGED).drop_nulls("kind").select(*known, "created_ns", "sequence").collect()
    has_kernel = pl.col("kernel_id").is_not_null()
    shared = pl.len().over("kernel_id").cast(pl.Int64)
    times = [pl.when(has_kernel).then(f"{edge}_ns").alias(f"kernel_{edge}_ns") for edge in ("start", "end")]
    return _select_declared_columns(
        rows.with_columns(
            times,
            call_start_ns="created_ns",
            kernel_calls=pl.when(has_kernel).then(shared),
            recorded_sequence=pl.when(~pl.col("kind").is_in(MESSAGES)).then("sequence"),
        )
    )


def _read_nccl_calls(frames: Frames, logged: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that NCCL or PyTorch recorded, each with its kernel, and the NCCL kernels without a call.

    Kernels of logged calls are left out.
    """
    columns = ("range_id", "start_ns", "end_ns", *THREAD, "name", "payload_text")
    ranges = frames("nvtx_ranges").filter(pl.col("domain") == NCCL).select(columns).collect()
    ranges = ranges.with_columns(pl.col("name").cast(pl.String)).sort("start_ns", "range_id")
    calls = _add_launching_range_ids(ranges).with_columns(kind=pl.col("name").replace_strict(_NCCL_KINDS, default=None))
    calls = calls.drop_nulls("kind").with_columns(_payload_field_exprs(), executed=_kernel_kind_expr())
    launching = read_launching_ranges(frames)
    kernels = _read_nccl_kernels(frames).join(logged.drop_nulls("kernel_id"), on="kernel_id", how="anti")
    torch = add_launching_range_ids(read_torch_calls(frames), launching, kernels).with_columns(
        executed=_kernel_kind_expr()
    )
    combined = launching.filter("is_combined")
    units = [r.select("range_id", unit="range_id") for r in (ranges, torch, combined)]
    inner = launching.filter(~pl.col("is_combined")).join(torch, left_on="parent_id", right_on="range_id", how="semi")
    launched = kernels.join(pl.concat([*units, inner.select("range_id", unit="parent_id")]), on="range_id")
    calls = calls.with_columns(library=pl.lit(NCCL))
    calls = pl.concat([calls, torch], how="diagonal").sort("start_ns", "range_id")
    with_kernels = _join_kernels(calls, launched)
    others = kernels.join(launched.join(calls, on="unit", how="semi"), on="kernel_id", how="anti")
    others = others.with_columns(kernel_calls=pl.lit(1, pl.Int64), name="kernel_name")
    rows = [with_kernels.with_columns(call_id="range_id", call_start_ns="start_ns", call_end_ns="end_ns"), others]
    known = pl.when(pl.col("kind").is_in(_REDUCING)).then("data_type")
    rows[0] = rows[0].with_columns(data_type=pl.coalesce("recorded_type", known))
    rows[1] = rows[1].with_columns(data_type=known, library=pl.lit(NCCL))
    calls = pl.concat(map(_select_declared_columns, rows))
    calls = calls.with_columns(
        start_ns=pl.coalesce("kernel_start_ns", "call_start_ns"),
        end_ns=pl.coalesce("kernel_end_ns", "call_end_ns"),
    )
    return _add_hidden_times(_join_communicators(calls, _find_initialized_communicators(ranges)), frames)


def _payload_integer_expr(key: str) -> pl.Expr:
    return pl.col("payload_text").str.extract(rf'"{key}":\s*"?(-?\d+)')


def _payload_field_exprs() -> list[pl.Expr]:
    """Return expressions for the fields of NCCL payloads. Communicators remain strings, because they exceed Int64."""
    return [
        _payload_integer_expr("NCCL communicator ID").alias("communicator"),
        _payload_integer_expr(r"Message size \[bytes\]").cast(pl.Int64, strict=False).alias("message_bytes"),
        _payload_integer_expr("Peer rank").cast(pl.Int64, strict=False).alias("peer"),
        _payload_integer_expr("Root").cast(pl.Int64, strict=False).alias("root"),
        pl.col("payload_text").str.extract(r'"Reduction operation":\s*"([^"]*)"').alias("reduction"),
    ]


def _kernel_kind_expr() -> pl.Expr:
    """Return an expression for the kind of kernel that executes a call.

    Calls that NCCL executes with its kernel for sending and receiving have the kind ``send_recv``.
    """
    return pl.when(pl.col("kind").is_in(_BY_MESSAGES)).then(pl.lit("send_recv")).otherwise("kind")


def _add_launching_range_ids(ranges: pl.DataFrame) -> pl.DataFrame:
    """Add the column ``unit``, the id of the range in which the kernels of each call are launched.

    The kernels of a call in a group are launched in the outermost ``ncclGroupEnd``, and those of other calls in the
    range of the call itself.
    """
    starts, ends = pl.col("name") == _GROUP_START, pl.col("name") == _GROUP_END
    step = pl.when(starts).then(1).when(ends).then(-1).otherwise(0)
    depth = step.cum_sum().over(THREAD)
    depth -= pl.min_horizontal(depth.cum_min().over(THREAD), 0)
    rows = ranges.with_columns(_depth=depth)
    closing = pl.when(ends & (pl.col("_depth") == 0)).then("range_id").backward_fill().over(THREAD)
    return rows.with_columns(
        unit=pl.when(pl.col("_depth") > 0).then(closing).otherwise(None).fill_null(pl.col("range_id"))
    )


def _read_nccl_kernels(frames: Frames) -> pl.DataFrame:
    """Return the NCCL kernels in order of launch, with the kind and data type that their names contain."""
    columns = ["kernel_id", "start_ns", "end_ns", *_DEVICE, "thread_id", "stream_id", "range_id", "name", "short_name"]
    kernels = fill_process_ids(
        frames("kernels").filter(is_nccl_kernel_expr()).select(*columns, "api_start_ns").collect()
    )
    full, short = (pl.col(c).cast(pl.String) for c in ("name", "short_name"))
    lower = pl.coalesce(short, full).str.to_lowercase()
    kind = pl.coalesce([pl.when(lower.str.contains(t, literal=True)).then(pl.lit(k)) for t, k in _KERNEL_KINDS.items()])
    type_name = short.str.extract(_TYPE).fill_null(full.str.extract(_TYPE))
    return (
        kernels.with_columns(
            kernel_name=pl.coalesce(short, full),
            kind=kind.fill_null("unknown"),
            data_type=type_name.replace_strict(_TYPES, default=None),
            kernel_start_ns="start_ns",
            kernel_end_ns="end_ns",
        )
        .drop("name", "short_name", "start_ns", "end_ns")
        .sort("api_start_ns", "kernel_start_ns", "kernel_id")
        .with_columns(executed=_kernel_kind_expr())
    )


def _join_kernels(calls: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Add the columns of the executing kernel to each call.

    If a range contains as many calls as kernels of one kind, the n-th call is assigned the n-th kernel. Otherwise, all
    calls are assigned the time from the start of the first kernel to the end of the last one.
    """
    by, extra = (
        ["unit", "executed"],
        ["kernel_id", "kernel_start_ns", "kernel_end_ns", "device_id", "stream_id", "data_type"],
    )
    number = {"nth": pl.int_range(pl.len()).over(by), "count": pl.len().over(by)}
    numbered = calls.with_columns(**number)
    single = numbered.join(
        kernels.with_columns(**number), on=[*by, "nth", "count"], how="left", suffix="_of_kernel", maintain_order="left"
    )
    single = single.with_columns(shared=pl.lit(1, pl.Int64))
    merged = []
    for keys in (by, by[:1]):
        totals = kernels.sort("kernel_start_ns").group_by(keys, maintain_order=True).agg(_create_merged_kernel_exprs())
        merged.append(calls.select(keys).join(totals, on=keys, how="left", maintain_order="left").select(extra))
        merged[-1] = merged[-1].with_columns(shared=calls.select(pl.len().over(keys).cast(pl.Int64)).to_series())
    options = [single.select(*extra, "shared"), *merged]
    has = [o["kernel_id"].is_not_null() for o in options]
    chosen = options[2]
    for option, known in ((options[1], has[1]), (options[0], has[0])):
        chosen = chosen.select([option[c].zip_with(known, chosen[c]) for c in chosen.columns])
    shared = pl.when(pl.col("kernel_id").is_not_null()).then("shared")
    return calls.hstack(chosen.with_columns(kernel_calls=shared).drop("shared"))


def _create_merged_kernel_exprs() -> list[pl.Expr]:
    """Return expressions that aggregate kernels to the first id, the first start, the last end and shared values."""
    same = [
        pl.when(pl.col(c).n_unique() == 1).then(pl.col(c).first()).alias(c)
        for c in ("device_id", "stream_id", "data_type")
    ]
    return [pl.col("kernel_id").first(), pl.col("kernel_start_ns").min(), pl.col("kernel_end_ns").max(), *same]


def _find_initialized_communicators(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the size of each communicator whose initialization was recorded, and the rank of the process in it."""
    numbers = {"size": "No. of ranks", "own": "Rank"}
    rows = ranges.select(
        "process_id",
        _payload_integer_expr("NCCL communicator ID").alias("communicator"),
        *[_payload_integer_expr(key).cast(pl.Int64, strict=False).alias(n) for n, key in numbers.items()],
    ).drop_nulls(["communicator", "size", "own"])
    by = ["process_id", "communicator"]
    own = pl.when(pl.col("own").n_unique() == 1).then(pl.col("own").first())
    return rows.group_by(by, maintain_order=True).agg(communicator_size=pl.col("size").max(), communicator_rank=own)


def _join_communicators(calls: pl.DataFrame, communicators: pl.DataFrame) -> pl.DataFrame:
    """Fill in the size of the communicator of each call, and the rank of the process in it, where they are null."""
    by = ["process_id", "communicator"]
    rows = calls.join(communicators, on=by, how="left", nulls_equal=True, maintain_order="left", suffix="_created")
    known = [pl.coalesce(c, f"{c}_created") for c in ("communicator_size", "communicator_rank")]
    return rows.with_columns(known).select(calls.columns)


def _add_hidden_times(calls: pl.DataFrame, frames: Frames) -> pl.DataFrame:
    """Add ``hidden_ns``: how long kernels other than NCCL kernels run on the same GPU during the kernel of a call."""
    if not calls["kernel_id"].is_not_null().any():
        return calls
    others = (
        frames("kernels").filter(~is_nccl_kernel_expr().fill_null(value=False)).select(*_DEVICE, "start_ns", "end_ns")
    )
    busy = intervals.merge_intervals(fill_process_ids(others.collect()), by=_DEVICE)
    rows = calls.with_row_index("row")
    parts = [rows.filter(pl.col("kernel_id").is_null() | pl.col("device_id").is_null()).select("row", "hidden_ns")]
    known = rows.drop_nulls(["kernel_id", "device_id"])
    for (process, device), of_device in known.group_by(_DEVICE):
        times = busy.filter(pl.col("process_id").eq_missing(pl.lit(process, pl.Int64)), pl.col("device_id") == device)
        bounds = (of_device[c].to_numpy() for c in ("kernel_start_ns", "kernel_end_ns"))
        hidden = intervals.CoveredTime(times).compute_covered_time_between(*bounds)
        parts.append(of_device.select("row", hidden_ns=pl.Series(hidden, dtype=pl.Int64)))
    return calls.with_columns(pl.concat(parts).sort("row")["hidden_ns"])


def _read_mpi_calls(frames: Frames) -> pl.DataFrame:
    """Return the MPI calls that transfer messages or execute collectives.

    A nonblocking call ends when the call that waits for it ends.
    """
    more = ("mpi_call_id", "thread_id", "end_ns", "root_rank", "size_bytes", "receive_size_bytes")
    calls = mpi.read_calls_with_communicators(frames).join(
        frames(mpi.CALLS).select(more).collect(), on="mpi_call_id", maintain_order="left"
    )
    name = pl.col("name").str.strip_prefix("MPI_").str.to_lowercase()
    kinds = [n.replace_strict(_MPI_KINDS, default=None) for n in (name, name.str.strip_prefix("i"))]
    rows = calls.filter(pl.col("kind").is_in(["p2p", "collectives"])).with_columns(operation=pl.coalesce(kinds))
    by = ["process_id", "request"]
    waits = calls.filter(pl.col("kind") == "start-wait", pl.col("name").str.starts_with("MPI_Wait"))
    waits = waits.drop_nulls([*by, "end_ns"]).sort("start_ns").select(*by, "start_ns", waited_ns="end_ns")
    rows = rows.drop_nulls("operation").sort("start_ns")
    rows = rows.join_asof(waits, on="start_ns", by=by, strategy="forward", check_sortedness=False)
    is_world = pl.col("group_root") < 0
    identity = pl.when(is_world).then(pl.lit("world")).otherwise(pl.format("{}:{}", "group_root", "group_root_id"))
    own = pl.when(pl.col("size") == 1).then(pl.format("{} of rank {}", identity, "self")).otherwise(identity)
    received = pl.col("operation").is_in(["all_gather", "broadcast", "gather"])
    larger = pl.when(received).then(pl.coalesce("receive_size_bytes", "size_bytes")).otherwise("size_bytes")
    return _select_declared_columns(
        rows.select(
            *(*THREAD, "name", "tag", "start_ns"),
            library=pl.lit(MPI),
            kind="operation",
            communicator=pl.when(pl.col("size").is_not_null()).then(own),
            communicator_size="size",
            communicator_rank="local_rank",
            peer="remote_rank",
            root="root_rank",
            message_bytes=larger,
            call_id="mpi_call_id",
            call_start_ns="start_ns",
            call_end_ns="end_ns",
            end_ns=pl.coalesce("waited_ns", "end_ns"),
        )
    )
