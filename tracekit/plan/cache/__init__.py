"""Cache the columns of large captures as Arrow files in the cache folder of the user.

``switch`` determines whether the cache is used, ``folder`` manages the files, ``identity`` identifies the content of a
capture, and ``capture`` reads columns from the cache and stores those that are missing.
"""

from tracekit.plan.cache.capture import CachedCapture, is_enabled, open_cached_capture
from tracekit.system.lazy import create_lazy_getattr_and_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tracekit.plan.cache.folder import CacheEntry, CacheFolder

__all__ = ["CacheEntry", "CacheFolder", "CachedCapture", "is_enabled", "open_cached_capture"]
if not TYPE_CHECKING:  # so that type checkers report unknown attributes
    __getattr__, __dir__ = create_lazy_getattr_and_dir(globals(), {"folder": ("CacheEntry", "CacheFolder")})
