"""Programs of XLA as captures in which their instructions run one by one, from which graphs get their layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import tracekit as tk
from tests.builders.frames import declared
from tests.conftest import FIXTURES
from tracekit.core.compiled_programs import present_programs
from tracekit.core.correlate import Correlation
from tracekit.core.graph_replays import align_captures

if TYPE_CHECKING:
    from tracekit.core.correlate import Frames

INSTRUCTIONS = [
    ("entry", True, "p0", 0, "parameter", None, "%p0 = f32[8] parameter(0)"),
    ("entry", True, "f.1", 1, "fusion", "jit(f)/a/mul", "%f.1 = f32[8] fusion(f32[8] %p0), calls=%fused_a"),
    ("entry", True, "c.1", 4, "copy-start", None, "%c.1 = (f32[8], f32[8]) copy-start(f32[8] %f.1)"),
    ("entry", True, "c.2", 5, "copy-done", None, "%c.2 = f32[8] copy-done((f32[8], f32[8]) %c.1)"),
    (
        "entry",
        True,
        "f.2",
        3,
        "fusion",
        "jit(f)/b/mul",
        "%f.2 = f32[8] fusion(f32[8] %f.1), calls=%fused_b",
    ),
    (
        "entry",
        True,
        "f.3",
        2,
        "fusion",
        "jit(f)/b/add",
        "%f.3 = f32[8] fusion(f32[8] %f.1), calls=%fused_c",
    ),
    ("fused_a", False, "q.1", None, "multiply", None, "%q.1 = f32[8] multiply(f32[8] %p.1, f32[8] %p.1)"),
    ("fused_b", False, "q.2", None, "multiply", None, "%q.2 = f32[8] multiply(f32[8] %p.2, f32[8] %p.2)"),
    ("fused_c", False, "q.3", None, "add", None, "%q.3 = f32[8] add(f32[8] %p.3, f32[8] %p.3)"),
]


def scene(range_name: str) -> Frames:
    columns = ["computation", "is_entry", "name", "position", "opcode", "op_name", "text"]
    instructions = pl.DataFrame(INSTRUCTIONS, columns, orient="row").with_columns(
        instruction_id=pl.int_range(pl.len()), program_id=7, program=pl.lit("jit_f")
    )
    row = {"range_id": 1, "start_ns": 0, "kind": "push_pop", "domain_id": 2, "domain": "TSL", "name": range_name}
    return declared(hlo_instructions=instructions, nvtx_ranges=pl.DataFrame([row]))


def test_instructions_run_in_the_order_of_the_schedule() -> None:
    frames = present_programs(scene("Thunk:#hlo_op=command_buffer,hlo_module=jit_f,program_id=7#"))
    assert frames is not None
    correlation = Correlation(frames)
    kernels = frames("kernels").select("name", "start_ns").collect()
    paths = correlation.activities("kernels").compute_column("range_path").cast(pl.String)
    assert kernels["name"].to_list() == ["f_1", "f_3", "f_1"]
    assert paths.str.extract_groups(r"^Thunk:#name=(.*),hlo_op=(.*),hlo_m").to_list() == [
        {"1": "jit(f)/a/mul", "2": "f.1"},
        {"1": "jit(f)/b/add", "2": "f.3"},
        {"1": "jit(f)/b/mul", "2": "f.2"},
    ]
    (copy,) = correlation.activities("memcpys").compute_column("range_name").cast(pl.String)
    assert copy == "Thunk:#hlo_op=c.1,hlo_module=jit_f,program_id=7#"
    assert frames("memsets").collect().height == 0


def test_only_programs_that_run_as_graphs_are_presented() -> None:
    for name in ("Thunk:#hlo_op=command_buffer,program_id=8#", "Thunk:#hlo_op=f.1,program_id=7#", "train"):
        assert present_programs(scene(name)) is None


def test_kernels_of_a_graph_of_jax_have_their_layers() -> None:
    """The kernels of six layers: products and activations forward, and two products and a sum backward."""
    with tk.load(FIXTURES / "xplane" / "train.xplane.pb") as trace:
        frames = present_programs(trace.frame)
        assert frames is not None
        alignment = align_captures(Correlation(trace.frame), Correlation(frames)).activities["kernels"]
        kernels = trace.frame("kernels").select("name", "correlation_id").collect()
    names = frames("nvtx_ranges").select("range_id", "name").collect()
    ids = Correlation(frames).activities("kernels").compute_column("range_id")
    layers = names["name"].cast(pl.String).str.extract(r"(layer\d)").gather(ids.gather(alignment["recorded_row"]) - 1)
    steps = kernels.with_columns(layer=layers).group_by("correlation_id", maintain_order=True).agg("layer")["layer"]
    forward = [f"layer{i}" for i in (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5)]
    backward = [f"layer{i}" for i in (5, 5, 4, 4, 4, 3, 3, 3, 2, 2, 2, 1, 1, 1, 0, 0)]
    assert steps.to_list() == [[*forward, None, None, None, None, *backward]] * 5
    assert alignment["confidence"].min() > 0.9
