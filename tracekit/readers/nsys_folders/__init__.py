"""Read exports of Nsight Systems with one file per table (``nsys export --type parquetdir`` or ``arrowdir``)."""
