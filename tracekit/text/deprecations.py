"""Former names that still work, with the version that removes them. ``docs/stability.md`` lists them."""

from __future__ import annotations

import warnings
from typing import NamedTuple


class Deprecation(NamedTuple):
    """A former name, and how long it works.

    Attributes:
        name: The former name, such as ``Trace.counts``.
        use: What to use instead.
        since: First version that warns.
        removed_in: Version that no longer has the name. It is a major version, or a minor one for the toolbox.
        not_before: Earliest date of this version, as ``YYYY-MM-DD``: at least a year after the first warning.
    """

    name: str
    use: str
    since: str
    removed_in: str
    not_before: str


_IN_VERSION_1 = ("1.0.0", "2.0.0", "2027-12-01")
DEPRECATIONS = {
    each.name: each
    for each in (
        Deprecation("Trace.counts", "Trace.count_all", *_IN_VERSION_1),
        Deprecation("Trace.pieces", "registry.read_chunks in exporters", *_IN_VERSION_1),
        Deprecation("Trace.prefetch", "registry.prefetch in exporters", *_IN_VERSION_1),
        Deprecation("Trace.model", "View.model in exporters", *_IN_VERSION_1),
        Deprecation("convert(format=)", "convert(source_format=)", *_IN_VERSION_1),
    )
}


def warn_about_deprecation(name: str, stacklevel: int = 2) -> None:
    """Issue a ``DeprecationWarning`` for a former name, with the version that removes it and what to use instead.

    Args:
        name: The former name.
        stacklevel: Number of calls between this function and the code that uses the name, as in ``warnings.warn``.
    """
    each = DEPRECATIONS[name]
    message = (
        f"{name} is deprecated since version {each.since}, and version {each.removed_in} removes it: use {each.use}"
    )
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel + 1)
