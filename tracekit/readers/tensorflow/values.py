"""Values of attributes as JSON."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracekit.readers.common.protobuf import messages
from tracekit.readers.tensorflow import types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONGEST = 1 << 12
"""Bytes of a text, and values of a list, that are told; of longer ones how many there are."""


class Value(NamedTuple):
    """A value: what it is, its JSON, its text if it is a text or a type, and the functions that it names."""

    kind: str
    json: str
    text: str | None
    functions: tuple[str, ...]


def value(octets: bytes) -> Value:
    """Take a value apart.

    Raises:
        Damage: It is none.
    """
    found = messages.parse(messages.message(types.FILE, "AttrValue"), octets, "the value of an attribute")
    kind = found.WhichOneof("value")
    plain = _plain(found, kind)
    told = plain if kind in ("s", "type") and isinstance(plain, str) else None
    return Value(kind or "", dumped(plain), told, tuple(_functions(found)))


def tensor(dtype: int, shape: bytes | None) -> Value:
    """Return what is told of a tensor.

    Raises:
        Damage: Its shape is none.
    """
    dims = messages.parse(messages.message(types.FILE, "TensorShapeProto"), shape or b"", "the shape of a tensor")
    return Value("tensor", dumped({"dtype": types.name(dtype), "shape": _shape(dims)}), None, ())


def dumped(plain: Any) -> str:
    """Write JSON without spaces."""
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _plain(found: Any, kind: str | None) -> Any:
    if kind is None:
        return None
    if kind == "list":
        return _list(found.list)
    return _PLAIN[kind](getattr(found, kind))


def _list(found: Any) -> Any:
    values = [(name, given) for name in _LISTED if (given := getattr(found, name))]
    if sum(len(given) for _, given in values) > LONGEST:
        return {"values": sum(len(given) for _, given in values)}
    return [_PLAIN[name](one) for name, given in values for one in given]


def _text(found: bytes) -> Any:
    return found.decode("utf-8", "replace") if len(found) <= LONGEST else {"bytes": len(found)}


def _real(found: float) -> Any:
    return float(str(np.float32(found))) if math.isfinite(found) else str(found)


def _shape(found: Any) -> Any:
    if found.unknown_rank:
        return None
    return [d.size for d in found.dim] if len(found.dim) <= LONGEST else {"values": len(found.dim)}


def _tensor(found: Any) -> Any:
    return {"dtype": types.name(found.dtype), "shape": _shape(found.tensor_shape)}


def _function(found: Any) -> Any:
    given = {key: _plain(v, v.WhichOneof("value")) for key, v in sorted(found.attr.items())}
    return {"function": _text(found.name), **({"attributes": given} if given else {})}


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "s": _text,
    "i": int,
    "f": _real,
    "b": bool,
    "type": types.name,
    "shape": _shape,
    "tensor": _tensor,
    "func": _function,
    "placeholder": lambda found: {"placeholder": _text(found)},
}
_LISTED = ("s", "i", "f", "b", "type", "shape", "tensor", "func")


def _functions(found: Any) -> Iterator[str]:
    """Yield the functions that a value names, and those that they are specialised with."""
    kind = found.WhichOneof("value")
    for function in [found.func] if kind == "func" else found.list.func if kind == "list" else ():
        yield function.name.decode("utf-8", "replace")
        for _, inner in sorted(function.attr.items()):
            yield from _functions(inner)
