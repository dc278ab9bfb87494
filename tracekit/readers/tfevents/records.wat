  ;; Locate the records of a TFRecord file. record_sandbox.py defines the memory layout and the return values.
  ;; A record consists of its size (64 bits), the masked CRC-32C of these 8 bytes, the data, and the masked CRC-32C of the data.

  ;; Find records and verify their checksums. Parameters: offset and end of the input, capacity of the output. The function
  ;; also stores the offset of the next record and the number of records in the output as parameters.
  (func (export "records") (result i32)
    (local $offset i32) (local $end i32) (local $capacity i32) (local $count i32) (local $rest i32) (local $size i32)
    (local.set $offset (i32.load offset={records.offset} (i32.const 0)))
    (local.set $end (i32.load offset={records.end} (i32.const 0)))
    (local.set $capacity (i32.load offset={records.capacity} (i32.const 0)))
    (loop $next
      (i32.store offset={records.next} (i32.const 0) (local.get $offset))
      (i32.store offset={records.count} (i32.const 0) (local.get $count))
      (local.set $rest (i32.sub (local.get $end) (local.get $offset)))
      (if (i32.lt_u (local.get $rest) (i32.const {HEADER_BYTES})) (then (return (i32.const {MORE}))))
      (if (i32.eq (local.get $count) (local.get $capacity)) (then (return (i32.const {FULL}))))
      (if (i32.ne
            (call $masked (call $crc32c (i32.const 0) (local.get $offset) (i32.const 8)))
            (i32.load offset=8 align=1 (local.get $offset)))
        (then (return (i32.const {BAD_SIZE}))))
      (local.set $rest (i32.sub (local.get $rest) (i32.const {HEADER_BYTES})))
      (if (i64.gt_u
            (i64.add (i64.load32_u align=1 (local.get $offset)) (i64.const {FOOTER_BYTES}))
            (i64.extend_i32_u (local.get $rest)))
        (then (return (i32.const {MORE}))))
      (if (i32.load offset=4 align=1 (local.get $offset)) (then (return (i32.const {MORE}))))
      (local.set $size (i32.load align=1 (local.get $offset)))
      (local.set $offset (i32.add (local.get $offset) (i32.const {HEADER_BYTES})))
      (if (i32.ne
            (call $masked (call $crc32c (i32.const 0) (local.get $offset) (local.get $size)))
            (i32.load align=1 (i32.add (local.get $offset) (local.get $size))))
        (then (return (i32.const {BAD_DATA}))))
      (i32.store offset={STARTS} (i32.shl (local.get $count) (i32.const 2)) (i32.sub (local.get $offset) (i32.const {BUFFER})))
      (i32.store offset={SIZES} (i32.shl (local.get $count) (i32.const 2)) (local.get $size))
      (local.set $count (i32.add (local.get $count) (i32.const 1)))
      (local.set $offset (i32.add (i32.add (local.get $offset) (local.get $size)) (i32.const {FOOTER_BYTES})))
      (br $next))
    (unreachable))
