"""The command ``tracekit schema``, which shows the declared columns of tables and of results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from tracekit import registry, schemas
from tracekit.cli.options import correlated_option, create_name_completer, ops_option, printing_options
from tracekit.registry import analyses

if TYPE_CHECKING:
    from collections.abc import Iterable

    import polars as pl

    from tracekit.cli.options import Printing
    from tracekit.schemas import TableSchema


ANSWERS = {"method.why": "why.json", "method.what_if": "what_if.json", "answer": "answer.json"}
"""Objects that commands print, with the files in ``schemas`` that describe them."""


def _list_names() -> Iterable[str]:
    return [*schemas.table_names(), *_find_results(), *ANSWERS]


@click.command("schema")
@click.argument("table", metavar="[TABLE]", required=False, shell_complete=create_name_completer(_list_names))
@correlated_option
@ops_option
@printing_options
def schema_command(*, table: str | None, correlated: bool, ops: bool, printing: Printing) -> None:
    """Show the declared columns of TABLE, or list the declared tables.

    TABLE can also be a report, a rule, or a table of any result, such as recipe.mpi_sum.all_stats or
    method.diff.kernels. With --format json, print the JSON Schema of a row of TABLE, or of all tables and results under
    $defs, for other programs. TABLE can then also be answer: the object that --format answer prints.
    """
    if table in ANSWERS:
        if printing.style != "json":
            raise click.UsageError(f"{table} is an object, not a table: print its JSON Schema with --format json")
        with printing.open_output_page() as page:
            page.print_json(json.loads((schemas.FOLDER / ANSWERS[table]).read_text("utf-8")), indent=2)
        return
    extended = {name: _extend_schema(schemas.table(name), correlated=correlated, ops=ops) for name in _choose(table)}
    results = _find_results()
    if table is not None and not extended:
        table = table if table in results else _find_report(table) or schemas.table(table).name
        extended = {table: results[table]}
    with printing.open_output_page() as page:
        if printing.style == "json":
            schema = (
                schemas.build_json_schema(extended[table], table)
                if table
                else _build_json_schema_of_all(extended, results)
            )
            page.print_json(schema, indent=2)
        else:
            frame = _describe_columns(extended[table]) if table else _describe_tables(extended.values())
            printing.print_frame(page, frame, prose_columns=["doc"])


def _choose(table: str | None) -> Iterable[str]:
    """Return the names of the declared tables to show."""
    registry.load_plugin_tables()
    return [name for name in schemas.table_names() if table in (None, name)]


def _extend_schema(schema: TableSchema, *, correlated: bool, ops: bool) -> TableSchema:
    schema = schemas.correlated_schema(schema.name) if correlated else schema
    return schemas.add_rollup_columns_to_schema(schema) if ops else schema


def _find_report(name: str) -> str:
    """Return the key of the result of the report or rule with the given name or old name. Empty if there is none."""
    candidates = (analyses.find_analysis(kind, name) for kind in (analyses.REPORT, analyses.RULE))
    return next((f"{each.kind}.{each.name}" for each in candidates if each is not None), "")


def _find_results() -> dict[str, TableSchema]:
    """Return the tables of all results by name: kind and name of the analysis, and name of the table if it differs."""
    listed = [each for kind in analyses.KINDS for each in analyses.list_analyses(kind).values()]
    return {
        f"{each.kind}.{each.name}" + (f".{result.name}" if result.name != each.name else ""): result
        for each in listed
        for result in each.results
    }


def _build_json_schema_of_all(tables: dict[str, TableSchema], results: dict[str, TableSchema]) -> dict[str, Any]:
    """Return one JSON Schema document that defines the rows of all tables and results under ``$defs``.

    The answers of ``why`` and ``what-if`` are objects, which are defined there, too, like the envelope of all answers.
    """
    rows = {name: schemas.build_json_schema(schema, name) for name, schema in {**tables, **results}.items()}
    answers = {name: json.loads((schemas.FOLDER / file).read_text("utf-8")) for name, file in ANSWERS.items()}
    first = next(iter(rows.values()))
    return {
        "$schema": first["$schema"],
        "$id": f"tracekit:tables:v{schemas.SCHEMA_VERSION}",
        "$defs": {**rows, **answers},
    }


def _describe_columns(schema: TableSchema) -> pl.DataFrame:
    """Return a frame with one row per column of a table: name, type, unit, nullability and description."""
    import polars as pl

    rows = [(c.name, c.type, c.unit or "", "yes" if c.nullable else "", c.doc) for c in schema.columns]
    return pl.DataFrame(rows, schema=["column", "type", "unit", "nullable", "doc"], orient="row")


def _describe_tables(tables: Iterable[TableSchema]) -> pl.DataFrame:
    """Return a frame with one row per declared table: name, number of columns, recording tool and description."""
    import polars as pl

    rows = [(t.name, len(t.columns), t.recorded_by or "", t.doc) for t in tables]
    return pl.DataFrame(rows, schema=["table", "columns", "recorded by", "doc"], orient="row")
