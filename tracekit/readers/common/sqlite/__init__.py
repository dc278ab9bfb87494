"""Read SQLite files that nobody vouches for: every tree of pages is checked before a row of it is used.

``pages`` reads pages, ``trees`` checks where the rows of a table lie, ``records`` decodes integers, ``catalogue`` reads
the schema, and ``database`` puts them together and lets SQLite read what is left.
"""
