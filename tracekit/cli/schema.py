"""``tracekit schema``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tracekit.cli.options import completes, correlated_option, ops_option, printing_options, table_names

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from tracekit.cli.options import Printing
    from tracekit.schemas import TableSchema

    Get = Callable[[str], TableSchema]


@click.command("schema")
@click.argument("table", metavar="[TABLE]", required=False, shell_complete=completes(table_names))
@correlated_option
@ops_option
@printing_options
def command(*, table: str | None, correlated: bool, ops: bool, printing: Printing) -> None:
    """Show the declared columns of TABLE, or list the declared tables.

    With --format json: the JSON Schema of a row of TABLE, or of all tables under $defs; the contract for other tools.
    """
    from tracekit import schemas

    def get(name: str) -> TableSchema:
        found = schemas.correlated(name) if correlated else schemas.table(name)
        return schemas.rolled_up(found) if ops else found

    if table:
        get(table)
    with printing.page() as page:
        if printing.style == "json":
            page.json(schemas.json_schema(get(table)) if table else _definitions(get), indent=2)
        else:
            printing.show(page, _columns(get(table)) if table else _tables(get), prose=["doc"])


def _definitions(get: Get) -> dict[str, Any]:
    from tracekit import schemas

    made = {name: schemas.json_schema(get(name)) for name in schemas.tables()}
    first = next(iter(made.values()))
    return {"$schema": first["$schema"], "$id": f"tracekit:tables:v{schemas.SCHEMA_VERSION}", "$defs": made}


def _columns(schema: TableSchema) -> pl.DataFrame:
    import polars as pl

    rows = [(c.name, c.type, c.unit or "", "yes" if c.nullable else "", c.doc) for c in schema.columns]
    return pl.DataFrame(rows, schema=["column", "type", "unit", "nullable", "doc"], orient="row")


def _tables(get: Get) -> pl.DataFrame:
    import polars as pl

    from tracekit import schemas

    rows = [(t.name, len(t.columns), t.recorded_by or "", t.doc) for t in map(get, schemas.tables())]
    return pl.DataFrame(rows, schema=["table", "columns", "recorded by", "doc"], orient="row")
