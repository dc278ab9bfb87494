"""The alignment of replayed kernels with recorded steps: edits of a program whose layers are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core.layers import alignment
from tracekit.core.layers.alignment import MIN_CONFIDENCE, SHAPE, Alignment, align_replays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Kernel = tuple[str, int, str]
"""Name, grid and layer of a kernel."""

LAYER = (
    *(("norm<float>(int)", 512, "attention"), ("nvjet_sm90_64x128_TNN", 24, "attention")),
    *(
        ("flash_fwd<64>()", 32, "attention"),
        ("nvjet_sm90_48x64_TNN", 96, "attention"),
        ("add<float>()", 256, "attention"),
    ),
    *(("norm<float>(int)", 512, "mlp"), ("nvjet_sm90_96x64_TNN", 64, "mlp"), ("gelu<float>()", 1024, "mlp")),
    *(("nvjet_sm90_48x64_TNN", 96, "mlp"), ("add<float>()", 256, "mlp")),
)
LAYERS = 6
PROGRAM: list[Kernel] = [(n, g, f"layer {i}/{p}") for i in range(LAYERS) for n, g, p in LAYER]


def build_frame(runs: Iterable[list[Kernel]], number: str, prefix: str | None = "step {}/") -> pl.DataFrame:
    """Return the kernels of several runs, numbered by the column ``number``."""
    rows = [
        {"name": n, "grid_x": g, number: i, "path": None if prefix is None else prefix.format(i) + p}
        for i, run in enumerate(runs)
        for n, g, p in run
    ]
    schema = {"name": pl.String, "grid_x": pl.Int32, number: pl.Int64, "path": pl.String}
    frame = pl.DataFrame(rows, schema=schema).with_row_index("row")
    rest = {c: pl.lit(1, pl.Int32) for c in SHAPE[1:]}
    return frame.with_columns(pl.col("name", "path").cast(pl.Categorical), graph=pl.lit(7, pl.Int64), **rest)


RECORDED = build_frame([PROGRAM] * 4, "sequence")


def align(*replays: list[Kernel], recorded: pl.DataFrame = RECORDED) -> tuple[Alignment, pl.DataFrame]:
    """Align replays, and return the result and the frame: ``truth``, ``layer``, ``confidence``."""
    replayed = build_frame(replays, "replay", "{}/")
    result = align_replays(replayed, recorded)
    layer = recorded["path"].cast(pl.String).gather(result.kernels["recorded_row"]).str.splitn("/", 2).struct[1]
    truth = replayed["path"].cast(pl.String).str.splitn("/", 2).struct[1]
    assert result.kernels.height == replayed.height
    return result, pl.DataFrame({"truth": truth, "layer": layer, "confidence": result.kernels["confidence"]})


def rename(kernel: Kernel) -> Kernel:
    """Return a kernel as another algorithm of the same library, with another shape."""
    name, grid, layer = kernel
    return (name.replace("48x64", "128x128").replace("96x64", "256x64"), grid * 2 + 1, layer)


def fuse(run: list[Kernel]) -> list[Kernel]:
    """Fuse two kernels of the MLP of layer 1, and insert a kernel into the MLP of layer 3."""
    fused = ("triton_poi_fused_gelu", 5, "layer 1/mlp")
    return [*run[:16], fused, *run[18:37], ("memset", 1, "layer 3/mlp"), *run[37:]]


RIGHT: dict[str, Callable[[list[Kernel]], list[Kernel]]] = {
    "equal": list,
    "renamed": lambda run: [rename(k) for k in run],
    "fused": fuse,
    "another library": lambda run: [("cutlass_gemm" if "nvjet" in n else n, g, p) for n, g, p in run],
    "several steps": lambda run: run * 3,
    "one kernel twice": lambda run: [*run[:7], *run[7:8] * 2, *run[8:]],
}


@pytest.mark.parametrize("name", RIGHT)
def test_layers_of_replays_are_right(name: str) -> None:
    run = RIGHT[name](PROGRAM)
    result, rows = align(run, run, run[:2])
    rows = rows.head(2 * len(run))
    assert rows["layer"].to_list() == rows["truth"].to_list()
    assert rows["confidence"].min() >= MIN_CONFIDENCE
    assert result.graphs["kernels"].to_list() == [2 * len(run), 2]
    assert result.graphs.row(0, named=True) | {"confidence": None} == {
        **dict.fromkeys(("kernels", "matched"), 2 * len(run)),
        "graph": 7,
        "replay": 0,
        "replays": 2,
        "abstained": 0,
        "confidence": None,
        "sequence": 2,
        "reason": None,
    }
    assert result.graphs["reason"][1] == alignment.LOW_CONFIDENCE


@given(st.permutations(range(len(PROGRAM))), st.booleans())
def test_shuffled_names_are_below_the_bound(order: list[int], names_only: bool) -> None:
    shuffled = [
        (PROGRAM[i][0], k[1] if names_only else PROGRAM[i][1], k[2]) for i, k in zip(order, PROGRAM, strict=True)
    ]
    changed = sum(a[0] != b[0] for a, b in zip(shuffled, PROGRAM, strict=True))
    result, rows = align(shuffled)
    if changed > len(PROGRAM) // 2:
        assert rows["confidence"].max() < MIN_CONFIDENCE
        assert result.graphs["matched"].to_list() == [0]
        assert result.graphs["reason"].to_list() == [alignment.LOW_CONFIDENCE]


@given(st.data())
def test_what_is_certain_is_right(data: st.DataObject) -> None:
    """After random edits, layers above the bound are right, or belong to a neighbor of an edited kernel."""
    run, edited = list(PROGRAM), set[int]()
    for _ in range(data.draw(st.integers(0, 5))):
        place = data.draw(st.integers(1, len(run) - 2))
        kind = data.draw(st.sampled_from(["delete", "insert", "rename"]))
        edited.add(place)
        run[place : place + (kind != "insert")] = [] if kind == "delete" else [("new_kernel", 3, "?")]
    _, rows = align(run)
    wrong = rows.filter((pl.col("layer") != pl.col("truth")) & (pl.col("truth") != "?"))
    assert wrong.height <= 0.02 * len(run)


@pytest.mark.parametrize("missing", range(LAYERS))
def test_confidence_drops_if_one_of_equal_layers_is_missing(missing: int) -> None:
    _, rows = align([k for k in PROGRAM if not k[2].startswith(f"layer {missing}/")])
    assert rows["confidence"].max() < MIN_CONFIDENCE
    assert rows["layer"].null_count() == rows.height
    unequal = [(n, g + 10 * int(p[6]), p) for n, g, p in PROGRAM]
    _, rows = align(
        [k for k in unequal if not k[2].startswith(f"layer {missing}/")], recorded=build_frame([unequal], "sequence")
    )
    assert rows["layer"].to_list() == rows["truth"].to_list()


def test_kernels_inserted_between_two_layers_have_no_layer() -> None:
    _, rows = align([*PROGRAM[:25], ("new_kernel", 3, "?"), *PROGRAM[25:]])
    unknown = rows.with_row_index("place").filter(pl.col("layer") != pl.col("truth")).get_column("place")
    assert (unknown.to_list(), rows["layer"].is_null().arg_true().to_list()) == ([], [25])


def test_a_program_with_more_layers_is_not_taken_for_several_steps() -> None:
    embedding, logits = ("gather<float>()", 7, "embedding"), ("nvjet_sm90_256x128_TNT", 9, "logits")
    larger = [*PROGRAM, *((n, g, f"more {p}") for n, g, p in PROGRAM)]
    _, rows = align([embedding, *larger, logits], recorded=build_frame([[embedding, *PROGRAM, logits]], "sequence"))
    assert rows["layer"].null_count() > 0.7 * rows.height  # only the first and the last layer are alike


def test_a_replay_of_which_most_kernels_have_no_place_has_no_layers() -> None:
    program = [(f"{letter}<float>()", 2, f"layer {letter}") for letter in "abcdefghijklmnopqrst"]
    others = [(f"nvjet_{number}", number, "none") for number in range(60)]
    recorded = build_frame([program] * 3, "sequence")
    result, rows = align(program + others, recorded=recorded)
    assert rows["layer"].null_count() == rows.height
    assert rows["confidence"].max() < MIN_CONFIDENCE
    assert result.graphs["reason"].to_list() == [alignment.LOW_CONFIDENCE]
    _, related = align(program + others[:30], recorded=recorded)
    assert related["layer"].drop_nulls().to_list() == [layer for _, _, layer in program]


def test_the_most_similar_step_is_chosen() -> None:
    large = [(n, 4 * g, p) for n, g, p in PROGRAM]
    warm_up = [("fill<float>()", 3, "init")] * 20
    recorded = build_frame([warm_up, large, PROGRAM, PROGRAM, PROGRAM[:30]], "sequence")
    result, rows = align(PROGRAM, large, [("something_else", 1, "")] * 5, recorded=recorded)
    assert result.graphs["sequence"].to_list() == [3, 1, None]
    assert result.graphs["reason"].to_list() == [None, None, alignment.NO_CANDIDATE]
    assert rows.head(120)["layer"].to_list() == rows.head(120)["truth"].to_list()
    assert rows["confidence"].null_count() == 5


def test_graphs_of_one_step_are_aligned_together() -> None:
    """Each of several graphs holds one of equal layers. Only their order tells which."""
    replays = [PROGRAM[i : i + 10] for i in range(0, 60, 10)] * 3
    replayed = build_frame(replays, "replay", "{}/")
    graphs = pl.col("replay") % LAYERS
    for column in ("graph", "step"):
        columns = (
            {"graph": graphs}
            if column == "graph"
            else {"graph": pl.lit(None, pl.Int64), "step": pl.col("replay") // LAYERS}
        )
        result = align_replays(replayed.with_columns(**columns), RECORDED)
        rows = RECORDED[result.kernels["recorded_row"].to_list()]
        assert rows["path"].cast(pl.String).str.slice(7).to_list() == [k[2] for k in PROGRAM] * 3
    alone = align_replays(replayed.with_columns(graph=None, step=pl.lit(None, pl.Int64)), RECORDED)
    assert alone.kernels["recorded_row"].null_count() == replayed.height


def test_kernels_without_shapes_or_paths() -> None:
    without = RECORDED.with_columns(pl.lit(None, pl.Int32).alias(c) for c in SHAPE)
    _, rows = align(PROGRAM, recorded=without)
    assert rows["layer"].to_list() == rows["truth"].to_list()
    result, rows = align(PROGRAM, recorded=RECORDED.with_columns(path=pl.lit(None, pl.Categorical)))
    assert rows["layer"].null_count() == rows.height
    assert result.kernels["recorded_row"].null_count() == 0


def test_nothing_to_align() -> None:
    empty = RECORDED.clear()
    result, rows = align(PROGRAM, recorded=empty)
    assert result.graphs["reason"].to_list() == [alignment.NO_CANDIDATE]
    assert rows["confidence"].null_count() == rows.height
    result, rows = align()
    assert (result.graphs.height, rows.height) == (0, 0)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "MAX_PATTERNS", 2)
    result, rows = align(PROGRAM, PROGRAM[1:], PROGRAM[2:], PROGRAM)
    assert result.graphs["reason"].to_list() == [None, None, alignment.TOO_MANY]
    assert rows["layer"].null_count() == 58
    monkeypatch.setattr(alignment, "MAX_KERNELS", 59)
    assert align(PROGRAM, PROGRAM[1:])[0].graphs["reason"].to_list() == [alignment.TOO_MANY, None]
    monkeypatch.setattr(alignment, "_MAX_CELLS", 0)
    assert align(PROGRAM[1:], PROGRAM[2:])[0].graphs["reason"].to_list() == [None, alignment.TOO_MANY]
    monkeypatch.undo()
    monkeypatch.setattr(alignment, "_MAX_COUNTS", 0)
    assert align(PROGRAM[1:], PROGRAM[2:])[0].graphs["reason"].to_list() == [None, alignment.TOO_MANY]


@pytest.mark.parametrize("count", [40, 400])
def test_bands_of_long_sequences(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The band follows kernels that occur equally often in both sequences."""
    monkeypatch.setattr(alignment, "_FULL_CELLS", 1)
    monkeypatch.setattr(alignment, "_BAND_CELLS", 1)
    monkeypatch.setattr(alignment, "_MIN_WIDTH", 32)
    monkeypatch.setattr(alignment, "_MAX_ANCHORS", 100)
    program = [(n, g, f"layer {i}/{p}") for i in range(count) for n, g, p in LAYER]
    shorter = [k for i, k in enumerate(program) if i % 10 != 7 or i > 30]
    _, rows = align(shorter, recorded=build_frame([program], "sequence"))
    assert (rows["layer"] == rows["truth"]).mean() > 0.99
    unrelated = [(f"kernel_{i}", 1, "") for i in range(100)]
    result, _ = align(unrelated[:50], recorded=build_frame([unrelated[50:] + unrelated[:1]], "sequence"))
    assert result.graphs["matched"].to_list() == [0]


