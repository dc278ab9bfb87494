"""Match communication calls across ranks: the members of each collective, and the two sides of each message.

All ranks of a communicator call its collectives in the same order. The n-th collective of a communicator is therefore
the same one in all ranks, and the n-th send from one rank to another matches the n-th receive. If captures do not
begin or end with the same call, n differs by a constant shift, unless the calls were logged with their numbers. The
shift is chosen so that all calls agree in kind and size, and the differences between their ends vary least. Of several
equally good shifts, the one with the smallest differences is chosen.

NCCL identifies communicators by a number that all ranks share. If it was not recorded, the CUDA stream of the kernels
is used instead. Ranks belong to one communicator if the kinds of the calls on their streams agree and the differences
between their ends hardly vary. Streams with the same number may therefore be several communicators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.communication.calls import MESSAGES, MPI, NCCL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

SIMULTANEOUS_NS = 20_000
"""Variation of the differences between the ends of matching calls up to which no shift of the calls is necessary."""
MAX_STREAM_VARIATION_NS = 50_000
"""Streams with equal numbers are different communicators if the differences between ends vary more than this."""
_NEAR, _NEAR_BY_STREAM = 64, 8
"""Number of shifts that are tried before and after each likely shift."""
_LISTED = 8
_BETTER = 4
MATCHED, INCOMPLETE, UNMATCHED = "matched", "incomplete", "unmatched"
_CHANNEL = "channel"


class _TokensAndTimes(NamedTuple):
    """The calls of one rank that are matched to those of another rank, in order of start.

    Attributes:
        tokens: One number per call. Calls with different tokens cannot match.
        end_times_ns: The end of each call in ns, aligned by the UTC origins of the traces.
    """

    tokens: Numbers
    end_times_ns: Numbers


class _ChannelShift(NamedTuple):
    """The shift of the calls of one side of a channel.

    Attributes:
        channel: Name of the channel.
        side: Number of the side.
        shift: The number to add to the positions of the calls of the side, or None if it is unknown.
    """

    channel: str
    side: int
    shift: int | None


class _EndTimeComparison(NamedTuple):
    """How much the end times of the matched calls of two ranks differ.

    For each pair of calls, the difference is the end time of the other rank minus that of the reference. If there is
    only one pair, both attributes are the absolute value of its difference.

    Attributes:
        variation_ns: Median of the absolute changes of the difference from one pair to the next. It does not depend on
            the offset of the clocks, and hardly on their drift.
        median_ns: Absolute value of the median of the differences.
    """

    variation_ns: float
    median_ns: float


def match_calls(calls: pl.DataFrame, origins: Mapping[int, int | None]) -> pl.DataFrame:
    """Match the communication calls of several traces to collectives and messages.

    Args:
        calls: The rows of ``read_communication_calls`` of all traces, with the column ``rank``: the rank of the trace.
        origins: Maps the rank of each trace to its origin in UTC in ns, or to None if the origin was not recorded.

    Returns:
        One row per call and rank, in order of ``collective_id``, with the columns of ``calls``. ``rank`` is the rank
        of the GPU or process that made the call. ``trace_rank`` is the rank of the trace, which differs from ``rank``
        only if a trace contains several ranks. Further columns are ``communicator_by`` (payload or stream),
        ``sequence`` (the number of the call in its communicator, or of the message between two ranks),
        ``collective_id`` (equal for all members of a collective, and for both sides of a message), ``rank_count`` (the
        number of members that are present), ``status`` (matched if all members are present, unmatched if only one is
        present, otherwise incomplete), and ``bytes`` (the size of the data as nccl-tests defines it).
    """
    times = pl.col("end_ns") + pl.col("trace_rank").replace_strict(
        _compute_origin_offsets(origins), default=0, return_dtype=pl.Int64
    )
    rows = _replace_trace_ranks(calls).with_row_index("row").with_columns(_utc=times, _token=_collective_token_expr())
    rows = _fill_communicator_sizes(
        _fill_communicators_by_stream(rows.sort(pl.coalesce("call_start_ns", "start_ns"), "row"))
    )
    rows = _add_channels(rows)
    rows = rows.with_columns(nth=pl.coalesce("recorded_sequence", pl.int_range(pl.len()).over(_CHANNEL, "side")))
    channels = rows.drop_nulls(_CHANNEL).partition_by(_CHANNEL, maintain_order=True)
    shifts = [shift for channel in channels for shift in _find_channel_shifts(channel)]
    schema = {_CHANNEL: pl.String, "side": pl.Int64, "shift": pl.Int64}
    rows = rows.join(
        pl.DataFrame(shifts, schema, orient="row"), on=[_CHANNEL, "side"], how="left", maintain_order="left"
    )
    shifted = pl.col("nth") + pl.col("shift")
    rows = rows.with_columns(sequence=pl.coalesce("recorded_sequence", shifted - shifted.min().over(_CHANNEL)))
    return _add_match_columns(rows)


def _compute_origin_offsets(origins: Mapping[int, int | None]) -> dict[int, int]:
    """Return the offset of each rank in ns: its origin minus the first known origin, or 0 if its origin is unknown."""
    known = [origins[rank] for rank in sorted(origins) if origins[rank] is not None]
    return {rank: 0 if utc is None else utc - (known[0] or 0) for rank, utc in origins.items()}


def _replace_trace_ranks(calls: pl.DataFrame) -> pl.DataFrame:
    """Replace the ranks of traces with ranks of processes or GPUs if a trace contains several processes or GPUs."""
    who = ["trace_rank", "process_id", "device_id"]
    rows = calls.rename({"rank": "trace_rank"})
    own = pl.col("communicator_rank").filter(pl.col("communicator_size") == pl.col("communicator_size").max()).min()
    members = rows.group_by(who).agg(own=own).sort("trace_rank", "own", "device_id", "process_id", nulls_last=True)
    is_single = members["trace_rank"].is_unique().all()
    numbers = pl.col("trace_rank") if is_single else pl.int_range(pl.len(), dtype=pl.Int64)
    numbered = members.select(*who, rank=numbers)
    return rows.join(numbered, on=who, nulls_equal=True, maintain_order="left")


def _fill_communicators_by_stream(rows: pl.DataFrame) -> pl.DataFrame:
    """Replace unknown communicators with names derived from CUDA streams, and add the column ``communicator_by``."""
    is_nccl = pl.col("library") == NCCL
    by_stream = pl.when(is_nccl & pl.col("stream_id").is_not_null()).then(pl.format("stream {}", "stream_id"))
    is_known = pl.col("communicator").is_not_null()
    by = pl.when(is_known).then(pl.lit("payload")).when(by_stream.is_not_null()).then(pl.lit("stream"))
    rows = rows.with_columns(communicator_by=by, communicator=pl.coalesce("communicator", by_stream))
    streams = rows.filter(communicator_by="stream").partition_by("communicator", maintain_order=True)
    names = [(stream["communicator"][0], *name) for stream in streams for name in _name_communicators_by_rank(stream)]
    schema = {"communicator": pl.String, "rank": pl.Int64, "_name": pl.String}
    named = pl.DataFrame(names, schema, orient="row").with_columns(communicator_by=pl.lit("stream"))
    rows = rows.join(named, on=["communicator", "rank", "communicator_by"], how="left", maintain_order="left")
    return rows.with_columns(communicator=pl.coalesce("_name", "communicator")).drop("_name")


def _name_communicators_by_rank(stream_calls: pl.DataFrame) -> Iterator[tuple[int, str]]:
    """Yield each rank that uses a stream, with the name of the communicator of the rank.

    The name contains the stream and, if several communicators use the stream, also the ranks.
    """
    by_rank = stream_calls.partition_by("rank", as_dict=True, maintain_order=True)
    remaining = {rank[0]: _compute_tokens_and_times(rows) for rank, rows in by_rank.items()}
    groups = []
    while remaining:
        first = min(remaining, key=lambda rank: (-len(remaining[rank].tokens), rank))
        reference = remaining.pop(first)
        others = [
            r
            for r, calls in remaining.items()
            if find_best_shift(reference, calls, communicator_is_inferred=True) is not None
        ]
        groups.append(sorted([first, *others]))
        remaining = {rank: calls for rank, calls in remaining.items() if rank not in others}
    name = stream_calls["communicator"][0]
    for group in groups:
        listed = ", ".join(map(str, group[:_LISTED])) + (", …" if len(group) > _LISTED else "")
        yield from ((rank, name if len(groups) == 1 else f"{name} of ranks {listed}") for rank in group)


def _fill_communicator_sizes(rows: pl.DataFrame) -> pl.DataFrame:
    """Fill in the size of each communicator, and the rank of each call in its communicator, where they are null."""
    of = ["library", "communicator"]
    present = pl.col("rank").n_unique().cast(pl.Int64).over(of)
    size = pl.coalesce(pl.col("communicator_size").max().over(of), pl.when(present > 1).then(present))
    dense_rank = pl.coalesce("communicator_rank", pl.col("rank").rank("dense").over(of).cast(pl.Int64) - 1)
    known = pl.col("communicator").is_not_null()
    return rows.with_columns(
        communicator_size=pl.when(known).then(size),
        communicator_rank=pl.when(known).then(dense_rank),
    )


def _add_channels(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the columns ``channel`` and ``side``. The n-th calls of all sides of a channel match each other.

    The channel of a collective is its communicator, and the sides are its ranks. The channel of a message consists of
    the sender, the receiver and the tag. An MPI message has no channel if its match is uncertain, because its receiver
    also receives from any source or with any tag, or because ``MPI_Sendrecv`` is called with the same communicator and
    tag.
    """
    is_send, is_message = pl.col("kind") == "send", pl.col("kind").is_in(MESSAGES)
    source = pl.when(is_send).then("communicator_rank").otherwise("peer")
    target = pl.when(is_send).then("peer").otherwise("communicator_rank")
    rows = rows.with_columns(source=source, target=target)
    of = ["library", "communicator"]
    is_any = (pl.col("library") == MPI) & (pl.col("kind") == "recv") & ((pl.col("source") < 0) | (pl.col("tag") < 0))
    of_any = rows.filter(is_any.fill_null(value=False)).select(*of, "target", of_any=True).unique()
    hidden = rows.filter(library=MPI, kind="send_recv").select(*of, "tag", hidden=True).unique()
    rows = rows.join(of_any, on=[*of, "target"], how="left", maintain_order="left")
    rows = rows.join(hidden, on=[*of, "tag"], how="left", maintain_order="left")
    message = pl.format("{} {} {}>{} {}", *of, "source", "target", pl.col("tag").fill_null(0))
    message = pl.when(pl.col("of_any").is_null() & pl.col("hidden").is_null()).then(message)
    collective = pl.when((pl.col("kind") != "send_recv") | (pl.col("library") == NCCL)).then(pl.format("{} {}", *of))
    return rows.with_columns(
        channel=pl.when(is_message).then(message).otherwise(collective),
        side=2 * pl.col("rank") + (pl.col("kind") == "recv").cast(pl.Int64),
    ).drop("source", "target", "of_any", "hidden")


