"""Differences between the statistics in two folders that recipes wrote: the same tables as nsys, and damaged files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from pyarrow import parquet
from tests.conftest import FIXTURES, SHARED
from tracekit.errors import CorruptTraceError, ExportError, MissingTableError
from tracekit.sets import recipe_files

if TYPE_CHECKING:
    from pathlib import Path

NSYS = SHARED / "captures" / "h200_more" / "recipes" / "diff"


def folder_of(path: Path, recipe: str = "cuda_api_sum") -> Path:
    """A folder with the tables of a recipe over two ranks."""
    recipe_files.write_recipe_folder(tk.load_many(FIXTURES / "ranks").recipe(recipe), recipe, path)
    return path


@pytest.mark.skipif(not NSYS.is_dir(), reason="the outputs of nsys are not beside the checkout")
def test_the_files_of_nsys(tmp_path: Path) -> None:
    tables = recipe_files.diff_statistics(NSYS / "kdl", NSYS / "kpy")
    recipe_files.write_recipe_folder(tables, recipe_files.DIFF, tmp_path / "out")
    theirs = {file.name: parquet.read_table(file) for file in sorted((NSYS / "diff_dl").iterdir())}
    ours = {file.name: parquet.read_table(file) for file in sorted((tmp_path / "out").iterdir())}
    assert ours.keys() == theirs.keys()
    for name, table in theirs.items():
        assert ours[name].schema.equals(table.schema), name
        assert ours[name].equals(table), name
        assert ours[name].schema.pandas_metadata["index_columns"] == table.schema.pandas_metadata["index_columns"]


def test_statistics_do_not_differ_from_themselves(tmp_path: Path) -> None:
    ours = folder_of(tmp_path / "ours")
    same = recipe_files.diff_statistics(ours, ours)
    assert same.keys() == {"rank_stats", "all_stats", "files"}
    for name in ("rank_stats", "all_stats"):
        numbers = same[name].select(pl.selectors.numeric().exclude("Rank"))
        assert not numbers.select(pl.all().abs().sum()).select(pl.sum_horizontal(pl.all())).item()
        assert same[name].height == pl.read_parquet(ours / f"{name}.parquet").height > 0
    assert same["files"].columns == ["File1", "File2"]


def test_damaged_and_missing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = folder_of(tmp_path / "a")
    b = folder_of(tmp_path / "b")
    stats = b / "rank_stats.parquet"
    content = stats.read_bytes()
    for damaged in (content[:100], content[:-9], b"", content[:-200] + b"\xff" * 192 + content[-8:]):
        stats.write_bytes(damaged)
        with pytest.raises(CorruptTraceError, match="the Parquet file of a recipe is damaged"):
            recipe_files.diff_statistics(a, b)
    stats.write_bytes(content)
    for limit, message in (
        ("_MAX_FILE_BYTES", "the file is larger than 9 bytes, the maximum that tracekit supports"),
        ("_MAX_CELLS", "the table has more than 9 cells"),
        ("_MAX_TEXT_BYTES", "the strings of the table have more than 9 bytes"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(recipe_files, limit, 9)
            with pytest.raises(CorruptTraceError, match=message):
                recipe_files.diff_statistics(a, b)
    with pytest.raises(MissingTableError, match="the folder contains no statistics of a recipe"):
        recipe_files.diff_statistics(a, tmp_path)
    assert not recipe_files.is_folder_of_statistics(tmp_path)


def test_repeated_strings_take_no_memory(tmp_path: Path) -> None:
    """A small file with a string of 10 MB in each of many rows is rejected, and not expanded."""
    a = tmp_path / "a"
    a.mkdir()
    codes = pa.array(range(1000), pa.int64())
    names = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["x" * 10_000_000]))
    parquet.write_table(pa.table({"Rank": codes, "Name": names, "Count": codes}), a / "rank_stats.parquet")
    assert (a / "rank_stats.parquet").stat().st_size < 2_000_000
    with pytest.raises(CorruptTraceError, match="the strings of the table have more than"):
        recipe_files.diff_statistics(a, a)


def test_a_folder_of_other_files_is_not_replaced(tmp_path: Path) -> None:
    a, out = folder_of(tmp_path / "a"), tmp_path / "out"
    out.mkdir()
    (out / "all_stats.csv").write_text("other\n")
    with pytest.raises(ExportError):
        recipe_files.write_recipe_folder(recipe_files.diff_statistics(a, a), recipe_files.DIFF, out, overwrite=True)
