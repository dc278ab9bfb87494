"""Read the arguments of ops from the names and payloads of ranges.

- PyTorch's own traces (``record_shapes=True``) have payloads with ``Input Dims``, ``Input type``, ``Input Strides`` and
  ``Concrete Inputs``.
- The names of ``emit_nvtx(record_shapes=True)`` have ``sizes``, but neither types nor values.
- The markers of PyProf have shapes, types and values.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from tracekit.core.ops import emit_nvtx
from tracekit.core.ops.op_names import OpNames
from tracekit.core.series import map_categories_expr, match_categories_expr
from tracekit.core.work.call import MAX_NUMBER, OpCall, Shape
from tracekit.core.work.formulas import has_formula_expr

ARGUMENTS = ("shapes", "types", "strides", "values")
"""Columns of a signature, as JSON, besides the name of the op."""
MAX_TEXT_LENGTH = emit_nvtx.MAX_TEXT_LENGTH
"""Length in characters from which on arguments are ignored."""
_NUMBERS, _TEXTS = r"(\[[^\"]*\])", r'(\[(?:[^\]"]|"(?:[^"\\]|\\.)*")*\])'
_PAYLOAD = {
    "shapes": rf'"Input [Dd]ims": *{_NUMBERS}',
    "types": rf'"Input types?": *{_TEXTS}',
    "strides": rf'"Input [Ss]trides": *{_NUMBERS}',
    "values": rf'"Concrete [Ii]nputs": *{_TEXTS}',
}
_FIRST_KEY, _LAST_KEY = '"Record function id"', '"Ev Idx"'
_ARGUMENT_KEYS = ('"Input Dims"', '"Input type"', '"Input Strides"', '"Concrete Inputs"', '"In msg nelems"', '"dtype"')
_MESSAGE = (
    r'"Collective name": *("\w+")',
    r'"In msg nelems": *(\d+)',
    r'"Out msg nelems": *(\d+)',
    r'"dtype": *("\w+")',
)
_PYPROF = "{'mod'"
_MAX_DEPTH = 2


def parse_names(texts: pl.Series) -> pl.DataFrame:
    """Parse the distinct names of ranges.

    Args:
        texts: The distinct names (Categorical).

    Returns:
        One row per name of an op with a formula: ``text``, ``op`` (qualified name of the op), and ``shapes``, ``types``
        and ``values`` (JSON, null if the name does not contain them).
    """
    op, unknown = pl.col("op"), pl.lit(None, pl.String)
    strings = pl.DataFrame({"text": texts, "string": texts.cast(pl.String)}).drop_nulls("string")
    is_marker = strings["string"].str.starts_with(_PYPROF)
    markers, plain = strings.filter(is_marker), strings.filter(~is_marker)
    parsed = OpNames.parse(plain["string"])
    may_have_formula = parsed.names.select(_may_have_formula_expr(pl.col("name"))).to_series()
    columns = {"op": parsed.names["name"].cast(pl.Categorical).gather(parsed.rows["name"])}
    columns["shapes"] = parsed.gather_input_shapes()
    plain = plain.with_columns(**columns).filter(may_have_formula.gather(parsed.rows["name"]))
    named = [plain.select("text", "op", "shapes", types=unknown, values=unknown)]
    if markers.height:
        named.append(_parse_markers(markers).with_columns(pl.col("op", "shapes").cast(pl.Categorical)))
    qualified = pl.when(pl.col("shapes").is_not_null()).then(map_categories_expr(op, _qualify_expr)).otherwise("op")
    rows = pl.concat(named).with_columns(op=qualified)
    return rows.filter(match_categories_expr(op, has_formula_expr))


def contain_ops(names: pl.Series) -> bool:
    """Return whether some names of ranges, without arguments, may be those of ops with formulas."""
    may_be_op = pl.col("name").str.starts_with(_PYPROF) | _may_have_formula_expr(pl.col("name"))
    return bool(names.to_frame("name").select(may_be_op.any()).item())


def _may_have_formula_expr(name: pl.Expr) -> pl.Expr:
    return has_formula_expr(name) | has_formula_expr(_qualify_expr(name))


def _qualify_expr(name: pl.Expr) -> pl.Expr:
    """Return an expression for the qualified names of ops. Before PyTorch 1.8, names of ranges were not qualified."""
    return pl.when(name.str.contains("::", literal=True)).then(name).otherwise("aten::" + name)


def _parse_markers(markers: pl.DataFrame) -> pl.DataFrame:
    """Return the arguments in markers of PyProf, in the form of PyTorch's own traces."""
    parsed = emit_nvtx.parse_op_markers(markers["string"])
    rows = [
        _align_marker(shapes, kind, parameters)
        for shapes, kind, parameters in parsed.select("input_shapes", "data_type", "parameters").iter_rows()
    ]
    schema = {"shapes": pl.String, "types": pl.String, "values": pl.String}
    columns = pl.DataFrame(rows, schema=schema, orient="row")
    arguments = parsed.select(string="text", op="op").hstack(columns)
    return markers.join(arguments, on="string").select("text", "op", *schema)


