"""Comparisons of GPUs of different makers: kernels by op and category, common names, and what cannot be compared."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit.core.compare import KINDS, SAMPLES, Summary, choose_kinds
from tracekit.core.compare.makers import have_different_makers
from tracekit.core.compare.names import normalize_names_expr
from tracekit.text.makers import list_makers

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = FIXTURES / "kineto" / "train.pt.trace.json.gz"
AMD = {"id": 0, "name": "AMD Instinct MI300X", "numSms": 304, "warpSize": 64, "totalGlobalMem": 1 << 37}


@pytest.fixture(scope="module")
def on_amd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our trace as another maker's GPU of half the speed would have it: other kernels, API calls and libraries."""
    trace = json.loads(gzip.decompress(TRAIN.read_bytes()))
    trace["deviceProperties"] = [AMD]
    for event in trace["traceEvents"]:
        convert(event)
    path = tmp_path_factory.mktemp("amd") / "amd.pt.trace.json"
    path.write_text(json.dumps(trace), "utf-8")
    return path


def convert(event: dict[str, Any]) -> None:
    """Rename an event, and let a kernel take twice as long."""
    event["name"] = event.get("name", "").replace("cudnn_convolution", "miopen_convolution")
    if event.get("cat") == "kernel":
        event["name"] = f"Cijk_{abs(hash(event['name'])) % 7}"
        event["dur"] = 2 * event["dur"]
    if event.get("cat") in ("cuda_runtime", "cuda_driver"):
        event["name"] = event["name"].replace("cuda", "hip")


def test_kernels_of_different_makers_are_compared_by_op(on_amd: Path) -> None:
    diff = tk.diff(TRAIN, on_amd)
    assert diff.kinds == tuple(kind for kind in KINDS if kind not in ("kernels", "api"))
    rows = diff.frame("op_kernels")
    assert rows.filter(pl.col("status").cast(pl.String).is_in(["new", "gone"])).is_empty()
    assert rows["count_a"].equals(rows["count_b"].alias("count_a"))
    assert any(name.endswith("aten::convolution") for name in rows["name"])
    expected = count_kernels_by_op()
    assert dict(zip(rows["name"], rows["count_a"], strict=True)).keys() == expected.keys()
    assert rows["count_a"].sum() == sum(expected.values()) == diff.frame("categories")["count_a"].sum()
    totals = diff.compute_totals("op_kernels")
    assert totals is not None
    assert totals[1] == pytest.approx(2 * totals[0], rel=1e-4)
    makers, kernels = diff.notes[-2:]
    assert makers.startswith("the makers of the GPUs differ: NVIDIA (A), AMD (B); names of ops are compared without")
    assert kernels == "kernels are compared by the op that launched them and by category; API calls cannot be compared"
    named = tk.diff(TRAIN, on_amd, by=["kernels"])
    assert set(named.frame("kernels")["status"].cast(pl.String)) == {"new", "gone"}
    assert named.notes[-1].endswith("--by op_kernels,categories compares kernels")


def count_kernels_by_op() -> Counter[str]:
    """Count kernels by the path of their op with common names, in the steady iterations and outside of iterations."""
    rolled = tk.load(TRAIN).correlate().rollup()
    rows = rolled.frame("kernels").select(pl.col("op_name", "direction").cast(pl.String), "iteration").collect()
    steady = tk.diff(TRAIN, TRAIN, by=["kernels"])
    path = normalize_names_expr(normalize_names_expr(pl.col("op_name"), "range"), "maker").fill_null("(no op)")
    suffix = pl.when(pl.col("direction").is_null()).then(pl.lit("")).otherwise(pl.format(" [{}]", "direction"))
    names = Counter(rows.select(path + suffix).to_series().to_list())
    assert steady.frame("kernels")["count_a"].sum() <= sum(names.values())
    return names


def test_names_are_compared_as_recorded_on_request(on_amd: Path) -> None:
    diff = tk.diff(TRAIN, on_amd, by=["op_kernels"], exact_names=True)
    statuses = Counter(diff.frame("op_kernels")["status"].cast(pl.String))
    assert statuses["gone"] == statuses["new"] > 0


def test_one_maker_is_compared_by_name() -> None:
    diff = tk.diff(TRAIN, TRAIN)
    assert diff.kinds == tuple(KINDS)[:-2]
    assert not any("makers" in note for note in diff.notes)


@pytest.mark.parametrize(
    ("gpus", "makers"),
    [
        ("1 × NVIDIA H200", ("NVIDIA",)),
        ("2 × Tesla V100-SXM2-16GB", ("NVIDIA",)),
        ("8 × AMD Instinct MI300X", ("AMD",)),
        ("1 × gfx942", ("AMD",)),
        ("4 × TPU v5 lite", ("Google",)),
        ("1 × Intel(R) Data Center GPU Max 1550", ("Intel",)),
        ("1 × Ascend910B", ("Huawei",)),
        ("1 × NVIDIA A100, 1 × AMD Radeon PRO", ("AMD", "NVIDIA")),
        ("1 × unknown GPU", ()),
        ("", ()),
    ],
)
def test_makers_follow_from_product_names(gpus: str, makers: tuple[str, ...]) -> None:
    assert list_makers([gpus]) == makers


def test_a_capture_without_names_of_gpus_has_a_maker() -> None:
    """A database of rocmProfileData names its GPUs nowhere, but its calls are those of HIP."""
    diff = tk.diff(FIXTURES / "rocm" / "train.rpd", FIXTURES / "train_amp.sqlite")
    assert diff.a.facts["gpus"] == "2 × unknown AMD GPU"
    assert {"op_kernels", "categories"} < set(diff.kinds)
    assert not {"kernels", "api"} & set(diff.kinds)
    assert any(note.startswith("the makers of the GPUs differ: AMD (A), NVIDIA (B)") for note in diff.notes)


def test_unknown_makers_are_not_taken_for_different_ones() -> None:
    nvidia, unknown, amd = (summary_of(gpus) for gpus in ("1 × NVIDIA H200", "1 × GPU", "1 × AMD Instinct MI250X"))
    assert not have_different_makers(nvidia, unknown)
    assert have_different_makers(nvidia, amd)
    assert choose_kinds(unknown, amd) == tuple(KINDS)[:-2]


def summary_of(gpus: str) -> Summary:
    """Return a summary without events."""
    return Summary(pl.DataFrame(schema=SAMPLES), facts={"gpus": gpus} if gpus else {})


@pytest.mark.parametrize(
    ("name", "common"),
    [
        ("aten::cudnn_convolution", "aten::convolution"),
        ("aten::miopen_batch_norm", "aten::batch_norm"),
        ("aten::_cudnn_rnn", "aten::_rnn"),
        ("a/aten::_scaled_dot_product_flash_attention_for_cpu/b", "a/aten::_scaled_dot_product_*_attention/b"),
        ("aten::_efficient_attention_forward", "aten::_*_attention_forward"),
        (
            "autograd::engine::evaluate_function: CudnnConvolutionBackward0",
            "autograd::engine::evaluate_function: ConvolutionBackward0",
        ),
        ("my_cudnn_module/x", "my_cudnn_module/x"),
    ],
)
def test_libraries_are_removed_from_names_of_ops(name: str, common: str) -> None:
    assert pl.select(normalize_names_expr(pl.lit(name), "maker")).item() == common
