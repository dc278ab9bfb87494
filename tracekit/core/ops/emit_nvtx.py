"""Parse the ranges of ``torch.autograd.profiler.emit_nvtx``: ``aten::conv2d, seq = 3, op_id = 9, sizes = [[…]]``.

If several of these ranges are nested, the outermost one is the op. An op has a qualified name such as ``aten::conv2d``,
or is a node of the backward pass. Before PyTorch 1.8, names were not qualified. A range with any other name is a scope,
such as a range of ``record_function`` or of the framework (``Optimizer.step#SGD.step``). Scopes form the path of the
ops inside them. They are also ops themselves, to which activities outside the ops of the framework are attributed.

A backward op belongs to the last forward op of the process that has the same sequence number, possibly on another
thread. The backward op is named after its forward op. Ops that an optimizer runs are neither forward nor backward.

Parse the names of PyProf's markers, which are Python literals. Names are parsed but never evaluated as code.

``{'mod': 'Tensor', 'op': 'uniform_', 'args': [{'name': '', 'type': 'tensor', 'shape': (6,), 'dtype': 'float32'}]}``
describes a call. ``{'traceMarker': ['file.py:12'], 'funcStack': '/<module>/Net::forward/relu'}`` describes the location
of the call in the program.
"""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.core.intervals.axis import replace_with_null_unless
from tracekit.core.ops.dialect import (
    Dialect,
    DialectTables,
    Timeline,
    add_parsed_names,
    build_op_tree_and_paths,
    build_timeline_instances,
    match_any,
)
from tracekit.core.ops.op_names import OpNames
from tracekit.core.ops.step_names import remove_star_expr
from tracekit.core.relations import THREAD
from tracekit.core.series import match_categories_expr
from tracekit.core.trees import find_roots
from tracekit.errors import warn

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_TEXT_LENGTH = 1 << 18
_BRACKETS = str.maketrans({"<": None, ">": None, "(": "[", ")": "]"})
_CALL = {
    "text": pl.String(),
    "mod": pl.String(),
    "op": pl.String(),
    "input_names": pl.String(),
    "input_shapes": pl.String(),
    "parameters": pl.String(),
    "data_type": pl.String(),
}
_LOCATION = {"text": pl.String(), "path": pl.String(), "stack_trace": pl.String()}
_EVALUATES = "autograd::engine::evaluate_function: "
_ARGUMENTS = r", (?:seq = |op_id = |sizes = \[|input_op_ids = \[)"
_SCOPE = r"[.#]"
_QUALIFIED = r"^[a-z_]\w*(?:::\w+)+$"
_BACKWARD = r"(?:Backward|Backwards)\d*$"
_UPDATES = r"(?i)(?:^|/)optimi[sz]er\b[^/]*/|aten::_(?:foreach|fused|amp_foreach)_[^/]*$"
_KEY = ["process_id", "sequence_number"]


def parse_op_markers(texts: pl.Series) -> pl.DataFrame:
    """Parse the op markers of PyProf.

    Args:
        texts: Distinct names of markers.

    Returns:
        One row per name that could be parsed: ``text``, ``mod``, ``op``, ``input_names``, ``input_shapes``,
        ``parameters`` (JSON, or null if there are none), ``data_type`` (data type of the last tensor).
    """
    return _parse_markers(texts, _CALL, _parse_call)


def parse_trace_markers(texts: pl.Series) -> pl.DataFrame:
    """Parse the trace markers of PyProf.

    Args:
        texts: Distinct names of markers.

    Returns:
        One row per name that could be parsed: ``text``, ``path`` (the function stack, with square brackets instead of
        parentheses and without angle brackets), ``stack_trace`` (one line per function, outermost first).
    """
    return _parse_markers(texts, _LOCATION, _parse_location)


def merge_program_settings(texts: pl.Series) -> dict[str, Any]:
    """Merge the program settings of markers such as ``{"model_config": {...}}``.

    If several markers have the same setting, the last value is used.
    """
    settings: dict[str, Any] = {}
    for text in texts.to_list():
        try:
            marker = json.loads(text) if len(text) <= MAX_TEXT_LENGTH else {}
        except (ValueError, RecursionError):
            continue
        config = marker.get("model_config") if isinstance(marker, dict) else None
        settings.update(config if isinstance(config, dict) else {})
    return settings


