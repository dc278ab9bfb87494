"""Which kernels ran on Tensor Cores, and which ops could have, by name.

A kernel's name is all that most captures tell of it. The names are data, ``schemas/tensor_cores.toml``, with the
evidence for each; DLProf's own list is there too, for whoever needs its figures to the digit.
"""

from __future__ import annotations

import functools
import itertools
import tomllib
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from tracekit import schemas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Mode = Literal["extended", "dlprof"]
Framework = Literal["pytorch", "tensorflow"]
ELIGIBLE, MAYBE, NOT_ELIGIBLE = 0, 2, 3
_DECORATION = r"^(?:autograd::engine::evaluate_function: )?(?:aten::|torch::)?|backward\d+$"


def uses_tensor_cores(name: pl.Expr, *, mode: Mode = "extended") -> pl.Expr:
    """Say of each kernel whether it runs on Tensor Cores, as far as its name tells: n rows in, n rows out.

    Args:
        name: Demangled kernel names, as text or dictionary-encoded. Each distinct name is looked at once.
        mode: ``extended`` knows the libraries from Volta to Blackwell; ``dlprof`` answers as DLProf 1.8.0 did.

    Returns:
        Boolean; null where there is no name, and in ``extended`` mode where kernels with and without matrix
        instructions have such names: the products that XLA and Inductor write in Triton, and kernels of programs whose
        names speak of products. ``dlprof`` never answers null to a name.

    Raises:
        ValueError: There is no such mode.
    """
    if mode not in ("extended", "dlprof"):
        raise ValueError(f"mode is {mode!r}: give 'extended' or 'dlprof'")
    judge = _extended if mode == "extended" else _dlprof
    return name.map_batches(lambda names: _by_distinct(names, judge), return_dtype=pl.Boolean, is_elementwise=True)


def support(op_type: pl.Expr, *, framework: Framework = "pytorch", mode: Mode = "extended") -> pl.Expr:
    """Say of each op type whether Tensor Cores can serve it: n rows in, n rows out.

    Args:
        op_type: Types such as ``conv2d``; upper and lower case are the same.
        framework: Whose ops they are.
        mode: ``dlprof`` knows the types that DLProf 1.8.0 knew; ``extended`` more, also as PyTorch's own ranges spell
            them (``aten::addmm``, ``AddmmBackward0``) and as XLA does.

    Returns:
        Int8, DLProf's ``tc_support_status``: 0 eligible, 2 depends on what is inside, 3 not eligible; null stays null.
    """
    lists = [_ops(framework), *([_ops("extended")] if mode == "extended" else [])]
    eligible, maybe = ([t for found in lists for t in found[kind]] for kind in ("eligible", "maybe"))
    plain = op_type.cast(pl.String).str.to_lowercase()
    if mode == "extended":
        plain = plain.str.replace_all(_DECORATION, "")
    could, might = (plain.is_in(list(types)).cast(pl.Int8) for types in (eligible, set(maybe) - set(eligible)))
    return could * (ELIGIBLE - NOT_ELIGIBLE) + might * (MAYBE - NOT_ELIGIBLE) + NOT_ELIGIBLE


def eligible(op_type: pl.Expr, *, framework: Framework = "pytorch", mode: Mode = "extended") -> pl.Expr:
    """Say of each op type whether it could run on Tensor Cores: n rows in, n rows out, Boolean; null stays null.

    Whoever knows the kernels of an op adds those that did: an op with a Tensor Core kernel is eligible whatever its
    type. The arguments are those of ``support``.
    """
    return support(op_type, framework=framework, mode=mode) == ELIGIBLE


def patterns() -> list[dict[str, str]]:
    """Return what the extended mode knows: ``regex``, ``doc``, ``since`` and ``evidence`` of each kind of kernel."""
    return [dict(p) for p in _declared()["uses"]]


def _by_distinct(names: pl.Series, judge: Callable[[pl.Series], pl.Series]) -> pl.Series:
    distinct = names.unique().drop_nulls()
    verdicts = pl.DataFrame(
        {"name": distinct, "uses": judge(distinct.cast(pl.String))}, schema_overrides={"uses": pl.Boolean}
    )
    return pl.DataFrame({"name": names}).join(verdicts, on="name", how="left", maintain_order="left")["uses"]


def _extended(names: pl.Series) -> pl.Series:
    never, uses, unknown = (pl.any_horizontal(map(_matches, _declared()[k])) for k in ("never", "uses", "unknown"))
    known = pl.when(never).then(pl.lit(value=False)).when(uses).then(pl.lit(value=True))
    return names.to_frame("name").select(known.when(~unknown).then(pl.lit(value=False))).to_series()


def _matches(rule: Mapping[str, str]) -> pl.Expr:
    matches = pl.col("name").str.contains(rule["regex"])
    return matches & ~pl.col("name").str.contains(rule["unless"]) if "unless" in rule else matches


def _dlprof(names: pl.Series) -> pl.Series:
    told: Mapping[str, Any] = _declared()["dlprof"]
    instead: Mapping[str, Any] = told["instead"]
    rest = _holds(names, told)
    return _holds(names, instead).zip_with(names.str.contains(instead["when"], literal=True), rest)


def _holds(names: pl.Series, told: Mapping[str, Any]) -> pl.Series:
    frame = names.to_frame("name")
    wanted = pl.col("name").str.contains_any([*told["any"], *_sized(told["sizes"])])
    return frame.select(wanted & ~pl.col("name").str.contains_any(told["none"])).to_series()


def _sized(groups: Iterable[Mapping[str, Any]]) -> list[str]:
    return [s.replace("{n}", str(n)) for g in groups for s, n in itertools.product(g["any"], g["n"])]


def _ops(framework: str) -> Mapping[str, list[str]]:
    found: Mapping[str, Mapping[str, list[str]]] = _declared()["ops"]
    return found[framework]


@functools.cache
def _declared() -> dict[str, Any]:
    return tomllib.loads((schemas.FOLDER / "tensor_cores.toml").read_text("utf-8"))
