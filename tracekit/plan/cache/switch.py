"""Determine from an environment variable whether the cache is used."""

from __future__ import annotations

import os

from tracekit.errors import TracekitError

SWITCH = "TRACEKIT_CACHE"


def is_enabled(*, default: bool) -> bool:
    """Return whether to use the cache: the environment variable ``TRACEKIT_CACHE`` or, if it is not set, ``default``.

    Raises:
        TracekitError: The variable is neither ``on`` nor ``off``.
    """
    value = os.environ.get(SWITCH, "").strip().casefold()
    if value not in ("", "on", "off"):
        raise TracekitError(
            f"the environment variable {SWITCH} has the invalid value {value!r}", hint="set it to on or off"
        )
    return default if not value else value == "on"
