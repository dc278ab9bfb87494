"""Read Nsight Systems exports with one file per table (``nsys export --type parquetdir`` or ``arrowdir``)."""