def to_json(value: Any) -> str:
    """Serialize a value as JSON without spaces. Keys are sorted, and floats have 17 significant digits."""
    if isinstance(value, float):
        return f"{value:.17g}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{to_json(value[k])}" for k in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(to_json(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _parse_markers(
    texts: pl.Series, schema: dict[str, Any], parse: Callable[[Any], dict[str, str | None]]
) -> pl.DataFrame:
    """Parse the names of markers into one row each, and warn about the names that cannot be parsed."""
    rows, failed = [], 0
    for text in texts.to_list():
        try:
            rows.append({"text": text, **parse(_parse_literal(text))})
        except (ValueError, SyntaxError, TypeError, KeyError, AttributeError, RecursionError, MemoryError):
            failed += 1
    if failed:
        warn(f"{failed} of {len(texts)} distinct PyProf markers cannot be parsed, so their ranges are ignored")
    return pl.DataFrame(rows, schema=schema, orient="row")


def _parse_literal(text: str) -> Any:
    """Return the value of a Python literal.

    Raises:
        ValueError: The literal is too long.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise ValueError(f"the literal is longer than {MAX_TEXT_LENGTH} characters")
    return ast.literal_eval(text)


def _parse_location(literal: dict[str, Any]) -> dict[str, str | None]:
    """Return the path and stack trace of a trace marker."""
    path = str(literal.get("funcStack", "")).translate(_BRACKETS)
    return {"path": path, "stack_trace": "\n".join(map(str, literal["traceMarker"]))}


def _parse_call(literal: dict[str, Any]) -> dict[str, str | None]:
    """Return the module, op, inputs and parameters of the call that an op marker of PyProf describes.

    Args:
        literal: The dict that was parsed from the name of the marker.

    Returns:
        The values of the columns ``_CALL``, keyed by column.
    """
    arguments = list(literal.get("args", []))
    names, shapes, types = [], [], [""]
    parameters: list[dict[str, Any]] = []
    for argument in arguments:
        if argument.get("type") == "tensor":
            names.append(str(argument.get("name", "")))
            shapes.append([int(n) for n in argument["shape"]] or None)
            types.append(str(argument.get("dtype", "")))
            continue
        parameters.append(_convert_argument_to_json_object(argument))
        if _is_last_argument(argument.get("value")):
            break
    return {
        "mod": str(literal["mod"]),
        "op": str(literal["op"]),
        "input_names": to_json(names) if names else None,
        "input_shapes": to_json(shapes) if shapes else None,
        "parameters": to_json(parameters) if parameters else None,
        "data_type": types[-1],
    }


def _is_last_argument(value: object) -> bool:
    """Return whether the arguments after a value are ignored. As in DLProf, None, True and False end the arguments."""
    return value is None or isinstance(value, bool)


def _convert_argument_to_json_object(argument: dict[str, Any]) -> dict[str, Any]:
    """Convert an argument that is not a tensor to a JSON object. A value without a data type becomes a string."""
    value, data_type = argument.get("value"), str(argument.get("dtype", ""))
    parameter = {"data_type": data_type, "name": str(argument.get("name", "")), "value": None}
    if _is_last_argument(value):
        return parameter | {"data_type": ""}
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not data_type:
        values = [f"{v:.17g}" if isinstance(v, float) else str(v) for v in values]
    return parameter | {"value": values}


def _has_emit_nvtx_ranges(texts: pl.DataFrame) -> bool:
    """Return whether PyTorch's ``emit_nvtx`` created some of the ranges, judging by their names."""
    is_emitted = pl.col("text").str.contains(r"^aten::\w+|, seq = \d+|Backward\d*, op_id = ")
    return match_any(texts, pl.col("domain").is_null() & is_emitted)


def _build_timeline(capture: DialectTables) -> Timeline:
    names = capture.ranges["text"].drop_nulls().unique()
    ranges = add_parsed_names(capture.ranges, _parse_names(names))
    parent = capture.nested_ranges.parent
    flags = ranges.select(pl.col("has_op_name", "may_have_op_name").fill_null(value=False))
    ranges = ranges.with_columns(is_framework_op=_compute_framework_op_mask(parent, *flags))
    op = _find_outermost_framework_ops(parent, ranges["is_framework_op"])
    tree, named = build_op_tree_and_paths(parent, ranges["label"], ranges.select(THREAD))
    ranges = ranges.with_columns(
        op_name=named["path"],
        label=named["label"],
        node=named["node"],
        parent=op.gather(parent),
        op=op,
        row=pl.int_range(pl.len()),
    )
    ops = ranges.filter(pl.col("op") == pl.col("row"))
    op_row = pl.repeat(None, ranges.height, dtype=pl.Int64, eager=True)
    op_row = op_row.scatter(ops["row"], pl.int_range(ops.height, eager=True))
    forward = op_row.gather(_find_forward_op_rows(ranges, ops))
    ops = ops.with_columns(parent=op_row.gather(ops["parent"]), forward=forward)
    return Timeline(build_timeline_instances(_add_names_and_directions(ops)), tree=tree)


def _parse_names(texts: pl.Series) -> pl.DataFrame:
    """Parse the distinct names of ranges.

    Args:
        texts: The distinct names (Categorical).

    Returns:
        One row per name:

        - ``text``: the name
        - ``has_op_name``: whether the name is certainly the name of an op
        - ``may_have_op_name``: whether the name may be the name of an op, depending on the enclosing ranges
        - ``label``, ``type`` (Categorical): name without arguments, and op type
        - ``sequence_number``, ``input_shapes`` (Categorical): arguments of the op
        - ``backward``: whether the op belongs to the backward pass
    """
    parsed = OpNames.parse(texts)
    names = _parse_names_without_arguments(parsed.names).select(pl.all().gather(parsed.rows["name"]))
    is_op = pl.col("has_op_name")
    return names.drop("name", "looks_like_op").with_columns(
        texts.alias("text"),
        sequence_number=pl.when(is_op).then(parsed.rows["sequence_number"]),
        input_shapes=pl.when(is_op).then(parsed.gather_input_shapes()),
    )


def _parse_names_without_arguments(names: pl.DataFrame) -> pl.DataFrame:
    """Parse names of ranges from which the arguments of ops were removed.

    Most names of a capture differ only in their arguments, so that few names have to be parsed.

    Args:
        names: ``name`` and ``looks_like_op``, as in ``OpNames.names``.

    Returns:
        The columns of ``names`` and those columns of ``_parse_names`` that do not depend on arguments.
    """
    text, label = pl.col("name"), pl.col("label")
    stripped = pl.when("looks_like_op").then(text.str.strip_prefix(_EVALUATES)).otherwise(text)
    frame = names.with_columns(label=stripped, evaluates=text.str.starts_with(_EVALUATES))
    is_backward = pl.col("evaluates") | label.str.contains(_BACKWARD)
    qualified = label.str.contains(_QUALIFIED) | is_backward | ~label.str.starts_with("aten::").any()
    may_have_op_name = pl.col("looks_like_op") & ~label.str.contains(_SCOPE)
    frame = frame.with_columns(has_op_name=may_have_op_name & qualified, may_have_op_name=may_have_op_name)
    return frame.select(
        *["name", "looks_like_op", "has_op_name", "may_have_op_name"],
        label.cast(pl.Categorical),
        type=pl.when("has_op_name").then(label.str.extract(r"([^:]+)$")).cast(pl.Categorical),
        backward=pl.col("has_op_name") & (is_backward | label.str.starts_with("torch::autograd::")),
    )


def name_without_arguments_expr(range_name: pl.Expr) -> pl.Expr:
    """Return an expression for the name of a range without the arguments of the op."""
    name = range_name.cast(pl.Binary)
    return name.bin.head(range_name.str.find(_ARGUMENTS).fill_null(name.bin.size())).cast(pl.String)


def _compute_framework_op_mask(parent: pl.Series, has_op_name: pl.Series, may_have_op_name: pl.Series) -> pl.Series:
    """Return whether each range is an op of the framework.

    A name is ambiguous if it may be, but is not certainly, the name of an op, such as ``detach`` inside
    ``aten::detach``. A range with an ambiguous name is an op if its nearest ancestor with an unambiguous name is an op.

    Args:
        parent: Row number of the parent of each range, or null.
        has_op_name: Whether the name of each range is certainly the name of an op.
        may_have_op_name: Whether the name of each range may be the name of an op.
    """
    return has_op_name.gather(find_roots(replace_with_null_unless(may_have_op_name & ~has_op_name, parent)))


def _find_outermost_framework_ops(parent: pl.Series, is_framework_op: pl.Series) -> pl.Series:
    """Return the row number of the op to which each range belongs.

    If ops of the framework are directly nested, all of them belong to the outermost one. Every other range is its own
    op.

    Args:
        parent: Row number of the parent of each range, or null.
        is_framework_op: Whether each range is an op of the framework.
    """
    return find_roots(replace_with_null_unless(is_framework_op & is_framework_op.gather(parent), parent))


def _find_forward_op_rows(ranges: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """Return the row number in ``ranges`` of the forward op of each op, or null if the op has none.

    Only backward ops have a forward op. A backward op and its forward op have the same sequence number.
    """
    numbered = ranges.drop_nulls("sequence_number").sort("start_ns", maintain_order=True)
    is_backward = ranges["backward"].gather(numbered["op"]).fill_null(False)  # noqa: FBT003
    forward = numbered.filter(~is_backward).unique(_KEY, keep="last").select(*_KEY, forward="op")
    pairs = numbered.filter(is_backward).join(forward, on=_KEY, maintain_order="left")
    pairs = pairs.unique("op", keep="first").select("op", "forward")
    return ops.select("op").join(pairs, on="op", how="left", maintain_order="left")["forward"]


def _add_names_and_directions(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the ops with their directions. Each backward op has the name and type of its forward op."""
    own = ops.select("op_name", "type")
    forward = own.select(pl.all().gather(ops["forward"]))
    node = pl.coalesce(ops["node"].gather(ops["forward"]).alias("forward_node"), "node")
    updates = match_categories_expr(pl.col("op_name"), lambda name: name.str.contains(_UPDATES))
    direction = (
        pl.when("backward").then(pl.lit("bprop")).when(pl.col("is_framework_op") & ~updates).then(pl.lit("fprop"))
    )
    return ops.select(
        *["start_ns", "end_ns", *THREAD, "range_id", "parent", "sequence_number", "forward"],
        op_name=pl.coalesce(forward["op_name"], own["op_name"]),
        op_type=pl.coalesce(forward["type"], own["type"], remove_star_expr(pl.col("label"))),
        direction=direction,
        input_shapes="input_shapes",
        node=node,
    )


DIALECT = Dialect(
    "emit-nvtx",
    "PyTorch ops, recorded by emit_nvtx, inside ranges of the program.",
    _has_emit_nvtx_ranges,
    _build_timeline,
)
