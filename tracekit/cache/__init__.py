"""Cache the columns of large captures as Arrow files in the cache folder of the user.

``folder`` manages the files, ``identity`` identifies the content of a capture, and ``capture`` reads columns
from the cache and stores those that are missing.
"""

from tracekit.cache.capture import CachedCapture, open_cached
from tracekit.cache.folder import CacheFolder, Entry, is_enabled

__all__ = ["CacheFolder", "CachedCapture", "Entry", "is_enabled", "open_cached"]
