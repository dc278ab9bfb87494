"""Joining ops with nodes of a graph: against rules written out op by op, and on graphs made of captures."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tracekit.core.graph import join
from tracekit.core.graph.nodes import choose_op_node_names, convert_to_legal_node_names, normalize_node_names
from tracekit.errors import MissingTableError, SchemaError

FIXTURES = Path(__file__).parents[2] / "fixtures"
CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "graphdef"
GRAPHS = sorted(p for p in CORPUS.rglob("*") if p.suffix == ".pb" or p.name in ("graph.pbtxt", "graphdef_mnist.pbtxt"))
CAPTURES = [
    *(FIXTURES / f"{n}.sqlite" for n in ("train_amp", "ddp2", "graph_node", "jax_mlp", "gpu_metrics")),
    *sorted(FIXTURES.glob("ops/*.nsys-rep")),
    FIXTURES / "kineto" / "train.pt.trace.json.gz",
]
PARTS = st.sampled_from(["a", "b", "c", "a b", "a_b", "x:1", "x_1", "a_1", "C[b]"])
PATHS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
Found = tuple[int | None, str | None, str | None]


def ops_of(paths: list[str], backward: list[int] = []) -> pl.DataFrame:  # noqa: B006 - read only
    """Ops called A_1, A_2 …, and backward passes of some of them."""
    ids = [f"A_{i + 1}" for i in range(len(paths))] + [f"A_{i + 1}_BPROP" for i in backward]
    every = [*paths, *(paths[i] for i in backward)]
    n = len(every)
    counts = {c: list(range(n)) for c in ("instance_count", "kernel_count", "cpu_time_ns", "gpu_time_ns")}
    known = {"tensor_core_support": ["not eligible"] * n, "uses_tensor_cores": [i % 3 == 0 for i in range(n)]}
    texts = {
        "op_id": pl.String,
        "op_name": pl.String,
        "tensor_core_support": pl.String,
        "uses_tensor_cores": pl.Boolean,
    }
    return pl.DataFrame({"op_id": ids, "op_name": every, **counts, **known}, schema_overrides=texts)


def nodes_of(paths: list[str], op: str = "MatMul") -> pl.DataFrame:
    return pl.DataFrame({"name": paths, "op": [op] * len(paths)}, schema={"name": pl.String, "op": pl.String})


def spelt(path: str) -> str:
    return convert_to_legal_node_names(pl.Series([path])).item()


def spelt_node(path: str) -> str:
    return spelt("/".join(p[2:-1] if p == "C[b]" else p for p in path.split("/")))


def found_one_by_one(ops: pl.DataFrame, given_nodes: list[str]) -> list[Found]:
    """The rules, op by op."""
    own = choose_op_node_names(ops).to_list()
    exact = {n: i for i, n in reversed(list(enumerate(given_nodes)))}
    legal = {spelt_node(n): i for i, n in reversed(list(enumerate(given_nodes)))}
    return [one(name, node, exact, legal) for name, node in zip(ops["op_name"], own, strict=True)]


def one(name: str, own: str, exact: dict[str, int], legal: dict[str, int]) -> Found:
    path = spelt(name)
    for asked, known in ((own == path, exact), (True, legal), (True, exact)):
        if asked and (name if known is exact else own) in known:
            return (exact[name], None, "name") if known is exact else (legal[own], None, "spelling")
    if path in legal:
        return legal[path], None, "spelling"
    longer = [n for n in legal if n.endswith("/" + path)] if "/" in path else []
    shorter = [n for n in legal if path.endswith("/" + n) and "/" in n]
    if len(longer) == 1 or shorter:
        return legal[longer[0] if len(longer) == 1 else max(shorter, key=len)], None, "suffix"
    return above(path, legal)


def above(path: str, legal: dict[str, int]) -> Found:
    parts = path.split("/")
    begins = ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]
    scopes = {"/".join(n.split("/")[:end]) for n in legal for end in range(1, n.count("/") + 1)}
    endings = ["/".join(parts[start:]) for start in range(len(parts) - 1)]
    for ending in endings:
        if ending in scopes and ending not in legal:
            return None, ending, "scope"
    for begin in begins:
        if begin in legal or begin in scopes:
            return (legal[begin], None, "scope") if begin in legal else (None, begin, "scope")
    return None, None, None


@given(st.lists(PATHS, max_size=6), st.lists(PATHS, max_size=8), st.data())
def test_as_op_by_op(paths: list[str], graph: list[str], data: st.DataObject) -> None:
    backward = sorted(data.draw(st.sets(st.integers(0, len(paths) - 1)))) if paths else []
    ops = ops_of(paths, backward)
    made = join.match_ops(ops, nodes_of(graph))
    expected = found_one_by_one(ops, graph)
    assert made.rows() == expected
    columns = join.compute_node_columns(ops, nodes_of(graph))
    assert columns.height == len(graph)
    times = [
        sum(t for t, (n, *_) in zip(ops["gpu_time_ns"], expected, strict=True) if n == i) for i in range(len(graph))
    ]
    assert columns["gpu_time_ns"].to_list() == times
    assert columns["op_count"].to_list() == [sum(n == i for n, *_ in expected) for i in range(len(graph))]
    summed_up(ops, graph, expected)


def summed_up(ops: pl.DataFrame, graph: list[str], expected: list[Found]) -> None:
    """The scopes, one by one."""
    legal = [spelt_node(n) for n in graph]
    scopes = {""} | {"/".join(n.split("/")[:i]) + "/" for n in legal for i in range(1, n.count("/") + 1)}
    made = {r["path"]: r for r in join.summarize_scopes(ops, nodes_of(graph)).iter_rows(named=True)} if graph else {}
    outside = {None} if any(n is None and s is None for n, s, _ in expected) and graph else set()
    assert set(made) == (scopes | outside if graph else set())
    for scope in scopes if graph else ():
        below = [i for i, n in enumerate(legal) if n.startswith(scope)]
        inside = [
            t
            for t, (n, s, _) in zip(ops["gpu_time_ns"], expected, strict=True)
            if n in below or (s is not None and (s + "/").startswith(scope))
        ]
        assert made[scope]["node_count"] == len(below)
        assert made[scope]["gpu_time_ns"] == sum(inside)
        assert made[scope]["eligible_count"] == len(below) - len({n for n, *_ in expected if n in below})
    if outside:
        lost = [t for t, (n, s, _) in zip(ops["gpu_time_ns"], expected, strict=True) if n is None and s is None]
        assert made[None]["gpu_time_ns"] == sum(lost)


def test_each_way_of_matching() -> None:
    graph = ["m/dense/MatMul", "m/dense/add", "n/b c/d", "long/m/x/y"]
    ops = ops_of(["m/dense/MatMul", "n/b:c/d", "step/m/dense/add", "x/y", "m/dense/add/inner", "m/other", "q"])
    assert join.match_ops(ops, nodes_of(graph)).rows() == [
        (0, None, "name"),
        (2, None, "spelling"),
        (1, None, "suffix"),
        (3, None, "suffix"),
        (1, None, "scope"),
        (None, "m", "scope"),
        (None, None, None),
    ]
    made = join.compute_node_columns(ops, nodes_of(graph))
    assert made["op_id"].to_list() == ["A_1", "A_3", "A_2", "A_4"]
    assert made["gpu_time_ns"].to_list() == [0, 2 + 4, 1, 3]
    assert join.count_matches_by_kind(ops, nodes_of(graph)).select("match", "ops").rows() == [
        ("name", 1), ("spelling", 1), ("suffix", 2), ("scope", 2), (None, 1),
    ]  # fmt: skip


@pytest.mark.many(3)
@pytest.mark.parametrize("capture", CAPTURES, ids=lambda p: p.name)
def test_a_graph_made_of_a_capture_is_found_whole(capture: Path, tmp_path: Path) -> None:
    with tk.load(capture) as trace:
        run = trace.export(tmp_path / "run", format="tfevents")
        with tk.load(run) as graph:
            joined = trace.join_graph(graph)
            nodes, ops = joined.frame("graph_nodes").collect(), joined.frame("ops").collect()
            assert joined["graph_edges"].equals(graph["graph_edges"])
            assert nodes.select(graph.schema("graph_nodes").names).equals(graph.frame("graph_nodes").collect())
            report = joined.report("graph_summary").frame()
            ways = joined.graph_matches()
    assert nodes["op_count"].to_list() == [1] * ops.height
    recorded = nodes["attributes"].str.json_path_match("$.op_id")
    assert nodes["op_id"].to_list() == recorded.to_list()
    both = nodes.join(ops.with_columns(pl.col("op_id").cast(pl.String)), on="op_id", suffix="_of_op")
    assert both.height == ops.height
    for column in ("gpu_time_ns", "cpu_time_ns", "kernel_count", "instance_count", "uses_tensor_cores"):
        assert both[column].to_list() == both[f"{column}_of_op"].to_list()
    assert ways["share"].sum() == pytest.approx(1.0)
    assert None not in ways["match"].to_list()
    first = report.row(0, named=True)
    assert (first["Scope"], first["Nodes"]) == ("(whole graph)", ops.height)
    assert first["GPU Time (ns)"] == ops["gpu_time_ns"].sum()
    assert first["Using TC"] == ops["uses_tensor_cores"].sum()


def test_modules_of_a_graph_that_pytorch_wrote_are_scopes() -> None:
    """``Net/Conv2d[conv1]`` is the module ``conv1``."""
    with tk.load(FIXTURES / "tensorflow" / "pytorch") as graph:
        nodes = graph.frame("graph_nodes").select(join.NODE_COLUMNS).collect()
    assert nodes["name"].str.starts_with("Net/Conv2d[conv1]/").any()
    ops = ops_of(["q", "iteration/forward/Net/conv1", "Net/bn2/aten::batch_norm", "step/Net/conv2/bias/bias.13"])
    made = join.match_ops(ops, nodes)
    assert made["scope"].to_list() == [None, "Net/conv1", "Net/bn2", None]
    assert made["match"].to_list() == [None, "scope", "scope", "suffix"]
    assert nodes["name"][made["node"][3]] == "Net/Conv2d[conv2]/bias/bias.13"
    rows = {r["path"]: r for r in join.summarize_scopes(ops, nodes).iter_rows(named=True)}
    assert (rows["Net/conv1/"]["gpu_time_ns"], rows["Net/conv1/"]["executed_count"]) == (1, 0)
    assert rows["Net/"]["gpu_time_ns"] == 1 + 2 + 3


def test_scopes_take_what_groups_take(tmp_path: Path) -> None:
    """GPU time of groups counts overlaps once: here nothing overlaps."""
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        graph = tk.load(trace.export(tmp_path / "run", format="tfevents"))
        joined = trace.join_graph(graph)
        report = joined.report("graph_summary").frame()
        groups = joined.frame("group_nodes").group_by("path").agg(pl.col("gpu_time_ns").sum()).collect()
    spelled = convert_to_legal_node_names(groups["path"]).str.replace("^unnamed$", "")
    expected = dict(zip(spelled, groups["gpu_time_ns"], strict=True))
    made = dict(zip(report["Scope"].str.strip_suffix("/"), report["GPU Time (ns)"], strict=True))
    assert made.pop("(whole graph)") == expected.pop("")
    assert made == expected


@pytest.mark.slow
def test_it_is_a_layer_like_any_other(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        graph = tk.load(trace.export(tmp_path / "run", format="tfevents"))
        joined = trace.join_graph(graph)
        some = joined.rollup(iterations=(2, 3))
        assert some.frame("ops").collect().equals(trace.rollup(iterations=(2, 3)).frame("ops").collect())
        assert (
            some.frame("graph_nodes").select(pl.col("gpu_time_ns").sum()).collect().item()
            == some.frame("ops").select(pl.col("gpu_time_ns").sum()).collect().item()
        )
        assert "range_path" in joined.correlate().schema("kernels").names
        assert joined.correlate()["graph_nodes"].equals(joined["graph_nodes"])
        assert joined.select(tables=["graph_nodes"]).count("ops") == 0
        assert joined.join_graph(graph)["graph_nodes"].equals(joined["graph_nodes"])
        written = joined.export(tmp_path / "nodes.parquet", tables=["graph_nodes"])
        assert pl.read_parquet(written)["op_id"].null_count() == 0
        with pytest.raises(SchemaError, match="op_id"):
            trace.table("graph_nodes", ["op_id"])


def test_what_cannot_be_joined_is_refused(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace, tk.load(FIXTURES / "empty.sqlite") as empty:
        with pytest.raises(MissingTableError, match="the trace has no nodes of a graph to join"):
            trace.join_graph(empty)
        graph = tk.load(trace.export(tmp_path / "run", format="tfevents"))
        with pytest.raises(MissingTableError, match="the trace has no ops to join"):
            empty.join_graph(graph)
        with pytest.raises(MissingTableError, match="report 'graph_summary' requires a joined graph"):
            trace.rollup().report("graph_summary")
        assert trace.graph_matches().is_empty()


@pytest.mark.corpus
@pytest.mark.skipif(not GRAPHS, reason="no corpus beside the checkout")
@pytest.mark.parametrize("path", GRAPHS, ids=lambda p: p.parent.name[:20] + p.name)
def test_ops_called_as_nodes_are_found(path: Path) -> None:
    """A capture whose ops are called as every third node of a graph is, below an outer range."""
    with tk.load(path) as graph:
        nodes = graph.frame("graph_nodes").select(join.NODE_COLUMNS).collect()
    chosen = nodes["name"].unique(maintain_order=True).gather_every(3)
    exact = join.match_ops(ops_of(chosen.to_list()), nodes)
    assert exact["match"].to_list() == ["name"] * len(chosen)
    assert nodes["name"].gather(exact["node"]).to_list() == chosen.to_list()
    inside = chosen.filter(convert_to_legal_node_names(chosen).str.contains("/", literal=True))
    below = join.match_ops(ops_of([f"step/{n}" for n in inside]), nodes)
    spelled = [normalize_node_names(s).to_list() for s in (nodes["name"].gather(below["node"]), inside)]
    assert spelled[0] == spelled[1]
    assert set(below["match"]) <= {"suffix"}
    whole = join.summarize_scopes(ops_of(chosen.to_list()), nodes).row(0, named=True)
    assert whole["node_count"] == nodes.height
    assert whole["gpu_time_ns"] == sum(range(len(chosen)))
