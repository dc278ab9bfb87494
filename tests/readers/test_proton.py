"""Profiles of Proton are read as their JSON says."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from tests.helpers import count_undecoded
from tracekit.errors import CorruptTraceError, UnknownFormatError

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures" / "proton"
SCOPES, PYTHON = FIXTURES / "scopes.hatchet", FIXTURES / "python.hatchet"
CORPUS = ROOT.parent / "shared" / "corpus" / "makers" / "nvprof"


def frame(path: Path, name: str = "activity_totals") -> pl.DataFrame:
    with tk.load(path) as trace:
        return pl.DataFrame(trace[name]).with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


def list_nodes(node: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, dict[str, Any]]]:
    """The paths and metrics of a tree, those that contain others first."""
    nodes = [("/".join(path), node["metrics"])] if path else []
    return nodes + [each for child in node["children"] for each in list_nodes(child, (*path, child["frame"]["name"]))]


def test_totals_are_those_of_the_tree() -> None:
    nodes = list_nodes(json.loads(SCOPES.read_bytes())[0])
    totals = frame(SCOPES)
    assert totals["path"].to_list() == [path for path, _ in nodes]
    for column, metric in (("total_ns", "time (ns)"), ("count", "count"), ("bytes", "bytes")):
        assert totals[column].to_list() == [metrics.get(metric) for _, metrics in nodes]
    flops = [metrics.get("flops", metrics.get("flops32")) for _, metrics in nodes]
    assert totals["flops"].to_list() == flops
    assert totals["flop_bits"].to_list() == [32 if "flops32" in metrics else None for _, metrics in nodes]
    assert totals["kind"].to_list() == ["activity" if "time (ns)" in metrics else "scope" for _, metrics in nodes]
    parents = dict(totals.select("activity_total_id", "path").iter_rows())
    for path, parent in totals.select("path", "parent_id").iter_rows():
        assert (path.rpartition("/")[0] or None) == parents.get(parent)


def test_the_gpu_is_described() -> None:
    device = frame(SCOPES, "devices").row(0, named=True)
    assert {name: value for name, value in device.items() if value is not None} == {
        "device_id": 0,
        "compute_major": 9,
        "compute_minor": 0,
        "sm_count": 132,
        "clock_rate_hz": 1_980_000_000,
        "memory_bandwidth_bytes_per_s": 4_814_304_000_000,
    }


def test_folders_of_python_files_are_left_out() -> None:
    paths = frame(PYTHON)["path"].to_list()
    assert not [path for path in paths if "/opt/" in path or "/tmp/" in path]
    assert any(".py:" in path and "@" in path for path in paths)


def test_reports_and_the_answer_of_why() -> None:
    with tk.load(SCOPES) as trace:
        names = tk.stats(trace, "activity_total_sum")
        assert names["Instances"].sum() == 9
        paths = tk.stats(trace, "call_path_sum")
        add = paths.row(by_predicate=pl.col("Path") == "step_0/add", named=True)
        inner = paths.row(by_predicate=pl.col("Path") == "step_0/add/add_1048576", named=True)
        assert add["GB/s"] == inner["GB/s"] == round(12 * (1 << 20) / inner["Total Time (ns)"], 1)
        answer = trace.why()
        assert answer.status == "not_recorded"
        assert answer.sentence.startswith("No timeline was recorded, only totals, of which nvjet_")


def write(path: Path, tree: object, *devices: object) -> Path:
    path.write_text(json.dumps([tree, *devices]))
    return path


def create_node(name: object = "f", *children: object, **metrics: object) -> dict[str, object]:
    return {"children": list(children), "frame": {"name": name, "type": "function"}, "metrics": metrics}


def test_a_root_with_values_and_other_metrics_are_kept(tmp_path: Path) -> None:
    root = create_node("ROOT", create_node("f", cycles=5, num_samples=3), count=1)
    path = write(tmp_path / "a.hatchet", root, {"HIP": {"0": {"arch": "gfx942", "num_sms": 304}}})
    assert frame(path).select("path", "count", "depth").rows() == [("ROOT", 1, 0), ("ROOT/f", None, 1)]
    assert frame(path, "devices").select("chip", "sm_count").rows() == [("gfx942", 304)]
    with tk.load(path) as trace:
        assert count_undecoded(trace.undecoded) == {"values of other metrics": 2}


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (create_node("f", count=-1), "count"),
        (create_node("f", count="x"), "count"),
        (create_node("f", count=1 << 70), "count"),
        (create_node("f", flops16=True), "flops16"),
        (create_node(5), "no name"),
        (create_node("f", 5), "no name"),
        ({**create_node("f"), "metrics": 5}, "metrics"),
        (create_node("f" * 99_999), "characters"),
        (create_node("f", **{"time (ns)": 1e301}), "time"),
    ],
)
def test_invalid_trees_are_errors(tree: object, text: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptTraceError, match=text):
        tk.load(write(tmp_path / "bad.hatchet", tree), format="proton")


@pytest.mark.parametrize("end", [0.3, 0.9, 0.999])
def test_a_truncated_profile_is_an_error(end: float, tmp_path: Path) -> None:
    path = tmp_path / "short.hatchet"
    path.write_bytes(SCOPES.read_bytes()[: int(end * SCOPES.stat().st_size)])
    with pytest.raises(CorruptTraceError, match=r"cannot be read"):
        tk.load(path)


def test_deep_and_wide_trees_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "deep.hatchet"
    start = '{"children":[' * 100_000
    path.write_text(f"[{start}")
    with pytest.raises(CorruptTraceError, match="nested too deeply"):
        tk.load(path)
    long_names = create_node("f")
    for _ in range(300):
        long_names = create_node("f" * 60, long_names)
    with pytest.raises(CorruptTraceError, match="characters"):
        tk.load(write(path, long_names))


def test_other_json_is_not_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "a.hatchet"
    path.write_text('[{"children": 5}]')
    with pytest.raises(UnknownFormatError):
        tk.load(path)


@pytest.mark.parametrize(
    ("file", "rows", "nanoseconds"),
    [
        ("CRobeck__triton/proton.hatchet", 2, 3925),
        ("Tianshi-Xu__assignment2-systems/matmul.hatchet", 6, 15_974_163_126),
        ("triton-lang__triton/matmul.hatchet", 12, 7_836_298_761),
        ("zleoss__Shannon/proton.hatchet", 0, 0),
    ],
)
def test_public_profiles_are_read(file: str, rows: int, nanoseconds: int) -> None:
    if not (CORPUS / file).exists():
        pytest.skip("not beside this checkout")
    totals = frame(CORPUS / file)
    nodes = list_nodes(json.loads((CORPUS / file).read_bytes())[0])
    assert (totals.height, totals["total_ns"].sum()) == (rows, nanoseconds)
    assert totals.height == len(nodes)
    assert totals["total_ns"].sum() == sum(metrics.get("time (ns)", 0) for _, metrics in nodes)


def test_profiles_of_amd_are_advised_to_use_the_profiler_of_amd(tmp_path: Path) -> None:
    copy = tmp_path / SCOPES.name
    copy.write_text(SCOPES.read_text().replace('"CUDA"', '"HIP"'))
    for path, command in ((SCOPES, "nsys profile"), (copy, "rocprofv3 --sys-trace")):
        with tk.load(path) as trace:
            assert f"record a timeline with {command}" in trace.why().sentence


@pytest.mark.parametrize("seed", range(8))
def test_trees_of_any_shape(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    nodes = [create_node(f"f{n}", count=n, **({"time (ns)": n} if n % 2 else {})) for n in range(60)]
    for n, node in enumerate(nodes[1:], 1):
        nodes[dice.randrange(max(0, n - 1 - seed), n)]["children"].append(node)  # type: ignore[attr-defined]
    tree = create_node("ROOT", nodes[0], **({} if seed % 2 else {"count": 0}))
    totals = frame(write(tmp_path / "a.hatchet", tree))
    expected = list_nodes(tree)
    assert totals["path"].to_list() == [path for path, _ in expected]
    assert totals["count"].to_list() == [metrics["count"] for _, metrics in expected]
    assert totals["total_ns"].to_list() == [metrics.get("time (ns)") for _, metrics in expected]
    assert totals["depth"].to_list() == [path.count("/") for path, _ in expected]
    paths = dict(totals.select("activity_total_id", "path").iter_rows())
    assert totals["activity_total_id"].to_list() == [*range(1, 61)]
    for path, parent in totals.select("path", "parent_id").iter_rows():
        assert (path.rpartition("/")[0] or None) == paths.get(parent)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/home/user/train.py:12@step", "train.py:12@step"),
        ("C:\\a\\b.py:3@g", "b.py:3@g"),
        ("/x.py:12@f", "/x.py:12@f"),
        ("launch /home/u/x.py:1@g", "launch x.py:1@g"),
        ("void f</a/b>(x)", "void f</a/b>(x)"),
        ("a/b.py:12@c", "a/b.py:12@c"),
        ("x@/y/z.py:1@q", "x@z.py:1@q"),
        ("a\ud800b", "a?b"),
    ],
)
def test_folders_in_names(name: str, shown: str, tmp_path: Path) -> None:
    assert frame(write(tmp_path / "a.hatchet", create_node(name)))["name"].to_list() == [shown]


def test_folders_in_long_names_are_found_in_linear_time(tmp_path: Path) -> None:
    names = ["/a" * 8000 + str(n) for n in range(40)]
    began = time.perf_counter()
    assert frame(write(tmp_path / "a.hatchet", create_node("f", *map(create_node, names)))).height == 41
    assert time.perf_counter() - began < 10


def test_several_trees_and_functions_elsewhere_are_errors(tmp_path: Path) -> None:
    inside = create_node("f")
    inside["metrics"] = {"x": create_node("g")}
    for document in (
        [create_node("f"), create_node("g")],
        [inside],
        [{"CUDA": {}}],
        [create_node("f"), {"CUDA": 5}, 6],
    ):
        path = tmp_path / "a.hatchet"
        path.write_text(json.dumps(document))
        if document[1:2] == [{"CUDA": 5}]:
            assert frame(path).height == 1
            continue
        with pytest.raises(CorruptTraceError, match=r"several trees|not among the children|expected a list"):
            tk.load(path, format="proton")


def test_a_profile_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.hatchet"
    path.write_bytes(b"\xef\xbb\xbf" + SCOPES.read_bytes())
    assert frame(path).equals(frame(SCOPES))


def test_paths_take_memory_in_proportion_to_the_file(tmp_path: Path) -> None:
    """Each of many functions below a deep one has a path of 10 KB."""
    path = tmp_path / "wide.hatchet"
    node = create_node("n" * 50, *(create_node(f"l{i}") for i in range(10_000)))
    for _ in range(200):
        node = create_node("n" * 50, node)
    with pytest.raises(CorruptTraceError, match="characters of call paths would take"):
        tk.load(write(path, node))