def _collective_token_expr() -> pl.Expr:
    """Return an expression for the token of a call, a hash that is equal for all members of a collective."""
    is_message, is_nccl = pl.col("kind").is_in(MESSAGES), pl.col("library") == NCCL
    facts = [
        pl.when(~is_message).then("kind"),
        pl.when(~is_message).then("root"),
        pl.when(is_nccl).then("message_bytes"),
        pl.when(is_nccl).then("reduction"),
        pl.when(is_nccl & ~is_message).then("data_type"),
    ]
    return pl.struct(f.alias(str(n)) for n, f in enumerate(facts)).hash().reinterpret(signed=True)


def _find_channel_shifts(channel_calls: pl.DataFrame) -> Iterator[_ChannelShift]:
    """Yield the shift of the calls of each side of a channel after which the n-th calls of all sides match.

    A channel is a communicator, whose sides are its ranks, or the messages from one rank to another. The side with the
    most calls is not shifted. Collectives whose numbers were recorded need no shift.

    Yields:
        One shift per side.
    """
    sides = channel_calls.partition_by("side", as_dict=True, maintain_order=True)
    name = channel_calls[_CHANNEL][0]
    if not channel_calls["recorded_sequence"].null_count():
        yield from (_ChannelShift(name, side[0], 0) for side in sides)
        return
    first = min(sides, key=lambda side: (-sides[side].height, side))
    reference, is_exact = _compute_tokens_and_times(sides[first]), bool(channel_calls["kernel_id"].is_not_null().all())
    for side, rows in sides.items():
        shift = (
            0
            if side == first
            else find_best_shift(reference, _compute_tokens_and_times(rows), times_are_exact=is_exact)
        )
        yield _ChannelShift(name, side[0], shift)


