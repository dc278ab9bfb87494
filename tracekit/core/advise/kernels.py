"""Rules about kernels: too small ones, and those that could run on Tensor Cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core import tensor_cores
from tracekit.core.advise.scene import LENGTH, Finding, longest, shown, total

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.core.advise.scene import Scene

SMALL_NS, SMALL_SHARE, ENOUGH = 10_000, 50, 20
MULTIPLIES = r"(?i)gemm|conv|wgrad|dgrad|fprop|matmul|\bdot|_mm_|attention|fmha"
GENERATED = r"^(?:gemm_fusion|triton_|fusion)"
"""Kernels that XLA and Inductor made, whose names speak of products before or after them."""

SLOW_SHARE = 10


def small_kernels(scene: Scene) -> Iterator[Finding]:
    """Kernels that end before the next one can be launched; those of CUDA graphs are launched together."""
    kernels = scene.kernels.filter(~pl.col("graph"))
    small = kernels.filter(LENGTH < SMALL_NS)
    if small.height < ENOUGH or 100 * small.height < SMALL_SHARE * kernels.height:
        return
    call = pl.col("api_end_ns") - pl.col("api_start_ns")
    time = int(small.select(call.sum()).item())
    ran, launch = small.select(ran=LENGTH.median(), call=call.median()).row(0)
    evidence = (
        f"{small.height} of {kernels.height} kernels take less than {shown(SMALL_NS)}, half of them less than "
        f"{shown(ran)}; launching one takes {shown(launch)}; {scene.by_op(small, pl.lit(1))}"
    )
    graphs = "" if scene.graphs else "; CUDA graphs launch many at once"
    advice = f"Fuse or batch: torch.compile, foreach or fused optimizers, larger batches{graphs}."
    figures = {"small_kernels": small.height, "launched_kernels": kernels.height, "call_ns": time}
    figures |= {"graph_kernels": scene.kernels.height - kernels.height, "length_ns": scene.length_ns}
    problem, where = "Most kernels are small", longest(small)
    yield Finding("small_kernels", problem, evidence, advice, time, scene.share(time), small.height, *where, figures)


def precision(scene: Scene) -> Iterator[Finding]:
    """Kernels of ops that Tensor Cores can serve, and that multiply without them."""
    kernels = scene.kernels
    names = kernels["name"].cast(pl.String)
    uses = kernels["uses_tc"].fill_null(value=False)
    served = scene.rollup.measures.kinds["support"].gather(kernels["op"]) == tensor_cores.ELIGIBLE
    unknown = pl.DataFrame({"name": names}).select(tensor_cores.uses_tensor_cores(pl.col("name"))).to_series().is_null()
    unknown |= kernels["tc_unknown"]
    multiply = names.str.contains(MULTIPLIES) & ~names.str.contains(GENERATED) & ~unknown
    without = kernels.filter(served & ~uses & multiply)
    whole, time = total(kernels), total(without)
    if not whole or 100 * time < SLOW_SHARE * whole:
        return
    most = without.group_by("name").agg(LENGTH.sum().alias("time")).sort("time", descending=True)["name"][0]
    types = scene.rollup.ops["data_type"].cast(pl.String).gather(without["op"].unique()).drop_nulls().unique().sort()
    typed = f" on {', '.join(t for t in types if t)}" if any(types) else ""
    evidence = (
        f"{without.height} kernels{typed}, {100 * time / whole:.0f} % of kernel time, most of it {most}; "
        f"{scene.by_op(without, LENGTH)}"
    )
    advice = (
        "Use bfloat16 or float16 (torch.autocast), allow TF32 (torch.set_float32_matmul_precision('high')), and make "
        "sizes multiples of 8."
    )
    figures = {"kernels": without.height, "without_ns": time, "kernel_ns": whole, "length_ns": scene.length_ns}
    problem, where = "Ops that Tensor Cores can serve run without them", longest(without)
    yield Finding("precision", problem, evidence, advice, time, scene.share(time), without.height, *where, figures)
