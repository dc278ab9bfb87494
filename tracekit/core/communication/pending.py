"""Find the collectives that a job hangs in: those that not all ranks of a communicator have entered or completed.

The calls come from logs such as dumps of flight recorders, which state how far each call came. All ranks of a
communicator number its collectives alike. A rank whose last collective in a communicator has a lower number than that
of another rank has therefore not entered the collective of the other rank. A log contains only the last collectives of
a rank, so a collective that precedes the first one of a log counts as completed there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.communication.calls import LOGGED, MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    Frames = Callable[[str], pl.LazyFrame]

MISSING, DIFFERENT, UNFINISHED = "missing ranks", "different calls", "not completed"
COMPLETED = "completed"
_OF_ONE_SIZE = ("all_reduce", "broadcast", "reduce")
"""Kinds of collectives in which all ranks state the same size."""
_LISTED = 8
_MAX_SENTENCES = 20
_CALLS: dict[str, type[pl.DataType]] = {
    "recorded_rank": pl.Int64,
    **dict.fromkeys(("kind", "communicator", "communicator_name", "member_ranks", "data_type", "state"), pl.String),
    **dict.fromkeys(("communicator_size", "communicator_rank", "sequence", "peer", "message_bytes"), pl.Int64),
    **dict.fromkeys(("created_ns", "last_ns"), pl.Int64),
}
PENDING_COLUMNS: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("communicator", "communicator_name"), pl.String),
    "sequence": pl.Int64,
    "kind": pl.String,
    "message_bytes": pl.Int64,
    "communicator_size": pl.Int64,
    **dict.fromkeys(("problem", "entered_ranks", "missing_ranks", "unknown_ranks", "completed_ranks"), pl.String),
    "waiting_ns": pl.Int64,
    "sentence": pl.String,
}
"""Columns of ``find_pending_operations``."""
_OPERATION = ("communicator", "sequence")


def read_logged_states(frames: Frames) -> pl.DataFrame:
    """Return how far the logged collectives and messages of one rank came.

    Args:
        frames: Function that returns the table with a given name.

    Returns:
        One row per call, with some columns of ``communication_calls``, the rank that the log states as
        ``recorded_rank``, and the time of the last record of the log as ``last_ns``.
    """
    rows = frames(LOGGED).with_columns(recorded_rank="rank").drop_nulls(["kind", "communicator"])
    last = pl.max_horizontal("created_ns", "start_seen_ns", "end_seen_ns", "end_ns").max()
    rows = rows.with_columns(last_ns=last)
    return rows.select(pl.col(name).cast(kind) for name, kind in _CALLS.items()).collect()


def find_pending_operations(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives and messages that are not completed on all ranks, or that differ between ranks.

    Args:
        calls: The rows of ``read_logged_states`` of all ranks, with the column ``rank``: the rank of the log.

    Returns:
        One row per collective, or per message and rank, with the columns ``PENDING_COLUMNS``: those that miss ranks
        first, then those with different calls, each in order of their number. ``unknown_ranks`` are members of the
        communicator without a log. ``waiting_ns`` is the longest time from the call to the last record of a log.
    """
    rows = calls.with_columns(rank=pl.coalesce("recorded_rank", "communicator_rank", "rank"))
    is_message = pl.col("kind").is_in(MESSAGES)
    pending = pl.concat(
        [_find_pending_collectives(rows.filter(~is_message)), _find_pending_messages(rows.filter(is_message))]
    )
    order = pl.col("problem").replace_strict({MISSING: 0, DIFFERENT: 1}, default=2, return_dtype=pl.Int8)
    pending = pending.sort(order, "sequence", "communicator", maintain_order=True)
    return pending.with_columns(sentence=_sentence_expr()).select(*PENDING_COLUMNS)


def list_pending_sentences(pending: pl.DataFrame) -> list[str]:
    """Return one sentence per pending operation, the likely causes first, given ``find_pending_operations``.

    Operations that only wait are left out if ranks are missing in other operations or call something different there.
    """
    causes = pending.filter(pl.col("problem") != UNFINISHED)
    shown = causes if causes.height else pending
    rest = shown.height - _MAX_SENTENCES
    more = [f"{rest} more operations are not completed."] if rest > 0 else []
    return [*shown["sentence"].head(_MAX_SENTENCES).to_list(), *more]


