"""Recipes over sets: the tables that nsys wrote for the same reports, and the files that are written."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import tracekit as tk
from pyarrow import parquet
from tests.builders.ranks import kernel, write_capture
from tests.conftest import FIXTURES, SHARED
from tracekit.errors import ExportError, MissingTableError, UnknownFormatError
from tracekit.sets.recipe_files import is_recipe_file, write_recipe_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

RANKS = FIXTURES / "ranks"
CAPTURES = SHARED / "captures" / "h200_more"
OPTIONS: dict[str, dict[str, Any]] = {
    "cuda_gpu_kern_pace": {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"},
    "nvtx_pace": {"name": "backward"},
    "nvtx_gpu_proj_pace": {"name": "backward"},
}
APPROXIMATE = " (approx)"
KEYS = ("Name", "Text", "Shortname")


def truths() -> Iterator[Any]:
    """The folders of tables that nsys wrote, each with its capture."""
    for folder in sorted((FIXTURES / "recipes").iterdir()):
        yield pytest.param(folder, RANKS, id=f"ranks-{folder.name}")
    for capture, pattern in (("straggler", "straggler_rank?.nsys-rep"), ("pystacks", "pystacks.nsys-rep")):
        for folder in sorted((CAPTURES / "recipes" / capture).glob("*")):
            yield pytest.param(folder, CAPTURES / pattern, id=f"{capture}-{folder.name}")


def load(capture: Path) -> tk.TraceSet:
    return tk.load_many([capture], ranks={"pystacks.nsys-rep": 0} if capture.stem == "pystacks" else None)


@pytest.mark.many(12)
@pytest.mark.parametrize(("folder", "capture"), list(truths()))
def test_tables_are_those_of_nsys(folder: Path, capture: Path, tmp_path: Path) -> None:
    tables = load(capture).recipe(folder.name, **OPTIONS.get(folder.name, {}))
    write_recipe_folder(tables, folder.name, tmp_path / "out")
    expected = {path.stem: path for path in folder.iterdir()}
    assert {path.stem: path.suffix for path in (tmp_path / "out").iterdir()} == dict.fromkeys(expected, ".parquet")
    for name, path in expected.items():
        truth = pl.read_parquet(path)
        exact = [c for c in truth.columns if not c.endswith(APPROXIMATE)]
        assert [c.removesuffix(APPROXIMATE) for c in truth.columns] == tables[name].columns
        assert tables[name].select(exact).equals(truth.select(exact))
        assert tables[name].select(exact).schema == truth.select(exact).schema
        assert_same_file(path, tmp_path / "out" / path.name)
    if "rank_stats" in expected:
        assert_approximations(pl.read_parquet(expected["all_stats"]), tables)


def assert_same_file(truth: Path, ours: Path) -> None:
    """Compare the types of all columns, and the index that pandas reads."""
    schemas = [parquet.read_schema(p) for p in (truth, ours)]
    fields = [[(f.name.removesuffix(APPROXIMATE), f.type) for f in schema] for schema in schemas]
    assert fields[0] == fields[1]
    assert schemas[0].pandas_metadata["index_columns"] == schemas[1].pandas_metadata["index_columns"]


def assert_approximations(truth: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> None:
    """Derive the approximations of nsys from our ranks, and compare our exact values with what they allow."""
    key = next(k for k in KEYS if k in truth.columns)
    ranks = tables["rank_stats"].group_by(key)
    merged = ranks.agg(
        pl.col("Std").mean().round(1),
        pl.col("Q1").min(),
        pl.col("Median").mean().round(1),
        pl.col("Q3").max(),
        pl.col("Median").min().alias("lowest"),
        pl.col("Median").max().alias("highest"),
    ).sort(key)
    for column in ("Std", "Q1", "Median", "Q3"):
        assert truth.sort(key)[column + APPROXIMATE].equals(merged[column], null_equal=True)
    exact = tables["all_stats"].sort(key)
    many = exact["Count"] >= 100  # of few values, quartiles that are interpolated can lie outside
    for column, lowest, highest in (
        ("Q1", merged["Q1"], merged["Q3"]),
        ("Median", merged["lowest"], merged["highest"]),
        ("Q3", merged["Q1"], merged["Q3"]),
    ):
        assert ((exact[column] >= lowest) & (exact[column] <= highest)).filter(many).all()


def test_statistics_over_ranks_are_exact() -> None:
    ranks = tk.load_many(RANKS)
    described = ranks.recipe("cuda_api_sum")["all_stats"]
    calls = ranks.frame("api_calls").select(
        pl.col("name").cast(pl.String), value=(pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64)
    )
    quartiles = [
        pl.col("value").quantile(q, "linear").round(1).alias(n)
        for n, q in (("Q1", 0.25), ("Median", 0.5), ("Q3", 0.75))
    ]
    expected = (
        calls.group_by("name").agg(pl.col("value").std().round(1).alias("Std"), *quartiles).sort("name").collect()
    )
    assert described["Name"].to_list() == expected["name"].to_list()
    assert described.select("Std", "Q1", "Median", "Q3").equals(expected.drop("name"), null_equal=True)


def made_rank(path: Path, rank: int, origin: int | None, *, duration: int | None = 100) -> Path:
    facts = {"origin_utc_ns": origin, "duration_ns": duration}
    info = [{"name": name, "value": str(value)} for name, value in facts.items() if value is not None]
    kernels = [kernel(start, start + 10 + rank) for start in (0, 50)]
    return write_capture(path / f"made_rank{rank}", capture_info=info, kernels=kernels)


@pytest.mark.slow
def test_many_ranks_are_merged_in_order(tmp_path: Path) -> None:
    ranks = tk.load_many([made_rank(tmp_path, n, 1000 + n) for n in range(35)])
    tables = ranks.recipe("cuda_gpu_kern_sum")
    assert tables["rank_stats"].select("Rank", "Count", "Sum").rows() == [(n, 2, 20 + 2 * n) for n in range(35)]
    every = [10 + n for n in range(35) for _ in range(2)]
    assert tables["all_stats"].select("Count", "Median", "Sum").row(0) == (70, 27.0, sum(every))
    paces = ranks.recipe("cuda_gpu_kern_pace", name="k")
    assert paces["pace_start"].rows() == [tuple(range(35)), tuple(range(50, 85))]
    assert paces["pace_delta"].row(0) == (0,) * 35
    assert pickle.loads(pickle.dumps(ranks)).recipe("cuda_gpu_kern_pace", name="k")["stats"].equals(paces["stats"])


def test_ranks_are_aligned_by_their_start(tmp_path: Path) -> None:
    ranks = tk.load_many([made_rank(tmp_path, 0, 1030), made_rank(tmp_path, 1, 1000)])
    assert ranks.recipe("cuda_gpu_kern_pace", name="k")["pace_start"].rows() == [(30, 0), (80, 50)]
    assert ranks.recipe("cuda_gpu_kern_pace", name="k", align="no")["pace_start"].rows() == [(0, 0), (50, 50)]
    shown = ranks.recipe("cuda_gpu_time_util_map", bins=13)["analysis"]
    assert shown["Duration"].to_list() == [10 * n for n in range(13)] * 2
    assert shown["Kernel"].to_list()[:4] == [None, None, None, 100.0]


def test_an_unknown_start_is_an_error_unless_nothing_is_aligned(tmp_path: Path) -> None:
    ranks = tk.load_many([made_rank(tmp_path, 0, 1030), made_rank(tmp_path, 1, None, duration=None)])
    with pytest.raises(MissingTableError) as raised:
        ranks.recipe("cuda_gpu_kern_pace", name="k")
    assert str(raised.value).endswith(
        "made_rank1: the UTC time of the trace origin is not recorded, so this rank cannot be aligned with the other "
        "ranks\n"
        "Hint: pass align='no', or --no-align on the command line"
    )
    shown = ranks.recipe("cuda_gpu_time_util_map", align="no", bins=10)["analysis"]
    assert shown["Kernel"].to_list() == [
        100.0,
        *[0.0] * 4,
        100.0,
        *[0.0] * 4,
        100.0,
        10.0,
        *[0.0] * 3,
        100.0,
        100.0,
        *[None] * 3,
    ]


def test_ranks_that_do_not_count_from_0_are_in_a_column(tmp_path: Path) -> None:
    ranks = tk.load_many(RANKS).select(ranks=[1])
    tables = ranks.recipe("mpi_sum")
    assert tables["files"].rows() == [("mpi_rank1", 1)]
    assert tables["rank_stats"]["Rank"].unique().to_list() == [1]
    write_recipe_folder(tables, "mpi_sum", tmp_path / "out")
    index = parquet.read_schema(tmp_path / "out" / "files.parquet").pandas_metadata["index_columns"]
    assert index == ["Rank"]


def test_errors_of_a_rank_are_raised(tmp_path: Path) -> None:
    ranks = tk.load_many([made_rank(tmp_path, 0, 1000), made_rank(tmp_path, 1, 1000)])
    (tmp_path / "made_rank1" / "kernels.parquet").write_bytes(b"PAR1")
    with pytest.raises(tk.TracekitError, match=r"made_rank1"):
        ranks.recipe("cuda_gpu_kern_sum")


def test_csv_files_have_the_index_first(tmp_path: Path) -> None:
    tables = tk.load_many(RANKS).recipe("nvtx_gpu_proj_trace")
    write_recipe_folder(tables, "nvtx_gpu_proj_trace", tmp_path / "out", "csv")
    lines = (tmp_path / "out" / "trace.csv").read_text().splitlines()
    assert lines[0] == "Text,Start,End,PID,TID,Stack Level,Children Count,Range ID,Parent ID,Range Stack,Rank"
    assert lines[2].split(",")[-2:] == ["0 1", "0"]
    sums = tk.load_many(RANKS).recipe("nvtx_sum")
    sums["all_stats"] = sums["all_stats"].with_columns(Text=pl.lit("=1"))
    write_recipe_folder(sums, "nvtx_sum", tmp_path / "sums", "csv", spreadsheet=True)
    assert (tmp_path / "sums" / "all_stats.csv").read_text().splitlines()[1].startswith("'=1,10,")


def test_the_index_of_rows_of_one_rank_is_their_number(tmp_path: Path) -> None:
    one = tk.load_many([RANKS / "mpi_rank0.nsys-rep"], ranks={"mpi_rank0.nsys-rep": 0})
    tables = one.recipe("mpi_gpu_time_util_map", bins=2)
    write_recipe_folder(tables, "mpi_gpu_time_util_map", tmp_path / "out")
    schema = parquet.read_schema(tmp_path / "out" / "analysis.parquet")
    expected = [{"kind": "range", "name": None, "start": 0, "stop": 2, "step": 1}]
    assert (schema.names[-1], schema.pandas_metadata["index_columns"]) == ("Rank", expected)


@pytest.mark.slow
def test_the_page_has_figures_and_tables(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for recipe in ("mpi_sum", "mpi_gpu_time_util_map"):
        write_recipe_folder(tk.load_many(RANKS).recipe(recipe), recipe, out, "html", overwrite=True)
        assert [p.name for p in out.iterdir()] == [f"{recipe}.html"]
    text = (out / "mpi_gpu_time_util_map.html").read_text("utf-8")
    assert "<title>Recipe mpi_gpu_time_util_map</title>" in text
    assert text.count('id="figure-map_') == 3
    assert re.search(r"<caption>analysis[^<]*\b50 of 60\b", text)
    (out / "mpi_gpu_time_util_map.html").rename(out / "other.html")
    assert not is_recipe_file(out / "other.html")


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_only_folders_of_recipes_are_replaced(format: str, tmp_path: Path) -> None:
    ranks = tk.load_many(RANKS)
    out = tmp_path / "out"
    for recipe in ("mpi_sum", "nvtx_gpu_proj_trace", "mpi_gpu_time_util_map"):
        tables = ranks.recipe(recipe)
        write_recipe_folder(tables, recipe, out, format, overwrite=True)
        assert {p.name for p in out.iterdir()} == {f"{name}.{format}" for name in tables}
    with pytest.raises(ExportError, match="exists"):
        write_recipe_folder(tables, recipe, out, format)
    (out / "notes.csv").write_text("my,notes\n")
    with pytest.raises(ExportError, match=r"files that tracekit did not write: notes\.csv"):
        write_recipe_folder(tables, recipe, out, format, overwrite=True)
    assert len(list(out.iterdir())) == 3


def test_other_files_are_not_of_a_recipe(tmp_path: Path) -> None:
    contents = {
        "trace.csv": b"a,b\n",
        "files.csv": b"\xff\n",
        "stats.parquet": b"PAR1",
        "stats.txt": b"Count",
        "other.csv": b"File\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        assert not is_recipe_file(tmp_path / name)
    pl.DataFrame({"File": ["x"]}).write_parquet(tmp_path / "files.parquet")
    assert not is_recipe_file(tmp_path / "files.parquet")
    assert not is_recipe_file(tmp_path / "missing.csv")


def test_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match="there is no format 'json' for recipes"):
        write_recipe_folder({}, "mpi_sum", tmp_path / "out", "json")
