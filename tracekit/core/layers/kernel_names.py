"""Normalize names of kernels, so that two profilers and two algorithms of one library have comparable names.

Profilers demangle names differently: nsys writes ``softmax<(int)11, (bool)0>(T2 *)`` and the PyTorch profiler
``softmax<11, false>(float*)``. A kernel of another algorithm has
another name, but often the same base name or at least the same class.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tracekit.core.categories import classify_kernel

_MAX_NAME_CHARS = 1 << 14
"""Length beyond which a name is compared as it is, because removing its arguments would take too long."""
_MAX_NESTING = 64
_UNNAMED = re.compile(r"\(anonymous namespace\)|<unnamed>")
_INSTANCES = re.compile(r"\(instance (\d+)\)")
_PARENTHESES = re.compile(r"\([^()]*\)")
_OMITTED = re.compile(r"\b(?:void|const|\.kd)\b|\[clone [^\]]*\]|[ \[\]{}*&]")
_SUFFIXES = re.compile(r"\b(\d+)(?:ull|ul|u|ll|l)\b")
_BOOLS = re.compile(r"\b(?:true|false)\b")
_NUMBERS = re.compile(r"\d+")


class KernelNameParts(NamedTuple):
    """The parts of the name of a kernel that are compared, from the most to the least specific one.

    Attributes:
        name: Name of the function with its template arguments, spelled the same for all profilers.
        base_name: Name of the function without template arguments, or with ``#`` for each number if there are none.
        kernel_class: Class of the kernel, as the diagnosis classifies it.
    """

    name: str
    base_name: str
    kernel_class: str


def split_kernel_name(name: str) -> KernelNameParts:
    """Return the parts of the name of a kernel that are compared.

    Args:
        name: The demangled name.
    """
    kernel_class = classify_kernel(name).diagnosis_class
    if len(name) > _MAX_NAME_CHARS:
        return KernelNameParts(name, name, kernel_class)
    text = _INSTANCES.sub(r"#\1", _UNNAMED.sub("@", name))
    for _ in range(_MAX_NESTING):
        text, count = _PARENTHESES.subn("", text)
        if not count:
            break
    text = _SUFFIXES.sub(r"\1", _OMITTED.sub("", text))
    text = _BOOLS.sub(lambda match: str(int(match[0] == "true")), text)
    base = text.partition("<")[0]
    return KernelNameParts(text, _NUMBERS.sub("#", base or text), kernel_class)
