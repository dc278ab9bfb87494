"""Read profiles of AMD GPUs, which the tools of ROCm write.

Modules, one per format:

- ``rocpd`` reads the databases of rocprofv3 and of ROCm Systems Profiler, with ``rocpd_tables``.
- ``rpd`` reads the databases of rocmProfileData (RPD), with ``rpd_tables``.
- ``rocprofv3_json`` reads the JSON files of rocprofv3, with ``json_records``.
- ``rocprofv3_csv`` reads its CSV files, one or a folder of them, with ``csv_files``.

All build the same tables with ``tables`` and ``agents``.

Sources: the schemas and writers of rocprofiler-sdk (``generateRocpd.cpp``, ``generateCSV.cpp``, ``generateJSON.cpp``)
and of rocmProfileData (``tableSchema.cmd``, ``RoctracerDataSource.cpp``, ``RocprofDataSource.cpp``), and public files.
"""

import re

DATABASE_MAGICS = (b"SQLite format 3\x00", b"\x1f\x8b")
"""The first bytes of a SQLite file and of a gzip file."""
ROCPD_TABLE = re.compile(r"rocpd_([a-z]+(?:_[a-z]+){0,2}?)((?:_[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12})?)")
"""The name of a table of rocpd: its kind, and the id of the process."""
