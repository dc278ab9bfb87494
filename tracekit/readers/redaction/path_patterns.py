"""Patterns of paths: names of home folders and of private folders."""

from __future__ import annotations

import functools
import re

from tracekit.readers.redaction.kinds import MENTION, PATH
from tracekit.readers.redaction.pattern import Pattern, overwrite_with_x
from tracekit.readers.redaction.vocabulary import COMMON, is_known_folder

_HOME_FOLDERS = (b"home", b"homes", b"users", *(b"home%d" % n for n in range(1, 10)))
_IN_HOME = rb"[/\\]{1,2}(?:home[1-9]?|homes|[Uu]sers)[/\\]{1,2}"
_MORE_WORDS = rb"(?: [A-Z\x80-\xff][\w.\-\x80-\xff]{0,63}){1,3}(?=/)"
"""Further words of a name with spaces, as in ``/Users/Alice Doe/``."""
_COMPONENT = rb"[^/\\\0-\x20:;,\"'<>|()\[\]{}=&?*$!`\x7f]+"
HOMES = Pattern(
    MENTION,
    re.compile(
        rb"("
        + _IN_HOME
        + rb")([^/\\\0-\x1f:;,\"'<>|*?\x7f]{1,255}(?=\\)|"
        + _COMPONENT
        + rb"(?:"
        + _MORE_WORDS
        + rb")?)"
        rb"|(?<![\w:)\]>])(~)([A-Za-z_][\w.\-]{0,63})(?=/)"
    ),
    lambda match, _: (
        match[1] + _overwrite_account_name(match[2]) if match[2] else match[3] + _overwrite_account_name(match[4])
    ),
    search_strings=tuple(a + name + b for name in _HOME_FOLDERS for a in (b"/", b"\\") for b in (b"/", b"\\")),
    prefilters=((b"~", rb"[A-Za-z_][\w.\-]{0,63}/"),),
)


def _overwrite_account_name(name: bytes) -> bytes:
    """Overwrite the name of a user account, unless it is common, such as ``root``."""
    return name if name.lower() in COMMON else overwrite_with_x(name)


_ROOTS = (
    b"home users root data data1 data2 mnt media srv opt usr var tmp scratch work workspace workspaces project "
    b"projects proj nfs gpfs lustre beegfs ceph fsx efs nvme ssd raid export storage shared share software cluster "
    b"cvmfs afs pscratch gscratch volume volumes private applications library content kaggle sw lib lib64 bin"
).split()
_FROM_ROOT = rb"/(?:" + b"|".join(_ROOTS) + rb")(?:/{1,2}" + _COMPONENT + rb"){1,64}"
_PATH = re.compile(_FROM_ROOT, re.IGNORECASE)
_FILE_NAME = re.compile(rb"[^/\\]{1,255}\.(?:[A-Za-z]\w{0,15}|so[\d.]{1,32})(?:\.\d{1,8}){0,6}")
_PROGRAM_FOLDERS = frozenset((b"bin", b"sbin", b"libexec", b"scripts"))
_MODULE_FOLDERS = frozenset((b"site-packages", b"dist-packages"))
"""Folders of Python modules, whose names stay."""
_BEFORE_LAST = 2


@functools.lru_cache(maxsize=1 << 12)
def overwrite_private_folders(path: bytes, separators: bytes = b"/") -> bytes:
    """Return a path in which each byte of the uncommon folder names is replaced with ``x``.

    The separators, the folders of Python modules, and the file name if the path has one, are unchanged.
    """
    parts = re.split(rb"([" + re.escape(separators) + rb"]+)", path)
    last = len(parts) - 1
    before = parts[last - 2].lower() if last >= _BEFORE_LAST else b""
    for at in range(0, len(parts), 2):
        if parts[at].lower() in _MODULE_FOLDERS:
            break
        is_file = at == last and (_FILE_NAME.fullmatch(parts[at]) or before in _PROGRAM_FOLDERS)
        if len(parts[at]) > 1 and not is_file and not is_known_folder(parts[at]):
            parts[at] = overwrite_with_x(parts[at])
    return b"".join(parts)


def _has_private_folders(data: bytes, start: int) -> bool:
    """Return whether a path that contains private folder names begins at an offset."""
    path = _PATH.match(data, start)
    return path is not None and overwrite_private_folders(path[0]) != path[0]


PATHS = Pattern(
    PATH,
    re.compile(rb"(?<![\w.~\-])" + _FROM_ROOT, re.IGNORECASE),
    lambda match, _: overwrite_private_folders(match[0]),
    search_strings=tuple(b"/" + root + b"/" for root in _ROOTS),
    confirm=_has_private_folders,
)
LIBRARIES = Pattern(
    PATH,
    re.compile(rb"\A/[^\0-\x20]{1,4096}\.(?:so|pyd|dylib|cubin)(?:\.\d{1,8}){0,6}(?: \(deleted\))?\Z"),
    lambda match, _: overwrite_private_folders(match[0]),
    search_strings=(b".so", b".pyd", b".dylib", b".cubin"),
)
_IN_WINDOWS = rb"[^\\/:*?\"<>|\0-\x1f]{1,255}"
WINDOWS_PATHS = Pattern(
    PATH,
    re.compile(
        rb"(?:(?<![0-9A-Za-z])[A-Za-z]:|(?<![\\\w:])\\(?=\\[\w.\-]{1,255}\\))"
        rb"(?:\\{1,2}" + _IN_WINDOWS + rb"(?=\\)){0,64}\\{1,2}[^\\/:*?\"<>|\0-\x20]{1,255}"
    ),
    lambda match, _: match[0][:2] + overwrite_private_folders(match[0][2:], b"\\"),
    prefilters=((b":", rb"\\{1,2}[\w.(]"), (b"\\", rb"\\[\w.\-]{1,255}\\")),
)
