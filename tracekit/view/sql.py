"""Translate SQL conditions, which users type above a table, into polars expressions.

sqlglot parses the condition. Only the constructs in this module are translated, so that a condition cannot read files,
call functions that allocate unlimited memory, or refer to other tables. ``polars.sql_expr`` would allow all of these.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.errors import TracekitError, create_choices_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlglot import exp

MAX_LENGTH = 4096
"""Maximum number of characters of a condition."""
MAX_NODES = 500
"""Maximum number of nodes in the syntax tree of a condition."""
HINT = "use columns, numbers, 'text', = <> < <= > >=, + - * / %, AND, OR, NOT, IN, BETWEEN, LIKE, ILIKE, IS NULL"


def where_expr(condition: str, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return the polars expression for an SQL condition, as it is written after WHERE.

    Args:
        condition: The condition, such as ``bytes > 1000 AND name LIKE '%gemm%'``.
        schema: Types of the columns by name.

    Raises:
        TracekitError: The condition is not valid, names an unknown column, or uses an unsupported construct.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    if len(condition) > MAX_LENGTH:
        raise TracekitError(f"the condition has more than {MAX_LENGTH} characters")
    try:
        tree = sqlglot.parse_one(f"SELECT 1 WHERE {condition}", dialect="duckdb")
        clause = tree.args.get("where")
    except (SqlglotError, RecursionError, ValueError) as error:
        raise TracekitError("the condition is not valid SQL", hint=HINT) from error
    others = {name for name, value in tree.args.items() if value and name not in ("expressions", "where", "kind")}
    if clause is None or others or type(tree).__name__ != "Select":
        raise TracekitError("the condition is not a single SQL expression", hint=HINT)
    if any(node.comments for node in tree.walk()):
        raise TracekitError("the condition must not contain comments", hint=HINT)
    if sum(1 for _ in clause.walk()) > MAX_NODES:
        raise TracekitError(f"the condition has more than {MAX_NODES} columns, values and operators")
    expression = _node_expr(clause.this, schema)
    try:
        kind = pl.DataFrame(schema=dict(schema)).select(expression.alias("condition")).schema["condition"]
    except pl.exceptions.PolarsError as error:
        raise TracekitError("the condition compares values of different types", hint=HINT) from error
    if kind != pl.Boolean:
        raise TracekitError("the condition is not a Boolean expression", hint=HINT)
    return expression


def _node_expr(node: exp.Expression, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return the polars expression for a node of the syntax tree."""
    name = type(node).__name__
    others = {argument for argument, value in node.args.items() if value} - _ARGUMENTS.get(name, {"this", "expression"})
    if others:
        unsupported = f"{name.upper()} with {', '.join(sorted(others))}"
        raise TracekitError(f"the condition uses {unsupported}, which is not supported", hint=HINT)
    if name in _ARITHMETIC:
        operands = (_node_expr(each, schema) for each in (node.this, node.expression) if each is not None)
        result = _ARITHMETIC[name](*(_widened_integer_expr(each, schema) for each in operands))
        return null_if_nan_expr(result, schema)
    if name in _BINARY:
        return _BINARY[name](_node_expr(node.this, schema), _node_expr(node.expression, schema))
    if name in _UNARY:
        return _UNARY[name](_node_expr(node.this, schema))
    if name in _SPECIAL:
        return _SPECIAL[name](node, schema)
    raise TracekitError(f"the condition uses {name.upper()}, which is not supported", hint=HINT)


