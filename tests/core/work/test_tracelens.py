"""Work and rates of ops against the tables that TraceLens computed from public traces, every row of them.

Operations and bytes are equal, except where a rule of TraceLens differs from ours for a stated reason. Rates are equal
for ops that own their kernels: TraceLens counts the time of a kernel for each op around it, tracekit for one of them.
Its table ``Reduce_bwd`` has the times of the backward pass of the op in the row.
"""

from __future__ import annotations

import ast
import csv
import json
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tracekit.core.work.arguments import parse_call
from tracekit.core.work.formulas import compute_work, has_formula_expr
from tracekit.core.work.ops import OpWork, compute_op_work

MAKER = Path(__file__).parents[4] / "shared" / "corpus" / "makers" / "kineto_other" / "AMD-AGI__TraceLens"
TABLES = sorted(p for p in MAKER.glob("**/*.csv") if p.name not in ("unified_perf_summary.csv", "ops_unique_args.csv"))
pytestmark = [pytest.mark.corpus, pytest.mark.skipif(not TABLES, reason="no corpus beside the checkout")]

COPIES = {"aten::copy_"}
GIVEN_STATISTICS = {"aten::miopen_batch_norm_backward"}
OTHER_FLOP = COPIES | GIVEN_STATISTICS
"""A copy takes no operations (TraceLens: one for each element). The gradient of a batch normalization in MIOpen uses
statistics of the batch (TraceLens: given ones)."""
UNKNOWN = {
    *("sglang_profiler::attention_paged_attention_ragged", "aiter::mha_batch_prefill"),
    "vllm::unified_attention_with_output",
    *("pseudo_op::moe_triton_unfused_down", "pseudo_op::moe_triton_unfused_up"),
}
"""The lengths of sequences in a cache are values, which are not recorded, and pseudo-ops are no ops of the trace."""
NORMALIZATIONS = ("norm", "_norm_backward")


@cache
def read_rows() -> list[tuple[Path, dict[str, str]]]:
    """Return the rows of all tables with operations, and the table of each."""
    csv.field_size_limit(sys.maxsize)
    rows = []
    for path in TABLES:
        with path.open(newline="") as lines:
            rows += [(path, row) for row in csv.DictReader(lines) if row.get("GFLOPS_first")]
    return [(path, row) for path, row in rows if "Input Dims_first" in row]


def to_json(row: dict[str, str], column: str) -> str | None:
    """Return a Python literal in a table as JSON."""
    return json.dumps(ast.literal_eval(row[column])) if row.get(column) else None


def arguments(row: dict[str, str]) -> list[str | None]:
    columns = ("Input Dims_first", "Input type_first", "Input Strides_first", "Concrete Inputs_first")
    return [to_json(row, column) for column in columns]


def masks_gradients(row: dict[str, str]) -> bool:
    """Return whether not all gradients of a convolution are computed. TraceLens counts both in any case."""
    return row["name"] == "aten::convolution_backward" and "[False" in row["Concrete Inputs_first"]


def may_differ_in_bytes(row: dict[str, str]) -> bool:
    """Return whether TraceLens estimates the bytes of an op instead of adding up those of its tensors.

    - It estimates statistics, weights and biases of normalizations, and the bias of ``addmm`` as one row.
    - It takes the result of a reduction for one number, and the sums of integers for integers of their size.
    - It reads a number that is no tensor from memory, and expanded dimensions as often as they are expanded.
    - It does not know the size of some types.
    """
    strides = row.get("Input Strides_first", "")
    return (
        any(part in row["name"] for part in NORMALIZATIONS)
        or row["name"] in ("aten::sum", "aten::mean", "aten::cumsum")
        or (row["name"] == "aten::addmm" and not strides)
        or (row["name"] in ("aten::add", "aten::div") and "'Scalar'" in row["Input type_first"])
        or any(0 in each for each in ast.literal_eval(strides or "[]"))
        or not row["Data Moved (MB)_first"]
    )


def test_operations_and_bytes() -> None:
    counts: Counter[str] = Counter()
    for _, row in read_rows():
        name = row["name"]
        if not pl.select(has_formula_expr(pl.lit(name))).item():
            assert name in UNKNOWN
            counts["unknown"] += 1
            continue
        call = parse_call(name, *arguments(row))
        work = call and compute_work(call)
        if name.startswith("triton_"):
            continue
        assert work is not None, name
        assert work.flop is not None, name
        flop = float(row["GFLOPS_first"]) * 1e9
        if masks_gradients(row):
            assert flop == 2 * work.flop
            counts["masked"] += 1
        elif name not in OTHER_FLOP:
            assert flop == pytest.approx(work.flop, rel=1e-12), row["Input Dims_first"]
            counts["flop"] += 1
        if not (may_differ_in_bytes(row) or masks_gradients(row)):
            assert work.read_bytes is not None
            assert work.written_bytes is not None
            moved = work.read_bytes + work.written_bytes
            assert float(row["Data Moved (MB)_first"]) * 2**20 == pytest.approx(moved, rel=1e-9), (
                name,
                row["Input Dims_first"],
            )
            counts["bytes"] += 1
    assert counts == {"flop": 205, "bytes": 180, "masked": 1, "unknown": 9}


def find_trace(folder: Path) -> Path | None:
    """Return the trace whose tables are in a folder."""
    if folder.parent.name == "analysis_output_ref":
        return folder.parents[1] / (folder.name.split("_")[2] + ".json")
    traces = [p for p in folder.parent.glob("*.json.gz") if p.name != "execution_details.json"]
    return traces[0] if len(traces) == 1 else None


@cache
def read_work(path: Path) -> OpWork:
    trace: Any = tk.load(path)
    return compute_op_work(lambda name: pl.DataFrame(pl.from_arrow(trace[name])).lazy())


@pytest.mark.filterwarnings("ignore:.*cannot be found:tracekit.TracekitWarning")
def test_rates() -> None:
    counts: Counter[str] = Counter()
    for table, row in read_rows():
        path = find_trace(table.parent)
        if (
            table.stem == "Reduce_bwd"
            or path is None
            or not row["TFLOPS/s_mean"]
            or row["name"] in OTHER_FLOP
            or masks_gradients(row)
        ):
            continue
        shapes, types = ((to_json(row, c) or "").replace(", ", ",") for c in ("Input Dims_first", "Input type_first"))
        ops = read_work(path).ops.filter(name=row["name"], shapes=shapes, types=types).filter(pl.col("flop") > 0)
        if ops.is_empty():  # an inner op owns the kernels, or a graph launched them
            counts["wrapper"] += 1
            continue
        if row.get("num_kernels") and ops["kernel_count"].max() != int(row["num_kernels"]):
            counts["shared"] += 1
            continue
        if ops.height != int(row["name_count"]):
            counts["grouped"] += 1
            continue
        rates = ops["flop"] / ops["gpu_time_ns"] / 1e3
        assert rates.mean() == pytest.approx(float(row["TFLOPS/s_mean"]), rel=2e-3), (row["name"], shapes)
        counts["equal"] += 1
    assert counts == {"equal": 92, "grouped": 29, "shared": 2, "wrapper": 87}
