"""Exports of Nsight Systems that are folders of one file a table (``nsys export --type parquetdir``, ``arrowdir``)."""
