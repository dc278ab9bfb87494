"""Read untrusted SQLite files. The pages of a table are checked before its rows are used.

The module ``pages`` reads pages, ``trees`` checks the pages and rows of a table, ``records`` decodes integers, and
``catalogue`` reads the schema. The module ``database`` combines them, and lets SQLite read everything else.
"""
