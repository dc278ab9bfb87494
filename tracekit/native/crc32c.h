/* CRC-32C (Castagnoli) in steps of eight bytes, with eight tables of 256 32-bit numbers at the offset CRC_TABLES.
   The function fill_tables has to be called once before the first checksum. */
#pragma once
#include "memory.h"

#define CRC_TABLE(number) ((uint32_t *)CRC_TABLES + 256 * (number))

/* Fill the tables. Table k contains, for each byte, the CRC of this byte followed by k zero bytes. */
EXPORT(fill_tables) {
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82f63b78 & -(crc & 1));
    CRC_TABLE(0)[byte] = crc;
  }
  for (uint32_t i = 256; i < 8 * 256; i++) {
    uint32_t crc = CRC_TABLE(0)[i - 256];
    CRC_TABLE(0)[i] = CRC_TABLE(0)[crc & 255] ^ (crc >> 8);
  }
  return 0;
}

/* Return the CRC-32C that results from appending bytes to data with the given CRC-32C, which is 0 for empty data. */
static uint32_t crc32c(uint32_t crc, uint32_t offset, uint32_t size) {
  crc = ~crc;
  for (; size >= 8; offset += 8, size -= 8) {
    uint32_t low = crc ^ load32(offset), high = load32(offset + 4);
    crc = CRC_TABLE(7)[low & 255] ^ CRC_TABLE(6)[low >> 8 & 255] ^ CRC_TABLE(5)[low >> 16 & 255] ^
          CRC_TABLE(4)[low >> 24] ^ CRC_TABLE(3)[high & 255] ^ CRC_TABLE(2)[high >> 8 & 255] ^
          CRC_TABLE(1)[high >> 16 & 255] ^ CRC_TABLE(0)[high >> 24];
  }
  for (; size; offset++, size--) crc = CRC_TABLE(0)[(crc ^ load8(offset)) & 255] ^ (crc >> 8);
  return ~crc;
}

/* Return a masked CRC-32C as TFRecord stores it, which is rotated right by 15 bits and increased by a constant. */
INLINE uint32_t mask_crc(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8; }
