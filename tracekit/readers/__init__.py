"""One module or package a format, each ending in its ``READER``."""
