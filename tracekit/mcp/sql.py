"""Run a query over the tables of a capture, in a database that can read nothing else."""

from __future__ import annotations

import math
import threading
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tracekit import schemas
from tracekit.answers.envelope import AnswerColumn, AnswerTable
from tracekit.errors import TracekitError, get_first_line_of_message

if TYPE_CHECKING:
    from collections.abc import Callable

    import duckdb
    import pyarrow as pa

    from tracekit.core.diagnosis.answer import Status

MAX_SQL = 20_000
"""Maximum number of characters of a query."""
MAX_TABLE_ROWS = 20_000_000
"""Maximum number of rows of all tables that a query names."""
MAX_ROWS = 10_000
"""Maximum number of rows of a result."""
MAX_COLUMNS = 1_000
"""Maximum number of columns of a result."""
MAX_CHARACTERS = 1 << 24
"""Maximum number of characters and bytes of all values of a result."""
MAX_DEPTH = 32
"""Maximum number of lists and structures inside one another in a value."""
_DIGITS_OF_FLOAT = 15
_SETTINGS = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "extension_directory": "/",
    "home_directory": "/",
    "secret_directory": "/",
    "temp_directory": "",
    "threads": "2",
}
_LOCKS = ("SET python_enable_replacements = false", "SET lock_configuration = true")
_TYPES = {
    "BIGINT": "int64",
    "BOOLEAN": "bool",
    "DOUBLE": "float64",
    "FLOAT": "float64",
    "HUGEINT": "int128",
    "INTEGER": "int32",
    "UBIGINT": "uint64",
    "VARCHAR": "string",
}


def run_query(
    sql: str,
    count_rows: Callable[[str], int],
    read_table: Callable[[str], pa.Table],
    *,
    memory_bytes: int,
    seconds: float,
) -> tuple[AnswerTable, tuple[str, ...]]:
    """Return the rows of a SELECT statement, at most ``MAX_ROWS``, and the names of the tables that it reads.

    Args:
        sql: The statement.
        count_rows: Function that returns the number of rows of a table.
        read_table: Function that returns a table. Only tables that the statement names are read.
        memory_bytes: Memory that the database may use.
        seconds: Time after which the statement is interrupted.

    Raises:
        TracekitError: The text is not one SELECT statement, it names something else than tables, it cannot be computed,
            or it takes too long.
    """
    import duckdb

    if len(sql) > MAX_SQL:
        raise TracekitError(f"the query has more than {MAX_SQL:,} characters")
    if "\0" in sql or any("\ud800" <= character <= "\udfff" for character in sql):
        raise TracekitError("the query contains a character that is not valid in SQL")
    settings: dict[str, str | bool | int | float | list[str]] = {
        **_SETTINGS,
        "memory_limit": f"{max(memory_bytes >> 20, 64)}MiB",
    }
    with duckdb.connect(":memory:", config=settings) as database:
        for lock in _LOCKS:
            database.execute(lock)
        timer = threading.Timer(seconds, database.interrupt)
        timer.daemon = True
        timer.start()
        try:
            statement, names = _parse(database, sql)
            _register(database, names, count_rows, read_table)
            result = database.execute(statement)
            columns = [(str(name), str(kind)) for name, kind, *_ in result.description or ()]
            if len(columns) > MAX_COLUMNS:
                message = f"the query has {len(columns):,} columns, which is more than {MAX_COLUMNS:,}"
                raise TracekitError(message, hint="select fewer columns")
            rows = _fetch(result)
        except duckdb.InterruptException as e:
            hint = "ask for less, such as a shorter time or an aggregate"
            raise TracekitError(f"the query took longer than {seconds:.3g} s", hint=hint) from e
        except (duckdb.Error, UnicodeError, RuntimeError) as e:
            message = f"the query cannot be computed: {get_first_line_of_message(e)}"
            raise TracekitError(message, hint="the resource tracekit://tables lists the tables and columns") from e
        finally:
            timer.cancel()
    return _build_table(columns, rows), names


