"""Reading of untrusted SQLite files: the pages of a table are checked before any of its rows is used.

``pages`` reads pages, ``trees`` checks the pages and rows of a table, ``records`` decodes integers, ``catalogue`` reads
the schema, and ``database`` combines them and lets SQLite read everything else.
"""
