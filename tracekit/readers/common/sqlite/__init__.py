"""Read untrusted SQLite files, checking the pages of a table before any of its rows is used.

``pages`` reads pages, ``trees`` checks the pages and rows of a table, ``records`` decodes integers, ``catalogue`` reads
the schema, and ``database`` combines these modules and delegates all other reads to SQLite.
"""
