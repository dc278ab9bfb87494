"""Which rows a selection keeps, against a plain reading of its words."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core import select

SCHEMA = {
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "device_id": pl.Int32,
    "domain": pl.Categorical,
}
LARGEST = (1 << 63) - 1
TIME = st.integers(-3, 6)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "start_ns": TIME,
            "end_ns": st.none() | TIME,
            "device_id": st.none() | st.integers(0, 2),
            "domain": st.none() | st.sampled_from(["", "a", "b"]),
        }
    ),
    max_size=12,
)
BOUND = st.none() | TIME | st.sampled_from([LARGEST, -LARGEST])


def kept(rows: list[dict], **criteria) -> list[int]:
    frame = pl.DataFrame(rows, schema=SCHEMA).with_row_index()
    wanted = select.row_condition_expr(frame.columns, criteria.items())
    return frame["index"].to_list() if wanted is None else frame.filter(wanted)["index"].to_list()


def overlaps(row: dict, low: int | None, high: int | None) -> bool:
    start, end = row["start_ns"], row["end_ns"]
    begins = high is None or start < high
    # An instant lies at its start; a row without end is still open.
    lasts = low is None or end is None or end > low or start >= low
    return begins and lasts


@given(rows=ROWS, low=BOUND, high=BOUND)
def test_time(rows: list[dict], low: int | None, high: int | None) -> None:
    assert kept(rows, time=(low, high)) == [i for i, r in enumerate(rows) if overlaps(r, low, high)]


@given(rows=ROWS, shortest=st.integers(-2, 5))
def test_duration(rows: list[dict], shortest: int) -> None:
    long = [i for i, r in enumerate(rows) if r["end_ns"] is None or r["end_ns"] - r["start_ns"] >= shortest]
    assert kept(rows, min_duration_ns=shortest) == long


@given(rows=ROWS, devices=st.lists(st.integers(0, 3)), domains=st.lists(st.sampled_from(["", "a", "c"])))
def test_devices_and_domains(rows: list[dict], devices: list[int], domains: list[str]) -> None:
    assert kept(rows, devices=devices) == [i for i, r in enumerate(rows) if r["device_id"] in devices]
    named = [i for i, r in enumerate(rows) if (r["domain"] or "") in domains]
    assert kept(rows, domains=domains) == named
    both = [i for i in named if rows[i]["device_id"] in devices]
    assert kept(rows, domains=domains, devices=devices) == both


def test_conditions_can_be_hashed() -> None:
    assert select.create_condition("devices", [1, 2]) == ("devices", (1, 2))
    assert select.create_condition("time", (None, 3)) == ("time", (None, 3))


def test_what_does_not_apply_keeps_all() -> None:
    everything = {"time": (1, 2), "devices": [0], "domains": ["a"], "min_duration_ns": 3}
    assert select.row_condition_expr(["name", "device_id"], everything.items()) is None
    assert select.row_condition_expr(SCHEMA, []) is None
    assert select.row_condition_expr(["start_ns"], [("time", (None, None))]) is None


@given(times=st.lists(TIME), low=BOUND, high=BOUND)
def test_moments(times: list[int], low: int | None, high: int | None) -> None:
    frame = pl.DataFrame({"timestamp_ns": times}, schema={"timestamp_ns": pl.Int64})
    wanted = select.row_condition_expr(
        frame.columns, {"time": (low, high), "min_duration_ns": 5, "domains": ["a"]}.items()
    )
    found = frame.to_series().to_list() if wanted is None else frame.filter(wanted).to_series().to_list()
    assert found == [t for t in times if (low is None or t >= low) and (high is None or t < high)]


def test_results_of_nsight_compute_have_devices_and_durations() -> None:
    rows = pl.DataFrame({"launch_id": [0, 1, 2], "device_id": [0, 1, None], "duration_ns": [5, 50, None]})
    for wanted, kept in (({"devices": [1]}, [1]), ({"min_duration_ns": 10}, [1, 2]), ({"time": (0, 9)}, [0, 1, 2])):
        where = select.row_condition_expr(rows.columns, wanted.items())
        assert (rows if where is None else rows.filter(where))["launch_id"].to_list() == kept
    devices = ["device_id", "name"]
    assert select.row_condition_expr(devices, [("devices", [1])]) is None
