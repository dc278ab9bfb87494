r"""Convert names and paths to those of the running system, and check names that Windows reserves.

Windows does not accept all names of files: some characters, a dot or space at the end, and names of devices such as
``NUL.json`` are not allowed. It separates the parts of paths by backslashes, and shares of other machines have paths
that begin with two of them. Paths of more than 259 characters need the prefix ``\\?\`` unless long paths are enabled.

Source: Microsoft, "Naming Files, Paths, and Namespaces".
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from tracekit.system.platform.modules import is_windows

if TYPE_CHECKING:
    from pathlib import Path

_DEVICES = re.compile(
    r"(?:CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[0-9¹²³]) *(?:[.:].*)?", re.IGNORECASE | re.DOTALL
)
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
_MAX_CHARACTERS, _MAX_SUFFIX = 120, 20


def is_accepted(name: str) -> bool:
    """Return whether the running system accepts the name of a file. Linux and macOS accept all names."""
    return not is_windows() or not is_reserved(name)


def is_reserved(name: str) -> bool:
    """Return whether Windows does not accept the name of a file, or takes it for a device, a stream or another name."""
    return bool(_DEVICES.fullmatch(name) or _FORBIDDEN.search(name)) or name != name.rstrip(". ")


def create_file_name(name: str) -> str:
    """Return a name of a temporary file that the running system accepts and that resembles a name from elsewhere.

    The suffix stays, because it tells the format. On Linux and macOS, the name is returned unchanged.
    """
    if not is_windows():
        return name
    accepted = _FORBIDDEN.sub("_", name).rstrip(". ") or "_"
    if len(accepted) > _MAX_CHARACTERS:
        accepted = accepted[: _MAX_CHARACTERS - _MAX_SUFFIX] + accepted[-_MAX_SUFFIX:]
    return f"_{accepted}" if is_reserved(accepted) else accepted


def build_sqlite_uri(path: Path) -> str:
    """Return a URI by which SQLite opens a file. SQLite accepts no host, so a share of Windows needs more slashes."""
    uri = path.absolute().as_uri()
    return uri if uri.startswith("file:///") else f"file:////{uri.removeprefix('file://')}"


def convert_file_url(url: str) -> str:
    """Return the path of a URL with the scheme ``file``. On Windows, its host is the machine that has the share."""
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    parts = urlsplit(url)
    if is_windows() and parts.netloc not in ("", "localhost"):
        return url2pathname(f"//{parts.netloc}{parts.path}")
    return url2pathname(parts.path)


def use_slashes(path: str) -> str:
    """Return a path whose parts are separated by slashes. On Linux and macOS, a backslash is part of a name."""
    return path.replace("\\", "/") if os.sep == "\\" else path
