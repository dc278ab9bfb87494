"""Print constraints that install the lowest declared version of each dependency: ``python tests/lowest.py``.

Everything else gets the version of ``constraints.txt``, but for what polars brings along in its own version.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOOR = re.compile(r"(?P<name>[A-Za-z0-9._-]+)>=(?P<version>[0-9][0-9.]*)")


def floors() -> dict[str, str]:
    """Return the lowest declared version of each dependency by name.

    Raises:
        ValueError: A dependency is not declared as ``name>=version``.
    """
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    lowest = {}
    for requirement in declared:
        match = FLOOR.fullmatch(requirement)
        if match is None:
            raise ValueError(f"{requirement!r} is not declared as name>=version")
        lowest[match["name"]] = match["version"]
    return lowest


def constraints() -> list[str]:
    """Return the constraints, one a line."""
    lowest = floors()
    pinned = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    others = [p for p in pinned if "==" in p and p.partition("==")[0] not in lowest and not p.startswith("polars-")]
    return [*(f"{name}=={version}" for name, version in lowest.items()), *others]


if __name__ == "__main__":
    print("\n".join(constraints()))
