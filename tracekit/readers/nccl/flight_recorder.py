"""Read the collectives in a flight recorder of PyTorch.

Both forms of a dump, a pickle and JSON, have the same fields. Only pickles contain call stacks. A dump does not state
the rank of its process, which is therefore taken from the name of the file, to which PyTorch appends it.

The messages of a group are recorded one by one, but only their group (``nccl:coalesced``) is observed on the GPU. They
have the state and times of their group.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
import pyarrow as pa

from tracekit.readers.common.damage import Damage
from tracekit.readers.nccl import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.common.budget import Budget

LIBRARY = "NCCL"
_COALESCED = "nccl:coalesced"
_LISTED = 60
"""Number of characters of the ranks of a process group in its identification, as for traces of PyTorch."""
_NS_PER_MS = 1_000_000
_MAX_MS = (1 << 62) // _NS_PER_MS
_RANK_OF_NAME = (
    re.compile(r"(?i).*rank[^0-9]{0,3}([0-9]{1,7})(?![0-9])"),
    re.compile(r".*?([0-9]{1,7})(?:\.[a-z]+)*$"),
)
_KEY = ("group", "collective", "message")
ENTRY: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("group", "description", "name", "state", "thread", "input_type", "output_type"), pl.String),
    **dict.fromkeys(("input_shapes", "output_shapes"), pl.String),
    **dict.fromkeys(("collective", "message", "created", "started", "completed", "timeout_ms"), pl.Int64),
    **dict.fromkeys(("input_elements", "output_elements", "stack_id", "user_stack_id"), pl.Int64),
    "is_message": pl.Boolean,
    "duration_ms": pl.Float64,
}
"""The columns of the entries of a flight recorder that ``build_calls`` reads. Times up to 0 were not recorded."""


class Group(NamedTuple):
    """A process group.

    Attributes:
        communicator: Identification that traces of PyTorch contain as well.
        size: Number of ranks, or None if it is unknown.
        ranks: Ranks of the members as a JSON array, or None if they are unknown.
        own: Rank of the process in the group, or None if it is unknown.
    """

    communicator: str
    size: int | None
    ranks: str | None
    own: int | None


def parse_rank(file_name: str) -> int | None:
    """Return the rank that the name of a file states, such as 3 for ``nccl_trace_rank_3``, or None."""
    matches = (pattern.match(file_name) for pattern in _RANK_OF_NAME)
    return next((int(match[1]) for match in matches if match), None)


def parse_groups(config: object, rank: int | None, budget: Budget) -> dict[str, Group]:
    """Return the process groups that a flight recorder describes, by name.

    Args:
        config: The value of ``pg_config``.
        rank: Rank of the process, or None if it is unknown.
        budget: The memory budget for the ranks.
    """
    groups: dict[str, Group] = {}
    for key, described in config.items() if isinstance(config, dict) else ():
        name = repair_text(key) if isinstance(key, str) else ""
        listed = described.get("ranks") if isinstance(described, dict) else None
        ranks = _parse_ranks(listed)
        budget.reserve(len(ranks) + 1, 32, "ranks of process groups")
        text = json.dumps(ranks)
        own = ranks.index(rank) if rank in ranks else None
        size = len(ranks) or None
        identification = f"{name} {text[:_LISTED]} of {size}" if ranks else name
        groups[name] = Group(identification, size, text if ranks else None, own)
    return groups


def _parse_ranks(listed: object) -> list[int]:
    if isinstance(listed, str):
        try:
            listed = json.loads(listed)
        except (ValueError, RecursionError):
            return []
    is_list = isinstance(listed, list) and all(type(r) is int and 0 <= r < 1 << 31 for r in listed)
    return list(listed) if is_list and isinstance(listed, list) else []


def build_calls(entries: pl.DataFrame, groups: Mapping[str, Group], rank: int | None) -> pl.DataFrame:
    """Return the rows of ``communication_calls`` for the entries of a flight recorder. Times are since 1970.

    Args:
        entries: The entries, with the columns ``ENTRY``.
        groups: The process groups by name.
        rank: Rank of the process, or None if it is unknown.
    """
    described = pl.DataFrame(
        [(name, *group) for name, group in groups.items()],
        {"group": pl.String, "communicator": pl.String, "size": pl.Int64, "ranks": pl.String, "own": pl.Int64},
        orient="row",
    )
    rows = entries.join(described, on="group", how="left", maintain_order="left").with_columns(
        *(pl.when(pl.col(time) > 0).then(time).alias(time) for time in ("created", "started", "completed")),
        kind=map_texts_expr("name", names.find_call_kind),
    )
    rows = _add_states_of_message_groups(rows)
    is_received = pl.col("kind").is_in(names.RECEIVED)
    data_type = pl.when(is_received).then("output_type").otherwise(pl.coalesce("input_type", "output_type"))
    elements = pl.when(is_received).then("output_elements").otherwise(pl.coalesce("input_elements", "output_elements"))
    is_message = pl.col("is_message").fill_null(value=False)
    rows = rows.with_columns(
        data_type=data_type,
        element_count=pl.when(pl.col("kind") == "all_to_all").then(elements // pl.col("size")).otherwise(elements),
    ).with_columns(data_type=map_texts_expr("data_type", names.normalize_data_type))
    width = map_texts_expr("data_type", names.find_item_bytes, pl.Int64)
    return rows.select(
        rank=pl.lit(rank, pl.Int32),
        thread_id=pl.col("thread").cast(pl.Int64, strict=False),
        library=pl.lit(LIBRARY),
        kind="kind",
        name="name",
        communicator=pl.coalesce("communicator", "group"),
        communicator_name="description",
        communicator_size="size",
        communicator_rank=pl.coalesce(map_texts_expr("name", names.parse_own_rank, pl.Int64), "own"),
        member_ranks="ranks",
        sequence=pl.when(pl.col("name") != _COALESCED).then(
            pl.when(is_message).then("message").otherwise("collective")
        ),
        peer=map_texts_expr("name", names.parse_peer, pl.Int64),
        data_type="data_type",
        element_count="element_count",
        message_bytes=multiply_expr(pl.col("element_count"), width),
        input_shapes="input_shapes",
        output_shapes="output_shapes",
        state="state",
        created_ns="created",
        start_seen_ns="started",
        end_seen_ns="completed",
        duration_ns=_milliseconds_expr("duration_ms"),
        timeout_ns=_milliseconds_expr("timeout_ms"),
        stack_id="stack_id",
        user_stack_id="user_stack_id",
    )


def _add_states_of_message_groups(rows: pl.DataFrame) -> pl.DataFrame:
    """Replace the state and times of calls that belong to a group with those of the group.

    They are unknown if the group is missing: dumps of active collectives contain the messages of completed groups.
    """
    observed = ("state", "started", "completed")
    is_group = pl.col("name") == _COALESCED
    of_groups = rows.filter(is_group).unique(_KEY, keep="last", maintain_order=True)
    of_groups = of_groups.select(*_KEY, *(pl.col(name).alias(f"{name}_of_group") for name in observed))
    rows = rows.join(of_groups, on=_KEY, how="left", maintain_order="left")
    is_open = (pl.col("state") != "completed") & ~is_group
    is_one_of_several = pl.col("is_message").fill_null(value=False) & (pl.len().over(_KEY) > 1)
    is_member = is_open & (pl.col("state_of_group").is_not_null() | is_one_of_several)
    chosen = [pl.when(is_member).then(f"{name}_of_group").otherwise(name).alias(name) for name in observed]
    known = pl.col("state").is_in(["scheduled", "started", "completed"])
    return rows.with_columns(chosen).with_columns(state=pl.when(known).then("state"))


def map_texts_expr(column: str | pl.Expr, function: Any, result: type[pl.DataType] = pl.String) -> pl.Expr:
    """Return an expression that calls a function once per distinct string of a column or an expression."""

    def map_texts(texts: pl.Series) -> pl.Series:
        distinct = texts.unique().drop_nulls()
        values = pl.Series([function(text) for text in distinct], dtype=result)
        table = pl.DataFrame({"text": distinct, "value": values})
        joined = texts.to_frame("text").join(table, on="text", how="left", maintain_order="left")
        return joined["value"]

    texts = pl.col(column) if isinstance(column, str) else column
    return texts.map_batches(map_texts, return_dtype=result)


def multiply_expr(count: pl.Expr, width: pl.Expr) -> pl.Expr:
    """Return an expression for a product that is null if it exceeds 63 bits."""
    return pl.when(count.is_between(0, (1 << 58))).then(count * width)


def _milliseconds_expr(column: str) -> pl.Expr:
    """Return an expression that converts milliseconds to whole ns. Values that are not valid durations become null."""
    value = pl.col(column)
    is_valid = value.is_finite() if column == "duration_ms" else value.is_not_null()
    in_range = is_valid & value.is_between(0, _MAX_MS)
    return (pl.when(in_range).then(value) * _NS_PER_MS).round().cast(pl.Int64)


class Shapes:
    """A converter of shapes of tensors, such as ``[[2, 1024]]``, to numbers of elements. Equal texts are read once."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def count_elements(self, text: str) -> int | None:
        """Return the number of elements of the tensors with the given shapes, or None if the text is something else."""
        self._budget.reserve(len(text), 32, "sizes of tensors")
        try:
            shapes = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(shapes, list) or not shapes:
            return None
        return self._add_up(shapes)

    def _add_up(self, shapes: list[Any]) -> int | None:
        total = 0
        for shape in shapes:
            product = 1
            for size in shape if isinstance(shape, list) else (None,):
                if not isinstance(size, int) or not 0 <= size < 1 << 48:
                    return None
                product *= size
                if product >= 1 << 62:
                    return None
            total += product
        return total if total < 1 << 62 else None


