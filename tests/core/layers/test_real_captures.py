"""The alignment of captured programs whose layers are known, after edits of the replayed kernels."""

from __future__ import annotations

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit.core.correlate import Correlation
from tracekit.core.graph_replays import list_recorded_kernels, list_replayed_kernels
from tracekit.core.layers.alignment import MIN_CONFIDENCE, align_replays

LAYERS = FIXTURES / "layers"
STEPS, KERNELS = 8, 66


@pytest.fixture(scope="module")
def replayed() -> pl.DataFrame:
    """The activities of eight replays, with the layer in which each was captured as ``truth``."""
    with tk.load(LAYERS / "layers_inside.nsys-rep") as trace:
        rows = list_replayed_kernels(Correlation(trace.frame))
        truth = pl.col("capture_path").cast(pl.String)
        paths = [
            trace.correlate().frame(t).select(pl.int_range(pl.len()).alias("table_row"), table=pl.lit(t), truth=truth)
            for t in ("kernels", "memsets")
        ]
        known = pl.concat(paths).collect()
    rows = rows.with_columns(pl.col("table").cast(pl.String), pl.col("table_row").cast(pl.Int64))
    rows = rows.join(known, on=["table", "table_row"], how="left", maintain_order="left")
    assert rows.group_by("replay").len()["len"].to_list() == [KERNELS] * STEPS
    return rows.with_columns(pl.col("truth").str.strip_prefix("capture/"))


@pytest.fixture(scope="module")
def recorded() -> pl.DataFrame:
    with tk.load(LAYERS / "layers_eager.nsys-rep") as trace:
        return list_recorded_kernels(Correlation(trace.frame))


def align(replayed: pl.DataFrame, recorded: pl.DataFrame) -> pl.DataFrame:
    """Return the replayed rows with ``layer`` (null below the bound) and ``confidence``."""
    rows = align_replays(replayed, recorded).kernels.select("recorded_row", "confidence")
    layer = recorded["path"].cast(pl.String).str.replace(r"^step \d+/", "").gather(rows["recorded_row"])
    return replayed.with_columns(layer=layer, confidence=rows["confidence"])


def test_two_fused_kernels_and_an_inserted_one(replayed: pl.DataFrame, recorded: pl.DataFrame) -> None:
    place, fused = pl.int_range(pl.len()).over("replay"), (42, 43)
    assert replayed.filter(place.is_in(fused))["truth"].unique().to_list() == ["layer 3/mlp"]
    is_fused = place == fused[0]
    name = pl.when(is_fused).then(pl.lit("triton_poi_fused_addmm")).otherwise(pl.col("name").cast(pl.String))
    edited = replayed.with_columns(
        name=name.cast(pl.Categorical), edit=pl.when(is_fused).then(pl.lit("fused")), place=place.cast(pl.Float64)
    ).filter(place != fused[1])
    new = edited.filter(pl.col("place") == 46).with_columns(
        name=pl.lit("new_kernel", pl.Categorical), edit=pl.lit("inserted"), place=pl.lit(46.5), truth=pl.lit(None)
    )
    edited = pl.concat([edited, new]).sort("replay", "place").with_columns(row=pl.int_range(pl.len()))
    rows = align(edited, recorded)
    old = rows.filter(pl.col("edit").is_null())
    assert old.height == STEPS * (KERNELS - 2)
    assert (old["layer"] == old["truth"]).sum() >= 0.99 * old.height
    assert (rows["layer"] != rows["truth"]).sum() == 0  # null where the layer is not known
    assert set(rows.filter(edit="inserted")["layer"].drop_nulls()) <= {"layer 4/attention"}


@pytest.mark.parametrize("seed", range(3))
def test_shuffled_names_are_below_the_bound(replayed: pl.DataFrame, recorded: pl.DataFrame, seed: int) -> None:
    shuffled = replayed.with_columns(pl.col("name").shuffle(seed).over("replay"))
    rows = align(shuffled, recorded)
    assert rows["confidence"].max() < MIN_CONFIDENCE
    assert rows["layer"].null_count() == rows.height