def _compute_tokens_and_times(rows: pl.DataFrame) -> _TokensAndTimes:
    """Return the tokens and the UTC-aligned ends of calls."""
    return _TokensAndTimes(rows["_token"].to_numpy(), rows["_utc"].fill_null(0).to_numpy())


def find_best_shift(
    reference: _TokensAndTimes,
    other: _TokensAndTimes,
    *,
    communicator_is_inferred: bool = False,
    times_are_exact: bool = True,
) -> int | None:
    """Return the shift that aligns the calls of one rank with the calls of another rank.

    Args:
        reference: The calls of the rank with more calls.
        other: The calls of the other rank.
        communicator_is_inferred: Whether the communicator was inferred from the stream. In this case, a shift is only
            returned if the times confirm it.
        times_are_exact: Whether the times are end times of kernels. CPU times are inexact, so ranks with equally many
            calls are then not shifted because of their times, but only if their tokens differ.

    Returns:
        The number to add to the positions of the other rank's calls, or None if ``communicator_is_inferred`` is
        true and the times do not confirm the shift.
    """
    n, m = len(reference.tokens), len(other.tokens)
    unshifted = _compare_end_times(reference, other, 0) if n == m else None
    if unshifted is None or (times_are_exact and unshifted.variation_ns > SIMULTANEOUS_NS):
        distance = _NEAR_BY_STREAM if communicator_is_inferred else _NEAR
        near = int(np.searchsorted(reference.end_times_ns, other.end_times_ns[0]))
        tried = sorted({shift + d for shift in (0, n - m, near) for d in range(-distance, distance + 1)})
        rated = {shift: d for shift in tried if (d := _compare_end_times(reference, other, shift)) is not None}
        least = min((compared.variation_ns for compared in rated.values()), default=0.0)
        if rated and (unshifted is None or _BETTER * least < unshifted.variation_ns):
            similar = [s for s, c in rated.items() if c.variation_ns <= max(2 * least, SIMULTANEOUS_NS)]
            return _discard_unconfirmed_shift(
                min(similar, key=lambda s: (rated[s].median_ns, abs(s))),
                least,
                communicator_is_inferred=communicator_is_inferred,
            )
    return _discard_unconfirmed_shift(
        0, None if unshifted is None else unshifted.variation_ns, communicator_is_inferred=communicator_is_inferred
    )


