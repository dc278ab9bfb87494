"""The command ``tracekit schema``, which shows the declared tables and columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tracekit.cli.options import (
    correlated_option,
    create_name_completer,
    list_table_names,
    ops_option,
    printing_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from tracekit.cli.options import Printing
    from tracekit.schemas import TableSchema

    SchemaLookup = Callable[[str], TableSchema]


@click.command("schema")
@click.argument("table", metavar="[TABLE]", required=False, shell_complete=create_name_completer(list_table_names))
@correlated_option
@ops_option
@printing_options
def schema_command(*, table: str | None, correlated: bool, ops: bool, printing: Printing) -> None:
    """Show the declared columns of TABLE, or list the declared tables.

    With --format json, print the JSON Schema of a row of TABLE, or of all tables under $defs, for other programs.
    """
    from tracekit import schemas

    def find_schema(name: str) -> TableSchema:
        schema = schemas.correlated_schema(name) if correlated else schemas.table(name)
        return schemas.add_rollup_columns_to_schema(schema) if ops else schema

    if table:
        find_schema(table)
    with printing.open_output_page() as page:
        if printing.style == "json":
            page.print_json(
                schemas.build_json_schema(find_schema(table))
                if table
                else _build_json_schema_of_all_tables(find_schema),
                indent=2,
            )
        else:
            printing.print_frame(
                page,
                _describe_columns(find_schema(table)) if table else _describe_tables(find_schema),
                prose_columns=["doc"],
            )


def _build_json_schema_of_all_tables(find_schema: SchemaLookup) -> dict[str, Any]:
    """Return one JSON Schema document that defines the rows of all tables under ``$defs``."""
    from tracekit import schemas

    definitions = {name: schemas.build_json_schema(find_schema(name)) for name in schemas.table_names()}
    first = next(iter(definitions.values()))
    return {"$schema": first["$schema"], "$id": f"tracekit:tables:v{schemas.SCHEMA_VERSION}", "$defs": definitions}


def _describe_columns(schema: TableSchema) -> pl.DataFrame:
    """Return a frame with one row per column of a table: name, type, unit, nullability and description."""
    import polars as pl

    rows = [(c.name, c.type, c.unit or "", "yes" if c.nullable else "", c.doc) for c in schema.columns]
    return pl.DataFrame(rows, schema=["column", "type", "unit", "nullable", "doc"], orient="row")


def _describe_tables(find_schema: SchemaLookup) -> pl.DataFrame:
    """Return a frame with one row per declared table: name, number of columns, recording tool and description."""
    import polars as pl

    from tracekit import schemas

    rows = [(t.name, len(t.columns), t.recorded_by or "", t.doc) for t in map(find_schema, schemas.table_names())]
    return pl.DataFrame(rows, schema=["table", "columns", "recorded by", "doc"], orient="row")