def _align_marker(shapes: str | None, kind: str, parameters: str | None) -> tuple[str, str, str]:
    """Return the shapes, types and values of the arguments of a marker. Tensors come first, as in most ops."""
    tensors = [shape or [] for shape in json.loads(shapes or "[]")]
    others = json.loads(parameters or "[]")
    values = [str(p["value"]) if len(p["value"] or []) != 1 else str(p["value"][0]) for p in others]
    empty = [""] * len(tensors)
    return (
        json.dumps([*tensors, *([] for _ in others)]),
        json.dumps([kind] * len(tensors) + [""] * len(others)),
        json.dumps([*empty, *values]),
    )


def cut_arguments_expr(payload: pl.Expr) -> pl.Expr:
    """Return an expression for the part of a payload of PyTorch that contains the arguments, or for all of it.

    Numbers of events, which differ for each call, come before and after the arguments. Without them, payloads have few
    distinct values.
    """
    size = payload.str.len_bytes().cast(pl.Int64)

    def place_expr(key: str) -> pl.Expr:
        return payload.str.find(key, literal=True).cast(pl.Int64)

    places = [place_expr(key) for key in _ARGUMENT_KEYS]
    start, stop = pl.coalesce(place_expr(_FIRST_KEY), 0), place_expr(_LAST_KEY)
    start = pl.when(start < pl.min_horizontal(places)).then(start).otherwise(0)
    length = pl.when(stop > pl.max_horizontal(places)).then(stop).otherwise(size) - start
    return payload.cast(pl.Binary).bin.slice(start, length).cast(pl.String)


def payload_exprs(payload: pl.Expr) -> dict[str, pl.Expr]:
    """Return expressions for the arguments in a payload of PyTorch, as JSON, by column of ``ARGUMENTS``."""
    short = pl.when(payload.str.len_bytes() <= MAX_TEXT_LENGTH).then(payload)
    exprs = {column: short.str.extract(pattern) for column, pattern in _PAYLOAD.items()}
    message = pl.format('[{},"{}","{}",{}]', *(short.str.extract(pattern) for pattern in _MESSAGE))
    return exprs | {"values": pl.coalesce(message, exprs["values"])}


def parse_call(
    name: str,
    shapes: str | None,
    types: str | None = None,
    strides: str | None = None,
    values: str | None = None,
) -> OpCall | None:
    """Return the call of an op whose arguments are JSON, or None if its shapes are missing or invalid."""
    sizes = _parse_shapes(shapes)
    if not sizes:
        return None
    return OpCall(name, sizes, _parse_texts(types), _parse_texts(values), _parse_shapes(strides) or ())


def _parse_list(text: str | None) -> list[Any] | None:
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def _parse_texts(text: str | None) -> tuple[str, ...]:
    items = _parse_list(text) or []
    return tuple(item if isinstance(item, str) else "" for item in items)


def _parse_shapes(text: str | None) -> tuple[Shape | tuple[Shape, ...], ...] | None:
    """Return the shapes in a JSON list of lists of integers, some of which are lists of such lists, or None."""
    items = _parse_list(text)
    if items is None:
        return None
    shapes = tuple(_parse_shape(item, _MAX_DEPTH) for item in items)
    return None if None in shapes else shapes


def _parse_shape(item: Any, depth: int) -> Any:
    """Return a shape, or the shapes of a list of tensors, or None if an item is neither."""
    if not isinstance(item, list) or not depth:
        return None
    if all(type(n) is int and abs(n) <= MAX_NUMBER for n in item):
        return tuple(item)
    shapes = tuple(_parse_shape(inner, depth - 1) for inner in item)
    return None if None in shapes else shapes
