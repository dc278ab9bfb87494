/* Hashing and comparing strings. Eight bytes beyond the end of a string have to be readable. */
#pragma once
#include "memory.h"

/* Return the remaining bytes of a string, of which there are at most seven, as a number. */
INLINE uint64_t last_bytes(uint32_t offset, uint32_t size) { return load64(offset) & ((UINT64_C(1) << (8 * size)) - 1); }

/* Return a hash that is updated with a word of eight bytes. */
INLINE uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ (hash >> 29);
}

/* Return a 64-bit hash of a string. Four hashes of a long string are computed side by side, each of every fourth word. */
static inline uint64_t hash_string(uint32_t offset, uint32_t size) {
  uint64_t hash = size;
  if (size >= 64) {
    uint64_t second = 0, third = 0, fourth = 0;
    for (; size >= 32; offset += 32, size -= 32) {
      hash = mix(hash, load64(offset));
      second = mix(second, load64(offset + 8));
      third = mix(third, load64(offset + 16));
      fourth = mix(fourth, load64(offset + 24));
    }
    hash = mix(mix(mix(hash, second), third), fourth);
  }
  for (; size >= 8; offset += 8, size -= 8) hash = mix(hash, load64(offset));
  hash = mix(hash, last_bytes(offset, size));
  return mix(hash, hash >> 32);
}

/* Return whether two strings of the same size are equal. */
static inline bool equal_strings(uint32_t one, uint32_t other, uint32_t size) {
  for (; size >= 32; one += 32, other += 32, size -= 32) {
    uint64_t first_half = (load64(one) ^ load64(other)) | (load64(one + 8) ^ load64(other + 8));
    uint64_t second_half = (load64(one + 16) ^ load64(other + 16)) | (load64(one + 24) ^ load64(other + 24));
    if (first_half | second_half) return false;
  }
  for (; size >= 8; one += 8, other += 8, size -= 8)
    if (load64(one) != load64(other)) return false;
  return last_bytes(one, size) == last_bytes(other, size);
}