def _find_pending_collectives(rows: pl.DataFrame) -> pl.DataFrame:
    rows = rows.drop_nulls("sequence")
    state = pl.col("state")
    size = pl.when(pl.col("kind").is_in(_OF_ONE_SIZE)).then("message_bytes")
    call = pl.struct("kind", "data_type", size.alias("size"))
    operations = rows.group_by(_OPERATION, maintain_order=True).agg(
        pl.col("communicator_name", "kind", "message_bytes", "communicator_size", "member_ranks").first(),
        different=call.n_unique() > 1,
        unfinished=(state != COMPLETED).any(),
        entered=pl.col("rank").unique().sort(),
        completed=pl.col("rank").filter(state == COMPLETED).unique().sort(),
        waiting_ns=(pl.col("last_ns") - pl.col("created_ns")).filter(state != COMPLETED).max(),
    )
    operations = operations.filter(pl.col("different") | pl.col("unfinished"))
    members = _list_members(rows)
    absent = operations.select(*_OPERATION, "entered").join(members, on="communicator")
    absent = absent.filter(~pl.col("member").is_in(pl.col("entered")))
    # A rank that recorded a later collective has been in this one, although its log no longer contains it.
    absent = absent.filter((pl.col("last") < pl.col("sequence")) | ~pl.col("is_logged"))
    by_operation = absent.group_by(_OPERATION).agg(
        missing=pl.col("member").filter("is_logged").sort(),
        unknown=pl.col("member").filter(~pl.col("is_logged")).sort(),
    )
    joined = operations.join(by_operation, on=list(_OPERATION), how="left", maintain_order="left")
    is_missing = pl.col("missing").list.len().fill_null(0) > 0
    problem = pl.when(is_missing).then(pl.lit(MISSING)).when("different").then(pl.lit(DIFFERENT))
    return joined.with_columns(
        problem=problem.otherwise(pl.lit(UNFINISHED)),
        entered_ranks=_list_expr("entered"),
        missing_ranks=_list_expr("missing"),
        unknown_ranks=_list_expr("unknown"),
        completed_ranks=_list_expr("completed"),
        sentence=pl.lit(None, pl.String),
    ).select(*PENDING_COLUMNS)


def _list_members(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the members of each communicator.

    Returns:
        ``communicator``, ``member`` (rank), ``is_logged`` (whether there is a log of the rank) and ``last`` (the
        largest number of the collectives of the communicator in the log of the rank, -1 if there are none).
    """
    described = rows.drop_nulls("member_ranks").unique("communicator", keep="first", maintain_order=True)
    pairs = [
        (communicator, member)
        for communicator, text in described.select("communicator", "member_ranks").iter_rows()
        for member in json.loads(text)
    ]
    listed = pl.DataFrame(pairs, {"communicator": pl.String, "member": pl.Int64}, orient="row")
    own = rows.select("communicator", member="rank").unique()
    members = pl.concat([listed, own]).unique(maintain_order=True)
    lasts = rows.group_by("communicator", member="rank").agg(last=pl.col("sequence").max())
    logged = rows.select(member="rank").unique().with_columns(is_logged=pl.lit(value=True))
    members = members.join(lasts, on=["communicator", "member"], how="left", maintain_order="left")
    members = members.join(logged, on="member", how="left", maintain_order="left")
    return members.with_columns(pl.col("is_logged").fill_null(value=False), pl.col("last").fill_null(-1))


def _find_pending_messages(rows: pl.DataFrame) -> pl.DataFrame:
    pending = rows.filter(pl.col("state") != COMPLETED)
    return pending.select(
        "communicator",
        "communicator_name",
        "sequence",
        "kind",
        "message_bytes",
        "communicator_size",
        problem=pl.lit(UNFINISHED),
        entered_ranks=pl.col("rank").cast(pl.String),
        missing_ranks=pl.lit(None, pl.String),
        unknown_ranks=pl.lit(None, pl.String),
        completed_ranks=pl.lit(None, pl.String),
        waiting_ns=pl.col("last_ns") - pl.col("created_ns"),
        sentence=pl.format("with rank {} of the communicator", "peer"),
    )


def _list_expr(column: str) -> pl.Expr:
    """Return an expression for a list of ranks as text, which is null for an empty list."""
    ranks = pl.col(column)
    text = ranks.list.head(_LISTED).cast(pl.List(pl.String)).list.join(", ")
    more = pl.when(ranks.list.len() > _LISTED).then(pl.lit(", …")).otherwise(pl.lit(""))
    return pl.when(ranks.list.len() > 0).then(text + more)


def _sentence_expr() -> pl.Expr:
    """Return an expression for a sentence about a pending operation."""
    name = pl.when(pl.col("communicator_name").is_not_null()).then(
        pl.format("{} (communicator {})", "communicator_name", "communicator")
    )
    number = pl.when(pl.col("sequence").is_not_null()).then(pl.format(" #{}", "sequence")).otherwise(pl.lit(""))
    call = pl.format("{}{} of {}", "kind", number, name.otherwise(pl.format("communicator {}", "communicator")))
    unknown = pl.when(pl.col("unknown_ranks").is_not_null()).then(pl.format("; no log of rank {}", "unknown_ranks"))
    rest = unknown.otherwise(pl.lit(""))
    missing = pl.format(
        "Rank {} has not entered {}, in which rank {} waits{}.", "missing_ranks", call, "entered_ranks", rest
    )
    different = pl.format("The ranks {} call different operations as {}{}.", "entered_ranks", call, rest)
    message = pl.format("Rank {} has not completed {} {}.", "entered_ranks", call, "sentence")
    unfinished = pl.format("Rank {} has not completed {}{}.", "entered_ranks", call, rest)
    return (
        pl.when(pl.col("problem") == MISSING)
        .then(missing)
        .when(pl.col("problem") == DIFFERENT)
        .then(different)
        .otherwise(pl.coalesce(message, unfinished))
    )