def null_if_nan_expr(value: pl.Expr, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return an expression that replaces NaN with null, as SQLite does. polars would regard NaN as the largest number.

    Pages show NaN as an empty cell, like null.
    """
    try:
        kind = pl.LazyFrame(schema=dict(schema)).select(value.alias("value")).collect_schema()["value"]
    except pl.exceptions.PolarsError as error:
        raise TracekitError("the condition compares values of different types", hint=HINT) from error
    return value.fill_nan(None) if kind.is_float() else value


def _widened_integer_expr(operand: pl.Expr, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return the expression for an operand of arithmetic. Cast integers to 128 bits, in which one operation is exact.

    If the operand is itself the result of an operation, it must fit into 64 bits. Otherwise, polars raises an error
    when it evaluates the condition.
    """
    try:
        kind = pl.LazyFrame(schema=dict(schema)).select(operand.alias("operand")).collect_schema()["operand"]
    except pl.exceptions.PolarsError as error:
        raise TracekitError("the condition compares values of different types", hint=HINT) from error
    if not kind.is_numeric():
        raise TracekitError("the condition uses arithmetic with values that are not numbers", hint=HINT)
    if not kind.is_integer():
        return operand
    return (operand.cast(pl.Int64, strict=True) if kind == pl.Int128 else operand).cast(pl.Int128)


def _column_expr(node: Any, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return an expression for a column. Dictionary-encoded strings are cast to plain strings."""
    names = {column.lower(): column for column in schema}
    column = names.get(node.name.lower())
    if column is None or node.table:
        raise TracekitError(
            f"the table has no column {node.sql()!r}", hint=create_choices_hint("columns", schema, node.name)
        )
    kind = schema[column]
    if kind in (pl.Categorical, pl.Enum):
        return pl.col(column).cast(pl.String)
    return null_if_nan_expr(pl.col(column), schema)


def _literal_expr(node: Any, _: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return an expression for a literal, which is a string, a 64-bit integer or a float."""
    if node.is_string:
        return pl.lit(str(node.this))
    text = str(node.this)
    if text.isascii() and text.isdigit():
        if int(text[:20]) >= 2**63 or len(text) > len(str(2**63)):
            raise TracekitError("the condition contains an integer that does not fit into 64 bits")
        return pl.lit(int(text), pl.Int64)
    return pl.lit(float(text))


def _boolean_expr(node: Any, _: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return an expression for the literal TRUE or FALSE."""
    return pl.lit(bool(node.this))


def _in_expr(node: Any, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return an expression for the operator IN, which tests whether a value is in a list."""
    if not node.expressions:
        raise TracekitError("the condition uses IN without a list of values", hint=HINT)
    value = _node_expr(node.this, schema)
    return reduce(operator.or_, (value == _node_expr(item, schema) for item in node.expressions))


def _between_expr(node: Any, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return an expression for the operator BETWEEN. Both limits are inclusive."""
    value = _node_expr(node.this, schema)
    return (value >= _node_expr(node.args["low"], schema)) & (value <= _node_expr(node.args["high"], schema))


def _like_expr(node: Any, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return an expression for LIKE or ILIKE. In patterns, ``%`` matches any string and ``_`` any character."""
    if type(node.expression).__name__ != "Literal" or not node.expression.is_string:
        raise TracekitError("the condition uses LIKE without a pattern in quotes", hint=HINT)
    pattern = "".join({"%": ".*", "_": "."}.get(c) or _convert_character_to_regex(c) for c in str(node.expression.this))
    flags = "(?is)" if type(node).__name__ == "ILike" else "(?s)"
    matches = _node_expr(node.this, schema).cast(pl.String).str.contains(f"{flags}^{pattern}$")
    return ~matches if node.args.get("negate") else matches


def _convert_character_to_regex(character: str) -> str:
    """Return the regular expression for one character of a LIKE pattern."""
    return character if character.isalnum() or character in " _" else f"\\x{{{ord(character):x}}}"


def _is_operator_to_expr(node: Any, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return an expression for the operator IS, which tests whether a value is NULL, TRUE or FALSE."""
    value = _node_expr(node.this, schema)
    kind = type(node.expression).__name__
    if kind == "Null":
        return value.is_null()
    if kind == "Boolean":
        return value.eq_missing(pl.lit(bool(node.expression.this)))
    raise TracekitError("the condition uses IS with something other than NULL, TRUE or FALSE", hint=HINT)


def _null_if_zero_expr(divisor: pl.Expr) -> pl.Expr:
    """Return an expression for a divisor. As in SQL, the result of a division by zero is null."""
    return pl.when(divisor != 0).then(divisor)


def _remainder_expr(value: pl.Expr, divisor: pl.Expr) -> pl.Expr:
    """Return an expression for the remainder of a division. As in SQL, the remainder has the sign of the dividend."""
    remainder = value % _null_if_zero_expr(divisor)
    return pl.when((remainder != 0) & ((value < 0) != (divisor < 0))).then(remainder - divisor).otherwise(remainder)


def _parentheses_expr(node: Any, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return the expression in parentheses."""
    return _node_expr(node.this, schema)


_ARGUMENTS: Mapping[str, set[str]] = {
    "Between": {"this", "low", "high"},
    "Column": {"this", "table", "db", "catalog"},
    "Div": {"this", "expression", "typed", "safe"},
    "ILike": {"this", "expression", "negate"},
    "In": {"this", "expressions"},
    "Like": {"this", "expression", "negate"},
    "Literal": {"this", "is_string"},
}
"""Supported arguments of sqlglot nodes, by node class, if they are not ``this`` and ``expression``."""
_BINARY: Mapping[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "And": operator.and_,
    "Or": operator.or_,
    "EQ": operator.eq,
    "NEQ": operator.ne,
    "GT": operator.gt,
    "GTE": operator.ge,
    "LT": operator.lt,
    "LTE": operator.le,
}
_ARITHMETIC: Mapping[str, Callable[..., pl.Expr]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": lambda value, divisor: value / _null_if_zero_expr(divisor),
    "IntDiv": lambda value, divisor: value // _null_if_zero_expr(divisor),
    "Mod": _remainder_expr,
    "Neg": lambda value: 0 - value,  # polars negates integers of 128 bits in no other way
    "Abs": lambda value: value.abs(),
}
"""Operations with numbers."""
_UNARY: Mapping[str, Callable[[pl.Expr], pl.Expr]] = {
    "Not": operator.invert,
    "Lower": lambda value: value.cast(pl.String).str.to_lowercase(),
    "Upper": lambda value: value.cast(pl.String).str.to_uppercase(),
    "Length": lambda value: value.cast(pl.String).str.len_chars(),
}
_SPECIAL: Mapping[str, Callable[[Any, Mapping[str, pl.DataType]], pl.Expr]] = {
    "Column": _column_expr,
    "Literal": _literal_expr,
    "Boolean": _boolean_expr,
    "In": _in_expr,
    "Between": _between_expr,
    "Like": _like_expr,
    "ILike": _like_expr,
    "Is": _is_operator_to_expr,
    "Paren": _parentheses_expr,
}