def test_a_band_reaches_over_layers_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "_FULL_CELLS", 1)
    monkeypatch.setattr(alignment, "_BAND_CELLS", 1)
    program = [(f"kernel_{i}", 1, f"layer {i // 10}") for i in range(1000)]
    recorded = build_frame([program], "sequence")
    _, rows = align(program[:300] + program[700:], recorded=recorded)
    assert (rows["layer"] == rows["truth"]).mean() > 0.95
    bands = np.minimum(np.arange(101) // 50 * 500, 937).astype(np.int32), 64
    monkeypatch.setattr(alignment, "_plan_band", lambda *_: bands)
    result, rows = align(program[:100], recorded=recorded)
    assert rows["confidence"].unique().to_list() == [0]
    assert result.graphs.select("matched", "confidence", "reason").rows() == [(0, 0, alignment.LOW_CONFIDENCE)]


def test_replays_are_aligned_in_any_order_of_rows() -> None:
    replayed = build_frame([PROGRAM, PROGRAM], "replay")
    order = np.argsort(np.arange(120) % 60, kind="stable")
    expected = align_replays(replayed, RECORDED).kernels[order]
    assert align_replays(replayed[order], RECORDED).kernels.equals(expected)


def test_arguments_of_ops_and_a_backward_pass_outside_of_the_step_do_not_divide_layers() -> None:
    """As under ``emit_nvtx``: names of ranges contain numbers of calls, and autograd has a thread of its own."""
    backward = [(f"{name}_backward", grid, layer.split("/")[1]) for name, grid, layer in reversed(PROGRAM)]
    runs = [
        [(n, g, f"step {i}/{p}/aten::op, seq = {100 * i + at}, op_id = {at}") for at, (n, g, p) in enumerate(PROGRAM)]
        + [(n, g, f"MmBackward0, seq = {100 * i + at}/aten::{p}") for at, (n, g, p) in enumerate(backward)]
        for i in range(3)
    ]
    result, rows = align([*PROGRAM, *backward], recorded=build_frame(runs, "sequence", ""))
    assert rows["confidence"].min() > 0.99
    recorded = result.kernels["recorded_row"] % len(runs[0])
    assert recorded.to_list() == list(range(len(runs[0])))