def repair_text(text: str) -> str:
    """Return a text without halves of surrogate pairs, which JSON can contain, but columns cannot."""
    return text.encode("utf-8", "replace").decode()


def parse_first_text(text: str) -> str | None:
    """Return the first string of a JSON array, or None."""
    return _parse_nth_text(text, 0)


def parse_second_text(text: str) -> str | None:
    """Return the second string of a JSON array, or None."""
    return _parse_nth_text(text, 1)


def _parse_nth_text(text: str, number: int) -> str | None:
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    value = listed[number] if isinstance(listed, list) and len(listed) > number else None
    return repair_text(value) if isinstance(value, str) else None


def convert_to_entries(columns: Mapping[str, pa.Array | pl.Series]) -> pl.DataFrame:
    """Return the entries of a flight recorder with the columns ``ENTRY``. Missing columns are null.

    Raises:
        Damage: No entry states which collective it is.
    """
    series = {name: values if isinstance(values, pl.Series) else _convert(values) for name, values in columns.items()}
    rows = len(next(iter(series.values()), ()))
    frame = pl.DataFrame(
        [
            series[name].cast(kind, strict=False).alias(name)
            if name in series
            else pl.Series(name, [None], kind).new_from_index(0, rows)
            for name, kind in ENTRY.items()
        ]
    )
    if rows and frame["name"].null_count() == rows:
        raise Damage("no entry of the flight recorder has a name")
    return frame


def _convert(values: pa.Array) -> pl.Series:
    return pl.Series(values.cast(pa.string()) if pa.types.is_dictionary(values.type) else values)
