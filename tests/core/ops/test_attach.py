"""Which op a call belongs to, against brute force."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core.intervals.containment import find_last_containers
from tracekit.core.ops.attach import find_instances_of_calls

PLACED = {"process_id": pl.Int32, "thread_id": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}
interval = st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(0, 12), st.integers(0, 8))


def frame(rows: list[tuple[int, int, int, int]]) -> pl.DataFrame:
    return pl.DataFrame([(p, t, s, s + d) for p, t, s, d in rows], schema=PLACED, orient="row")


def holds(outer: dict, inner: dict, by: list[str]) -> bool:
    same = all(outer[c] == inner[c] for c in by)
    return same and outer["start_ns"] <= inner["start_ns"] and outer["end_ns"] >= inner["end_ns"]


@given(st.lists(interval, max_size=9), st.lists(interval, max_size=9))
def test_the_last_interval_that_holds_an_item(items: list, intervals: list) -> None:
    asked, known = frame(items), frame(intervals)
    outer = known.to_dicts()
    for by in (["process_id", "thread_id"], ["process_id"]):
        expected = [
            max((i for i, o in enumerate(outer) if holds(o, item, by)), default=None) for item in asked.to_dicts()
        ]
        assert find_last_containers(asked, known, by=by).to_list() == expected


def test_an_item_that_ends_before_it_starts_is_in_an_interval_only_if_asked() -> None:
    item, around = frame([(1, 1, 5, -2)]), frame([(1, 1, 0, 9)])
    found = [find_last_containers(item, around, by=["process_id"], allow_inverted=a).to_list() for a in (False, True)]
    assert found == [[None], [0]]


def dealt(calls: list[dict], instances: list[dict]) -> list[tuple[int | None, int | None]]:
    """Deal calls to ops one after the other, from the last to the first, as DLProf does."""
    found: dict[int, tuple[int | None, int | None]] = {}
    made: list[dict] = []
    for call in sorted(calls, key=lambda c: -c["call_id"]):
        own = [i for i, o in enumerate(instances) if holds(o, call, ["process_id", "thread_id"])]
        if own:
            found[call["call_id"]] = (own[-1], None)
            continue
        shared = [(o["start_ns"], 0, i, (i, None)) for i, o in enumerate(instances) if holds(o, call, ["process_id"])]
        shared += [
            (m["start_ns"], 1, n, (None, m["row"])) for n, m in enumerate(made) if holds(m, call, ["process_id"])
        ]
        if shared:
            found[call["call_id"]] = max(shared)[3]
        elif call["has_work"]:
            made.append(call)
            found[call["call_id"]] = (None, call["row"])
        else:
            found[call["call_id"]] = (None, None)
    return [found[c["call_id"]] for c in calls]


@given(
    st.lists(st.tuples(interval, st.booleans()), max_size=10),
    st.lists(interval, max_size=4),
    st.randoms(use_true_random=False),
)
def test_calls_are_dealt_as_one_after_the_other(calls: list, intervals: list, random: object) -> None:
    ids = list(range(len(calls)))
    random.shuffle(ids)
    made = frame([c for c, _ in calls]).with_columns(
        call_id=pl.Series(ids, dtype=pl.Int64), has_work=pl.Series([w for _, w in calls], dtype=pl.Boolean)
    )
    instances = frame(intervals).sort("start_ns", maintain_order=True)
    found = find_instances_of_calls(made, instances)
    assert found.rows() == dealt(made.with_row_index("row").to_dicts(), instances.to_dicts())


def test_a_call_that_ends_before_it_starts_belongs_to_nothing() -> None:
    calls = pl.DataFrame([(1, 1, 5, 3)], schema=PLACED, orient="row")
    found = find_instances_of_calls(
        calls.with_columns(call_id=pl.lit(1, pl.Int64), has_work=pl.lit(value=False)), frame([(1, 1, 0, 9)])
    )
    assert found.rows() == [(None, None)]
