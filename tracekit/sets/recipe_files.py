"""Write the tables of a recipe to a folder with the file names of nsys, and compare the tables in two folders."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.core.recipes import UNNAMED_INDEX
from tracekit.errors import CorruptTraceError, MissingTableError, TracekitError, UnknownFormatError, create_choices_hint
from tracekit.registry.analyses import RECIPE, get_analysis
from tracekit.sets.recipes import FILE, RANK
from tracekit.system import targets
from tracekit.text import escape_formulas

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from typing import Any

    import polars as pl
    import pyarrow as pa

    from tracekit.system.files import Input

FORMATS = ("parquet", "csv", "html")
_RECIPE_KEY = b"tracekit.recipe"
_STATISTICS = "Count,Mean,Std,Min,Q1,Median,Q3,Max,Sum"
_HEADERS = {
    "files": "(Rank,)?File|File1,File2",
    "all_stats": f"(Name|Text),{_STATISTICS}.*",
    "rank_stats": f"(Name|Text|GPU ID,Metric Name),{_STATISTICS}.*,Rank|(Name|Text),Rank,{_STATISTICS}.*",
    "rank_stats_by_device": f"Name,Device ID,{_STATISTICS},Rank",
    "stats": f"(Shortname|Text),{_STATISTICS}",
    "pace_delta_stats": _STATISTICS,
    "pace_(?!delta_stats)[a-z_]+": "[0-9]+(,[0-9]+)*",
    "analysis": "(Duration|Row#),.+,Rank",
    "trace": "Text,Start,End,.+,Rank",
    "rank_trace": "Name,Start,End,.+,Rank",
    "grouped_trace": "Name,Count,Communication Overlap,Compute Overlap",
    "(summary|arrivals)": "library,kind,communicator,.+,exposed_ns",
    "operations": "operation_id,library,kind,.+,bus_gb_per_s",
    "calls": "library,kind,name,.+,bytes",
    "clocks": "rank,method,offset_ns,.+",
    "iterations": "iteration,rank_count,.+,delay_ns(,is_warm_up,is_aggregated)?",
    "stragglers": "straggler,phase,.+,iterations",
    "steps": "rank,key_op,.+,gpu_time_in_steps_ns",
}
"""Patterns of the first lines of CSV files, by pattern of the table name."""
_MAX_HEADER_BYTES = 1 << 20
DIFF = "diff"
"""Name of the recipe that compares the statistics in two folders."""
_DIFF_INDEX = {"all_stats": ("Name",), "rank_stats": ("Name",)}
_MAX_FILE_BYTES, _MAX_CELLS, _MAX_TEXT_BYTES = 1 << 26, 1 << 24, 1 << 28
"""Limits for files of statistics, above which a file is rejected as damaged."""


def write_recipe_folder(
    tables: Mapping[str, pl.DataFrame],
    recipe: str,
    folder: str | os.PathLike[str],
    format: str = "parquet",  # noqa: A002 - the name of the option
    *,
    overwrite: bool = False,
    inputs: Sequence[Input] = (),
    spreadsheet: bool = False,
    notices: Sequence[str] = (),
) -> None:
    """Write the tables of a recipe into a folder atomically.

    Args:
        tables: The tables by name, as ``TraceSet.recipe`` returns them.
        recipe: Name of the recipe.
        folder: The folder to write.
        format: ``parquet``, ``csv`` or ``html``. The Parquet files declare the index of each table to pandas, as the
            files of nsys do. HTML is one page with figures and the first rows of all tables.
        overwrite: Whether to replace an existing folder, which may contain only files of recipes.
        inputs: The files and folders that were read. They are never replaced.
        spreadsheet: Whether to put an apostrophe before each string in CSV that looks like a formula.
        notices: Sentences at the beginning of a page.

    Raises:
        UnknownFormatError: The format is unknown.
        ExportError: The folder exists or cannot be written.
    """
    if format not in FORMATS:
        raise UnknownFormatError(
            f"there is no format {format!r} for recipes", hint=create_choices_hint("formats", FORMATS, format)
        )
    with targets.open_atomic_output(folder, is_exported_file=is_recipe_file, overwrite=overwrite, inputs=inputs) as new:
        new.mkdir()
        if format == "html":
            _write_recipe_page(tables, recipe, new / f"{recipe}.html", notices)
            return
        for name, table in tables.items():
            index = choose_index_columns(recipe, name, table)
            path = new / f"{name}.{format}"
            if format == "csv":
                _write_csv(convert_to_printable_rows(table, index), path, spreadsheet=spreadsheet)
            else:
                _write_parquet(table, index, recipe, path)


def is_folder_of_statistics(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder contains the statistics that a recipe wrote, as Parquet files."""
    from tracekit.core.compare import recipe as recipe_diff

    return any(_build_statistics_path(path, name).is_file() for name in recipe_diff.TABLES)