def _discard_unconfirmed_shift(shift: int, variation_ns: float | None, *, communicator_is_inferred: bool) -> int | None:
    """Return a shift, or None if the communicator is inferred from a stream and the times do not confirm the shift."""
    contradicts = variation_ns is None or variation_ns > MAX_STREAM_VARIATION_NS
    return None if communicator_is_inferred and contradicts else shift


def _compare_end_times(reference: _TokensAndTimes, other: _TokensAndTimes, shift: int) -> _EndTimeComparison | None:
    """Return how much the end times of the calls of two ranks differ if the calls of the other rank are shifted.

    The result is None if fewer than half of the calls of the rank with fewer calls are in a pair, or if the tokens of a
    pair differ.
    """
    n, m = len(reference.tokens), len(other.tokens)
    low, high = max(shift, 0), min(n, m + shift)
    if 2 * (high - low) < min(n, m) or high <= low:
        return None
    if (reference.tokens[low:high] != other.tokens[low - shift : high - shift]).any():
        return None
    difference = other.end_times_ns[low - shift : high - shift] - reference.end_times_ns[low:high]
    middle = abs(float(np.median(difference)))
    variation = float(np.median(np.abs(np.diff(difference)))) if high - low > 1 else middle
    return _EndTimeComparison(variation, middle)


def _add_match_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Number the groups of matching calls in order of start, and count the present members of each group."""
    is_message = pl.col("kind").is_in(MESSAGES)
    own = pl.when(pl.col("sequence").is_null()).then("row")
    group = [_CHANNEL, "sequence", "_token", "_own"]
    rows = rows.with_columns(_own=own)
    first = (pl.col("_utc") - pl.col("end_ns") + pl.col("start_ns")).min()
    firsts = rows.group_by(group, maintain_order=True).agg(_first=first, rank_count=pl.len().cast(pl.Int64))
    firsts = firsts.sort("_first", maintain_order=True).with_columns(
        collective_id=pl.int_range(1, pl.len() + 1, dtype=pl.Int64)
    )
    rows = rows.join(firsts, on=group, nulls_equal=True, maintain_order="left")
    members = pl.when(is_message).then(2).otherwise("communicator_size")
    complete = pl.col("rank_count") >= pl.coalesce(members, 2)
    status = pl.when(complete).then(pl.lit(MATCHED)).when(pl.col("rank_count") > 1).then(pl.lit(INCOMPLETE))
    scale = message_scale_expr("communicator_size")
    rows = rows.with_columns(status=status.otherwise(pl.lit(UNMATCHED)), bytes=pl.col("message_bytes") * scale)
    ordered = rows.sort("collective_id", "rank", "row")
    return ordered.drop(
        "row", "_utc", "_token", "_own", "_first", "nth", "shift", "side", "recorded_sequence", _CHANNEL
    )


def message_scale_expr(size_column: str) -> pl.Expr:
    """Return an expression for the size of an operation, as nccl-tests defines it, divided by that of the message.

    The expression reads the columns ``kind``, ``library`` and that of the number of ranks. Sizes of MPI calls are
    totals of all ranks.
    """
    total = pl.col("kind").is_in(["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"])
    return pl.when(total & (pl.col("library") == NCCL)).then(size_column).otherwise(1)
