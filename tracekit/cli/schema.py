"""``tracekit schema``."""

from __future__ import annotations

import json

import click

from tracekit.cli.output import show


@click.command("schema")
@click.argument("table", metavar="[TABLE]", required=False)
@click.option("--correlated", is_flag=True, help="With the columns that correlation adds.")
@click.option("--format", "style", type=click.Choice(["table", "csv", "json"]), default="table", help="json is JSON Schema.")
def command(table: str | None, correlated: bool, style: str) -> None:  # noqa: FBT001
    """Show the declared columns of TABLE, or list the declared tables.

    With --format json: the JSON Schema of a row, or of all tables; the contract for other tools.
    """
    import polars as pl

    from tracekit import schemas

    get = schemas.correlated if correlated else schemas.table
    if style == "json":
        made = schemas.json_schema(get(table)) if table else {n: schemas.json_schema(get(n)) for n in schemas.tables()}
        click.echo(json.dumps(made, indent=2, ensure_ascii=False))
    elif table:
        columns = [(c.name, c.type, c.unit or "", "yes" if c.nullable else "", c.doc) for c in get(table).columns]
        show(pl.DataFrame(columns, schema=["column", "type", "unit", "nullable", "doc"], orient="row"), style)
    else:
        rows = [(t.name, len(t.columns), t.recorded_by or "", t.doc) for t in map(get, schemas.tables())]
        show(pl.DataFrame(rows, schema=["table", "columns", "recorded by", "doc"], orient="row"), style)
