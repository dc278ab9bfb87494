/* Compute checksums of data in several pieces. tracekit/native/crc32c.py defines the memory layout. */
#include "layout.h"
#include "crc32c.h"

/* Replace the CRC-32C of the preceding bytes, which is 0 if there are none, by one that includes the new bytes.
   Return this CRC-32C, masked. */
EXPORT(checksum) {
  checksum_parameters *p = PARAMETERS;
  p->crc = crc32c(p->crc, p->offset, p->size);
  return (int32_t)mask_crc(p->crc);
}
