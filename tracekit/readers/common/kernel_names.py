"""Shorten the names of kernels as compilers demangle them."""

from __future__ import annotations

import re

_NESTED = re.compile(r"<[^<>()]*>|\([^<>()]*\)")
_MAX_NESTING = 64


def shorten_kernel_name(name: str) -> str:
    """Return the name of a kernel without its return type, parameters, template arguments and namespaces."""
    name = name.removesuffix(".kd")
    for _ in range(_MAX_NESTING):
        shorter = _NESTED.sub("", name)
        if shorter == name:
            break
        name = shorter
    return name.rpartition("::")[2].rpartition(" ")[2] or name
