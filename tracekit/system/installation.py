"""How tracekit was installed, so that hints name the command that installs what is missing."""

from __future__ import annotations

import sys
from pathlib import Path

from tracekit.system.platform.modules import is_windows

_RUN_WITH_UV = "archive-v"
"""Start of the name of the folder in uv's cache that contains the environments of ``uvx``."""
_INSTALLED_WITH_PIPX = "venvs"
"""Name of the folder that contains the environments of ``pipx install``. Those of ``pipx run`` are in a cache."""


def create_extra_hint(extra: str, command: str = "") -> str:
    """Return the command that installs an optional part of tracekit, in the way in which tracekit was installed.

    The environments of ``uvx`` and ``pipx run`` are temporary. For these, the command runs tracekit with the part.

    Args:
        extra: Name of the part, one of ``optional-dependencies`` in ``pyproject.toml``.
        command: Command of tracekit that needs the part. If empty, it is not known.

    Examples:
        >>> from tracekit.system.installation import create_extra_hint
        >>> create_extra_hint("view", "view")
        "pip install 'tracekit[view]'"
    """
    quote = '"' if is_windows() else "'"  # the command prompt of Windows has no other quotes
    package = f"{quote}tracekit[{extra}]{quote}"
    program = f"tracekit {command}".rstrip()
    environment = Path(sys.prefix)
    if (environment / "uv-receipt.toml").is_file():
        return f"uv tool install {package}"
    if any(part.startswith(_RUN_WITH_UV) for part in environment.parts):
        return f"uvx --from {package} {program}"
    if (environment / "pipx_metadata.json").is_file():
        if environment.parent.name == _INSTALLED_WITH_PIPX:
            return f"pipx install --force {package}"
        return f"pipx run --spec {package} {program}"
    return f"pip install {package}"