def diff_statistics(folder_a: str | os.PathLike[str], folder_b: str | os.PathLike[str]) -> dict[str, pl.DataFrame]:
    """Return the differences between the statistics of two jobs, as the recipe ``diff`` of nsys does.

    Args:
        folder_a: Folder that a recipe of nsys or tracekit wrote as Parquet files.
        folder_b: Folder that the same recipe wrote for another job.

    Returns:
        The tables ``rank_stats`` and ``all_stats``, with the numbers of the first job minus those of the second one,
        and the table ``files``, with the names of the captures.

    Raises:
        MissingTableError: A folder contains no statistics.
        SchemaError: The statistics in the folders have different columns.
        CorruptTraceError: A file is damaged or too large.
    """
    from tracekit.core.compare import recipe as recipe_diff

    return recipe_diff.subtract_statistics(_read_statistics(folder_a), _read_statistics(folder_b))


def _build_statistics_path(folder: str | os.PathLike[str], name: str) -> Path:
    return Path(folder) / f"{name}.parquet"


def _read_statistics(folder: str | os.PathLike[str]) -> dict[str, pl.DataFrame]:
    """Return the tables of statistics in a folder, and the table with the names of the captures, by table name."""
    from tracekit.core.compare import recipe as recipe_diff

    files = {name: _build_statistics_path(folder, name) for name in (*recipe_diff.TABLES, recipe_diff.FILES)}
    tables = {name: read_parquet_table(path) for name, path in files.items() if path.is_file()}
    if not tables.keys() & set(recipe_diff.TABLES):
        hint = "write the tables of a recipe such as cuda_gpu_kern_sum to the folder with -o"
        raise MissingTableError("the folder contains no statistics of a recipe", path=folder, hint=hint)
    return tables


def read_parquet_table(path: Path, what: str = "the Parquet file of a recipe") -> pl.DataFrame:
    """Read a small table from a Parquet file, which may be untrusted.

    String columns are first read dictionary-encoded. Their total size is checked before the strings are expanded.

    Args:
        path: The file.
        what: Name of the file for errors.

    Raises:
        CorruptTraceError: The file is damaged or too large.
    """
    import polars as pl
    import pyarrow as pa
    from pyarrow import parquet

    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            message = f"the file is larger than {_MAX_FILE_BYTES:,} bytes, the maximum that tracekit supports"
            raise CorruptTraceError(message, path=path)
        with path.open("rb") as file, parquet.ParquetFile(file) as opened:
            if opened.metadata.num_rows * len(opened.schema_arrow) > _MAX_CELLS:
                message = f"the table has more than {_MAX_CELLS:,} cells, the maximum that tracekit supports"
                raise CorruptTraceError(message, path=path)
            text = [
                f.name for f in opened.schema_arrow if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)
            ]
        with path.open("rb") as file:
            table = parquet.read_table(file, read_dictionary=text)
        frame = pl.DataFrame(pl.from_arrow(table.replace_schema_metadata()))
    except (pa.ArrowException, OSError, ValueError, pl.exceptions.PolarsError) as e:
        if isinstance(e, TracekitError):
            raise
        raise CorruptTraceError(f"{what} is damaged", path=path) from e
    categories = [name for name, dtype in frame.schema.items() if dtype == pl.Categorical]
    lengths = sum(int(frame[c].cat.len_bytes().sum()) for c in categories)
    if lengths > _MAX_TEXT_BYTES:
        message = (
            f"the strings of the table have more than {_MAX_TEXT_BYTES:,} bytes, the maximum that tracekit supports"
        )
        raise CorruptTraceError(message, path=path)
    return frame.with_columns(pl.col(categories).cast(pl.String))


def choose_index_columns(recipe: str, name: str, table: pl.DataFrame) -> tuple[str, ...]:
    """Return the names of the columns that nsys declares as the pandas index of a table of a recipe."""
    if recipe == DIFF:
        return _DIFF_INDEX.get(name, ())
    indexes = {result.name: result.key for result in get_analysis(recipe, RECIPE).results}
    declared = indexes.get(name, (RANK,))
    return tuple(c for c in declared if c in table.columns)


def convert_to_printable_rows(table: pl.DataFrame, index: Sequence[str]) -> pl.DataFrame:
    """Return a table in printable form: index columns first, no unnamed index, and lists converted to strings."""
    import polars as pl

    lists = pl.col(pl.List(pl.Int64)).cast(pl.List(pl.String)).list.join(" ")
    columns = [c for c in (*index, *table.columns) if c != UNNAMED_INDEX]
    return table.with_columns(lists).select(list(dict.fromkeys(columns)))


