/* Access to the memory of the sandbox. Offsets in this memory are 32-bit integers, and need not be aligned. An access
   outside the memory ends the program. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define EXPORT(name) __attribute__((export_name(#name))) int32_t name(void)
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t any_uint16 __attribute__((aligned(1), may_alias));
typedef uint32_t any_uint32 __attribute__((aligned(1), may_alias));
typedef uint64_t any_uint64 __attribute__((aligned(1), may_alias));

INLINE uint32_t load8(uint32_t offset) { return *(const uint8_t *)offset; }
INLINE uint32_t load16(uint32_t offset) { return *(const any_uint16 *)offset; }
INLINE uint32_t load32(uint32_t offset) { return *(const any_uint32 *)offset; }
INLINE uint64_t load64(uint32_t offset) { return *(const any_uint64 *)offset; }
