/* Locate the records of a TFRecord file. readers/tfevents/record_sandbox.py defines the memory layout and the results.
   A record consists of its size (64 bits), the masked CRC-32C of these 8 bytes, the data, and the masked CRC-32C of the
   data. */
#include "layout.h"
#include "crc32c.h"

/* Find records and verify their checksums, and store the offset of the next record and the number of records. */
EXPORT(records) {
  records_parameters *p = PARAMETERS;
  const uint32_t end = p->end, capacity = p->capacity;
  uint32_t *starts = (uint32_t *)STARTS, *sizes = (uint32_t *)SIZES;
  uint32_t offset = p->offset;
  for (uint32_t count = 0;; count++) {
    p->next = offset;
    p->count = count;
    if (end - offset < HEADER_BYTES) return MORE;
    if (count == capacity) return FULL;
    if (mask_crc(crc32c(0, offset, 8)) != load32(offset + 8)) return BAD_SIZE;
    uint64_t size = load64(offset);
    offset += HEADER_BYTES;
    if (size > end - offset || size + FOOTER_BYTES > end - offset) return MORE;
    if (mask_crc(crc32c(0, offset, (uint32_t)size)) != load32(offset + (uint32_t)size)) return BAD_DATA;
    starts[count] = offset - BUFFER;
    sizes[count] = (uint32_t)size;
    offset += (uint32_t)size + FOOTER_BYTES;
  }
}
