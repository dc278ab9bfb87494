"""Determine whether a file belongs to the user of this process, and who can write to it.

Windows has neither user numbers nor modes. There, the folders for temporary files and for the cache are in the profile
of the user, to which the system gives other users no access.
"""

from __future__ import annotations

import os
import stat

_OTHERS_CAN_WRITE = stat.S_IWGRP | stat.S_IWOTH


def is_own(status: os.stat_result) -> bool:
    """Return whether the user of this process owns a file or folder. It is true on systems without user numbers."""
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def can_others_write(status: os.stat_result) -> bool:
    """Return whether other users can write to a file or folder. It is false on systems without user numbers."""
    return hasattr(os, "geteuid") and bool(status.st_mode & _OTHERS_CAN_WRITE)
