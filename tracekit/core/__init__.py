"""Analyze loaded traces. The functions take and return polars frames, and do not depend on file formats."""
