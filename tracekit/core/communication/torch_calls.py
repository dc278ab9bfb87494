"""Read the communication calls that the profiler of PyTorch records as ranges named ``record_param_comms``.

The arguments of a call are its payload: the process group, the collective, the data type and the numbers of elements.
``Rank`` is the root of a collective that has one, and otherwise the rank of the process. Kernels of NCCL are launched
in a range inside the call, such as ``nccl:all_reduce``. If PyTorch combines several calls, their kernels are launched
in a later range ``nccl:coalesced``.

Source: PyTorch, ``ParamCommsUtils.hpp`` (names of the arguments).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.communication.kinds import NCCL, SYNCHRONIZING

if TYPE_CHECKING:
    from collections.abc import Callable

    Frames = Callable[[str], pl.LazyFrame]

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
    columns = ("range_id", "start_ns", "end_ns", "process_id", "thread_id", "payload_text")
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
    columns = ("range_id", "process_id", "thread_id", "start_ns", "parent_id", "name")
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
    thread = ["process_id", "thread_id"]
    following = combined.select(*thread, "start_ns", _combined="range_id")
    rows = calls.sort("start_ns").join_asof(
        following, on="start_ns", by=thread, strategy="forward", check_sortedness=False
    )
    rows = rows.join(own, on="range_id", how="left", maintain_order="left")
    later = pl.when(pl.col("_own").is_null()).then("_combined")
    return rows.with_columns(unit=pl.coalesce(later, "range_id")).drop("_own", "_combined")


def _argument_string_expr(key: str) -> pl.Expr:
    return pl.col("payload_text").str.extract(rf'"{key}":\s*"([^"]*)"')


def _argument_integer_expr(key: str) -> pl.Expr:
    return pl.col("payload_text").str.extract(rf'"{key}":\s*"?(-?\d+)').cast(pl.Int64, strict=False)
