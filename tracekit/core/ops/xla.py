"""Parse the ranges of XLA (domain ``TSL``), which JAX and TensorFlow use.

A thunk runs one operation of the compiled program. Its range has a name such as
``Thunk:#name=jit(step)/encoder/dot_general,hlo_op=fusion.2#``. The path of its op consists of the program
(``hlo_module``), the scopes of the source (``jax.named_scope``) and the operation. Transformations that JAX writes
around scopes, such as ``transpose(jvp(encoder))``, determine the direction and are not part of the path.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.ops import identity
from tracekit.core.ops.dialect import PYTHON_FUNCTIONS, Dialect, DialectTables, Timeline

DOMAIN, TRACE_ME = "TSL", "TraceMe"
"""Domain of the ranges of programs and ops, and domain of the functions of XLA itself, which its profiler records."""
_THUNK, _MODULE = r"^Thunk:#", r"^XlaModule:#"
_NAME = r"(?s)[#,]name=(.*?)(?:,(?:hlo_op|hlo_module|unique_hlo_op_id|program_id)=.*)?#$"
_ROOT = r"^p?jit\([^()]*\)(?:/|$)"
_AROUND = r"\b(?:transpose|jvp|vmap|checkpoint|remat|custom_jvp|custom_vjp)\(([^()]*)\)"
_DEEPEST = 4
_NUMBER = r"(?:[._]\d+)+$"


def _has_xla_ranges(texts: pl.DataFrame) -> bool:
    is_xla = (pl.col("domain") == DOMAIN) & pl.col("text").str.contains(_MODULE + "|" + _THUNK)
    return bool(texts.select(is_xla.any()).item())


def _build_timeline(capture: DialectTables) -> Timeline:
    parsed = _parse_names(identity.read_domain_texts(capture, DOMAIN))
    return identity.build_domain_timeline(capture, DOMAIN, parsed, ignored_domains=(TRACE_ME, PYTHON_FUNCTIONS))


def _parse_names(texts: pl.DataFrame) -> pl.DataFrame:
    """Parse range names into the columns that ``build_domain_timeline`` requires, such as ``label`` and ``type``."""
    text = pl.col("text")
    name, op = text.str.extract(_NAME).fill_null(""), text.str.extract(r"[#,]hlo_op=([^,#]+)")
    scope = name.str.replace(_ROOT, "")
    for _ in range(_DEEPEST):
        scope = scope.str.replace_all(_AROUND, "$1")
    scope = scope.str.replace_all("/+", "/").str.strip_chars("/")
    kind = pl.coalesce(op, scope.str.extract(r"([^/]+)$"), pl.lit("thunk"))
    path = pl.concat_str(pl.when(scope != "").then(scope), op, separator="/", ignore_nulls=True)
    thunk = text.str.contains(_THUNK)
    direction = pl.when(name.str.contains("transpose(", literal=True)).then(pl.lit("bprop"))
    return texts.select(
        "text",
        label=pl.when(thunk).then(pl.when(path != "").then(path).otherwise(kind)),
        scope=pl.coalesce(text.str.extract(r"[#,]hlo_module=([^,#]+)"), text.str.extract(r"^(\w+):#")),
        type=kind.str.replace(_NUMBER, ""),
        direction=direction.when(name.str.contains("jvp(", literal=True)).then(pl.lit("fprop")),
    )


DIALECT = Dialect(
    "xla", "XLA's ranges in JAX and TensorFlow: program, scopes, operation.", _has_xla_ranges, _build_timeline
)
