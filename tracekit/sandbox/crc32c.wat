  ;; Compute CRC-32C (Castagnoli) in steps of eight bytes, with eight tables of 256 32-bit numbers.

  (start $fill_tables)

  ;; Fill the tables. Table k contains, for each byte, the CRC of this byte followed by k zero bytes.
  (func $fill_tables
    (local $i i32) (local $crc i32) (local $bit i32)
    (loop $byte
      (local.set $crc (local.get $i))
      (local.set $bit (i32.const 8))
      (loop $shift
        (local.set $crc (i32.xor
          (i32.shr_u (local.get $crc) (i32.const 1))
          (i32.and (i32.const 0x82f63b78) (i32.sub (i32.const 0) (i32.and (local.get $crc) (i32.const 1))))))
        (local.set $bit (i32.sub (local.get $bit) (i32.const 1)))
        (br_if $shift (local.get $bit)))
      (i32.store offset={CRC_TABLES} (i32.shl (local.get $i) (i32.const 2)) (local.get $crc))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $byte (i32.lt_u (local.get $i) (i32.const 256))))
    (loop $entry
      (local.set $crc (i32.load offset={CRC_TABLES} (i32.shl (i32.sub (local.get $i) (i32.const 256)) (i32.const 2))))
      (i32.store offset={CRC_TABLES} (i32.shl (local.get $i) (i32.const 2))
        (i32.xor (call $entry (i32.const 0) (local.get $crc)) (i32.shr_u (local.get $crc) (i32.const 8))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $entry (i32.lt_u (local.get $i) (i32.const 2048)))))

  ;; Return the entry of a table for the lowest byte of a number. $table is the offset of the table from the first table.
  (func $entry (param $table i32) (param $number i32) (result i32)
    (i32.load offset={CRC_TABLES}
      (i32.add (local.get $table) (i32.shl (i32.and (local.get $number) (i32.const 255)) (i32.const 2)))))

  ;; Return the CRC-32C that results from appending bytes to data with the given CRC-32C, which is 0 for empty data.
  (func $crc32c (param $crc i32) (param $offset i32) (param $size i32) (result i32)
    (local $low i32) (local $high i32)
    (local.set $crc (i32.xor (local.get $crc) (i32.const -1)))
    (block $done
      (loop $next
        (br_if $done (i32.lt_u (local.get $size) (i32.const 8)))
        (local.set $low (i32.xor (local.get $crc) (i32.load align=1 (local.get $offset))))
        (local.set $high (i32.load offset=4 align=1 (local.get $offset)))
        (local.set $crc
          (i32.xor
            (i32.xor
              (i32.xor
                (call $entry (i32.const 7168) (local.get $low))
                (call $entry (i32.const 6144) (i32.shr_u (local.get $low) (i32.const 8))))
              (i32.xor
                (call $entry (i32.const 5120) (i32.shr_u (local.get $low) (i32.const 16)))
                (call $entry (i32.const 4096) (i32.shr_u (local.get $low) (i32.const 24)))))
            (i32.xor
              (i32.xor
                (call $entry (i32.const 3072) (local.get $high))
                (call $entry (i32.const 2048) (i32.shr_u (local.get $high) (i32.const 8))))
              (i32.xor
                (call $entry (i32.const 1024) (i32.shr_u (local.get $high) (i32.const 16)))
                (call $entry (i32.const 0) (i32.shr_u (local.get $high) (i32.const 24)))))))
        (local.set $offset (i32.add (local.get $offset) (i32.const 8)))
        (local.set $size (i32.sub (local.get $size) (i32.const 8)))
        (br $next)))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $size)))
        (local.set $crc (i32.xor
          (call $entry (i32.const 0) (i32.xor (local.get $crc) (i32.load8_u (local.get $offset))))
          (i32.shr_u (local.get $crc) (i32.const 8))))
        (local.set $offset (i32.add (local.get $offset) (i32.const 1)))
        (local.set $size (i32.sub (local.get $size) (i32.const 1)))
        (br $next)))
    (i32.xor (local.get $crc) (i32.const -1)))

  ;; Return a masked CRC-32C as TFRecord stores it, which is rotated right by 15 bits and increased by a constant.
  (func $masked (param $crc i32) (result i32)
    (i32.add (i32.rotr (local.get $crc) (i32.const 15)) (i32.const 0xa282ead8)))

  ;; Update a checksum. Parameters: CRC-32C of the preceding bytes, or 0 if there are none; offset and size of the new bytes.
  ;; The function replaces the first parameter with the CRC-32C that includes the new bytes. Result: this CRC-32C, masked.
  (func (export "checksum") (result i32)
    (local $crc i32)
    (local.set $crc (call $crc32c
      (i32.load offset={checksum.crc} (i32.const 0))
      (i32.load offset={checksum.offset} (i32.const 0))
      (i32.load offset={checksum.size} (i32.const 0))))
    (i32.store offset={checksum.crc} (i32.const 0) (local.get $crc))
    (call $masked (local.get $crc)))
