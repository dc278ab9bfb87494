"""Columns of API calls that are gathered from the tables equal the columns of the paired rows."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tracekit.core.ops.attach import COLUMNS, AttributedCalls, pair_calls_with_activities

FIXTURES = Path(__file__).parents[3] / "fixtures"


@pytest.mark.parametrize("name", ["train_amp.sqlite", "ddp2.sqlite", "jax_mlp.sqlite", "empty.sqlite"])
def test_gathered_columns(name: str) -> None:
    with tk.load(FIXTURES / name) as trace:
        paired = pair_calls_with_activities(trace.frame).with_columns(instance=pl.int_range(pl.len()) // 2)
        calls = AttributedCalls.from_rows(trace.frame, paired)
        assert calls.stored.estimated_size() < paired.estimated_size() / 3 or paired.is_empty()
        every = [*COLUMNS, "instance"]
        backwards = pl.int_range(paired.height, dtype=pl.UInt32, eager=True).reverse().gather_every(3)
        assert calls.select(every).equals(paired.select(every))
        assert calls.select(every, backwards).equals(paired.select(pl.col(every).gather(backwards)))
        for column in every:
            assert calls.select([column]).equals(paired.select(column))
            assert calls.select([column]).schema == paired.select(column).schema
