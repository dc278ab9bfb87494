"""Analysis: polars frames in, polars frames out; no files, no formats."""
