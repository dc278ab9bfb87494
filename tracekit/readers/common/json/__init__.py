"""Scan large JSON files into columns, with one row per object and one column per requested key.

A ``Stream`` reads the file, and a ``Document`` finds the array of objects in it. The C program of a ``JsonScanner``
parses the objects in batches, and ``JsonCells`` converts each batch to Arrow columns. What the keys mean is the affair
of the reader. Objects that are not valid JSON are skipped and counted, and nothing is read that no key requests.
"""