def _fetch(result: duckdb.DuckDBPyConnection) -> list[Any]:
    """Return the first rows of a result as JSON has their values, and one more if there are more.

    Raises:
        TracekitError: The values are too large, or are nested too deeply.
    """
    rows: list[Any] = []
    rest = MAX_CHARACTERS
    while len(rows) <= MAX_ROWS and (row := result.fetchone()) is not None:
        values = tuple(_to_json(value) for value in row)
        rest -= sum(map(_count_characters, values))
        if rest < 0:
            message = f"the values of the first {len(rows) + 1:,} rows have more than {MAX_CHARACTERS:,} characters"
            raise TracekitError(
                message, hint="select fewer columns or rows, or a part of each text with left(text, 100)"
            )
        rows.append(values)
    return rows


def _count_characters(value: Any) -> int:
    """Return the number of characters of the texts in a value, and of its numbers at least one each."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return 1 + sum(map(_count_characters, value))
    return 1 + sum(map(_count_characters, [*value, *value.values()])) if isinstance(value, dict) else 1


def _parse(database: duckdb.DuckDBPyConnection, sql: str) -> tuple[duckdb.Statement, tuple[str, ...]]:
    """Return the only statement of a text, and the tables that it names."""
    import duckdb

    statements = database.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise TracekitError("the query is not one SELECT statement", hint="write one SELECT statement")
    return statements[0], tuple(sorted(str(name) for name in database.get_table_names(sql)))


def _register(
    database: duckdb.DuckDBPyConnection,
    names: tuple[str, ...],
    count_rows: Callable[[str], int],
    read_table: Callable[[str], pa.Table],
) -> None:
    """Make the tables that a query names known to the database. Other names cause an error of the database."""
    known = [name for name in dict.fromkeys(name.lower() for name in names) if name in schemas.table_names()]
    total = sum(count_rows(name) for name in known)
    if total > MAX_TABLE_ROWS:
        message = f"the tables of the query have {total:,} rows, which is more than {MAX_TABLE_ROWS:,}"
        raise TracekitError(message, hint="use timeline_slice or a report for tables of this size")
    for name in known:
        database.register(name, read_table(name))


def _build_table(columns: list[tuple[str, str]], rows: list[Any]) -> AnswerTable:
    """Return the rows of a result as the table of an answer."""
    names = _choose_column_names([name for name, _ in columns])
    described = tuple(
        AnswerColumn(name, _TYPES.get(kind, kind.lower()), None, "")
        for name, (_, kind) in zip(names, columns, strict=True)
    )
    values = tuple(rows[:MAX_ROWS])
    is_cut = len(rows) > MAX_ROWS
    reason = f"only the first {MAX_ROWS:,} rows are returned" if is_cut else None if rows else "no row meets the query"
    hint = "aggregate the rows, or write LIMIT and OFFSET" if is_cut else None
    status: Status = "answered" if rows else "nothing_found"
    return AnswerTable("query", "query", status, reason, hint, described, values, len(values))


def _choose_column_names(names: list[str]) -> list[str]:
    """Return different names of columns: the second column of the name ``a`` is ``a:1``, if no column has this name."""
    counts: Counter[str] = Counter()
    known = set(names)
    chosen = []
    for name in names:
        number, counts[name] = counts[name], counts[name] + 1
        unique = name
        while number and unique in known:
            unique = f"{name}:{number}"
            number += 1
        known.add(unique)
        chosen.append(unique)
    return chosen


def _to_json(value: Any, depth: int = 0) -> Any:
    """Return a value of the database as JSON has it. Numbers that are not exact in floats become strings.

    Raises:
        TracekitError: The value is nested too deeply.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Decimal):
        is_exact = len(value.as_tuple().digits) <= _DIGITS_OF_FLOAT
        return float(value) if is_exact and value.is_finite() else str(value)
    if depth >= MAX_DEPTH:
        message = f"a value of the query has more than {MAX_DEPTH} lists and structures inside one another"
        raise TracekitError(message, hint="flatten it with unnest, or select a part of it")
    if isinstance(value, (list, tuple)):
        return [_to_json(each, depth + 1) for each in value]
    if isinstance(value, dict):
        return {str(name): _to_json(each, depth + 1) for name, each in value.items()}
    return value.hex() if isinstance(value, bytes) else str(value)