def is_recipe_file(path: Path) -> bool:
    """Return whether a file looks like an output file of a recipe.

    An output file is a Parquet file with metadata of tracekit, a CSV file with the header of a table of a recipe, or an
    HTML page whose title names a recipe.
    """
    checks = {".parquet": _is_parquet_of_recipe, ".csv": _is_csv_of_recipe, ".html": _is_page_of_recipe}
    try:
        return path.suffix in checks and checks[path.suffix](path)
    except (OSError, ValueError):
        return False


def _is_parquet_of_recipe(path: Path) -> bool:
    from pyarrow import ArrowException, parquet

    try:
        with path.open("rb") as file:
            return _RECIPE_KEY in (parquet.read_schema(file).metadata or {})
    except ArrowException:
        return False


def _is_csv_of_recipe(path: Path) -> bool:
    patterns = [header for name, header in _HEADERS.items() if re.fullmatch(name, path.stem)]
    if not patterns:
        return False
    with path.open("rb") as file:
        line = file.readline(_MAX_HEADER_BYTES).decode().rstrip("\n")
    return any(re.fullmatch(pattern, line) for pattern in patterns)


def _is_page_of_recipe(path: Path) -> bool:
    """Return whether an HTML file looks like the page of a recipe."""
    from tracekit.sets.recipe_page import is_recipe_page

    return is_recipe_page(path)


def _write_recipe_page(tables: Mapping[str, pl.DataFrame], recipe: str, path: Path, notices: Sequence[str]) -> None:
    from tracekit.sets.recipe_page import render_recipe_page

    def get_printable_rows(name: str) -> pl.DataFrame:
        return convert_to_printable_rows(tables[name], choose_index_columns(recipe, name, tables[name]))

    page = render_recipe_page(recipe, tables, get_printable_rows, notices)
    path.write_text(page, "utf-8", newline="\n")


def _write_csv(rows: pl.DataFrame, path: Path, *, spreadsheet: bool) -> None:
    with path.open("wb") as file:  # polars cannot open paths that are not UTF-8
        (escape_formulas(rows) if spreadsheet else rows).write_csv(file)


def _write_parquet(table: pl.DataFrame, index: Sequence[str], recipe: str, path: Path) -> None:
    import polars as pl
    from pyarrow import parquet

    arrow = _use_32_bit_list_offsets(table.to_arrow(compat_level=pl.CompatLevel.oldest()))
    metadata = {_RECIPE_KEY: recipe.encode(), b"pandas": json.dumps(_build_pandas_metadata(table, index)).encode()}
    with path.open("wb") as file:
        parquet.write_table(arrow.replace_schema_metadata(metadata), file)


def _use_32_bit_list_offsets(table: pa.Table) -> pa.Table:
    """Return a table whose list columns have 32-bit offsets, as in the files of nsys."""
    import pyarrow as pa

    fields = [
        pa.field(f.name, pa.list_(f.type.value_type)) if pa.types.is_large_list(f.type) else f for f in table.schema
    ]
    return table.cast(pa.schema(fields))


def _build_pandas_metadata(table: pl.DataFrame, index: Sequence[str]) -> dict[str, Any]:
    """Return the Parquet metadata that makes pandas use the columns ``index`` as the index of a table.

    The metadata also declares types for integer columns with nulls, which pandas would otherwise convert to floats. The
    index of the table ``files``, and of tables with a column of ranks but no index columns, is the row number.
    """
    import polars as pl

    def describe_column(name: str) -> dict[str, str | None]:
        dtype = table.schema[name]
        pandas, numpy = ("unicode", "str") if dtype == pl.String else (str(dtype).lower(), str(dtype).lower())
        numpy = str(dtype) if name in nullable else numpy
        title = None if name == UNNAMED_INDEX else name
        return {"name": title, "field_name": name, "pandas_type": pandas, "numpy_type": numpy, "metadata": None}

    nullable = [s.name for s in table if s.dtype.is_integer() and s.null_count()]
    columns = [describe_column(name) for name in (*nullable, *index)]
    is_files = table.columns in ([FILE], [f"{FILE}1", f"{FILE}2"])
    rows = {"kind": "range", "name": RANK if is_files else None, "start": 0, "stop": table.height, "step": 1}
    is_numbered = is_files or (not index and RANK in table.columns)
    return {"index_columns": [rows] if is_numbered else list(index), "columns": columns, "column_indexes": []}
