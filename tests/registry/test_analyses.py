"""What analyses return and read is as they declare it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from tests.builders.frames import declared
from tests.conftest import FIXTURES
from tracekit import schemas
from tracekit.core.reads import find_read_columns
from tracekit.core.reports import Request, compute_rows
from tracekit.errors import MissingTableError
from tracekit.registry.analyses import RECIPE, REPORT, RULE, Analysis, list_analyses

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.schemas import Column, TableSchema

DTYPES = {
    "int64": (pl.Int64, pl.Null),
    "int32": (pl.Int32,),
    "uint64": (pl.UInt64,),
    "uint32": (pl.UInt32,),
    "float64": (pl.Float64,),
    "bool": (pl.Boolean,),
    "string": (pl.String, pl.Categorical, pl.Enum),
    "list<int64>": (pl.List,),
}
OF_CALLS = {"memcpys", "memsets"}
"""Tables that polars may or may not read to join them with calls, because no call of the example is selected."""
CAPTURES = ("train_amp.sqlite", "memory.sqlite", "um.sqlite", "mpi_rank0.sqlite")


@pytest.fixture(scope="module")
def traces() -> Iterator[list[tk.Trace]]:
    opened = [tk.load(path) for name in CAPTURES if (path := FIXTURES / name).exists()]
    yield opened
    for trace in opened:
        trace.close()


def get_name(analysis: Analysis) -> str:
    return analysis.name


def check(frame: pl.DataFrame, columns: Sequence[Column]) -> None:
    """Compare the columns of a result with their declaration. The declaration of a column ``*`` is that of all."""
    expected = {c.name: c.type for c in columns}
    if "*" in expected:
        expected = dict.fromkeys(frame.columns, expected["*"])
    assert frame.columns == [*expected]
    assert [name for name, type_ in expected.items() if frame.schema[name].base_type() not in DTYPES[type_]] == []


@pytest.mark.parametrize("analysis", [*list_analyses(REPORT).values(), *list_analyses(RULE).values()], ids=get_name)
def test_columns_of_reports_and_rules(analysis: Analysis, traces: list[tk.Trace]) -> None:
    assert all(column.doc.endswith(".") for column in analysis.columns)
    for trace in traces:
        if analysis.name == "graph_summary":
            with pytest.raises(MissingTableError):
                trace.report(analysis.name)
        else:
            check(trace.report(analysis.name).frame(), analysis.columns)


@pytest.mark.parametrize("analysis", [*list_analyses(REPORT).values(), *list_analyses(RULE).values()], ids=get_name)
def test_declared_tables_are_those_that_are_read(analysis: Analysis) -> None:
    """Messages name the tables from which a result without rows is computed."""
    if analysis.input == "tables":
        request = Request(declared(), analysis.resolve_options({}))
        reads = find_read_columns(
            lambda frames: compute_rows(analysis, request.with_frames(frames)),
            lambda table: schemas.create_example_frame(schemas.table(table)),
        )
        skipped = OF_CALLS if analysis.tables == ("api_calls",) else set()
        assert {*analysis.tables} == reads.keys() - {"capture_info"} - skipped


@pytest.mark.parametrize("recipe", list_analyses(RECIPE).values(), ids=get_name)
def test_columns_of_recipes(recipe: Analysis) -> None:
    options = {o.name: "x" for o in recipe.options if o.is_required}
    tables = tk.load_many(FIXTURES / "ranks").recipe(recipe.name, **options)
    check_tables(tables, recipe.results)


def check_tables(tables: dict[str, pl.DataFrame], results: Sequence[TableSchema]) -> None:
    assert [*tables] == [*(result.name for result in results), "files"]
    for result in results:
        index = [key for key in result.key if key not in tables[result.name].columns]
        check(tables[result.name], [c for c in result.columns if c.name not in index])
        assert all(column.doc.endswith(".") for column in result.columns)
