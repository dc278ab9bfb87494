"""Write every generated file in ``schemas`` and ``tracekit`` that is out of date, or report them with ``--check``.

``make generate`` runs this program, and then ``docs/generate.py`` for the pages of the documentation. Two kinds of
generated files need no program: ``schemas/_compiled.json`` is written when tracekit is imported, and ``make native``
compiles the programs in C.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.generate import messages

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


def generate_files() -> Iterator[tuple[Path, bytes]]:
    """Yield the path and content of each generated file. The messages are first, because others depend on them."""
    for path, source in messages.FILES.items():
        yield path, messages.compile_messages(source)

    from schemas.generate import answer_schema, contract, correlation_reads, names, why_schema

    for generated in (correlation_reads, why_schema, answer_schema, contract, names):
        yield generated.FILE, generated.text().encode()
    yield why_schema.WHAT_IF_FILE, why_schema.what_if_text().encode()


def main(*arguments: str) -> int:
    """Write the files that are out of date, or report them with ``--check``; return the exit status."""
    stale = []
    for path, content in generate_files():
        if not path.exists() or path.read_bytes() != content:
            stale.append(str(path.relative_to(ROOT)))
            if "--check" not in arguments:
                path.write_bytes(content)

    from tracekit.native import compile as native

    is_native_stale = native.DIGESTS.read_text("utf-8") != native.compute_digests()
    if stale:
        print("out of date, run 'make generate':" if "--check" in arguments else "written:", *stale)
    if is_native_stale:
        print("a program in C, its settings or its compiled form has changed. Hint: run 'make native'.")
    return int(is_native_stale or (bool(stale) and "--check" in arguments))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
