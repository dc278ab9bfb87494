;; Locate the records of a TFRecord file, for the work that cannot be done on whole columns.
;; It runs in a sandbox: it can access only its own memory, and any access outside of it is an error.
;;
;; Memory layout, in bytes: 64 frame (32 bits each), 1024 eight tables of CRC32C (256 numbers of 32 bits each), 16384 offsets of
;; records, 1 MiB after that their sizes (32 bits each), 4194304 the bytes of the file, followed by slack.
;;
;; A record: its size (64 bits), the masked CRC32C of these 8 bytes, the data, the masked CRC32C of the data.
;; Results: 0 more bytes are needed, 1 no space for another record, 2 the CRC of a size is wrong, 3 the CRC of data is wrong.
(module
  (import "tracekit" "memory" (memory 1))

  (func $entry (param $table i32) (param $octet i32) (result i32)
    (i32.load offset=1024 (i32.add (local.get $table) (i32.shl (i32.and (local.get $octet) (i32.const 255)) (i32.const 2)))))

  ;; Return the CRC32C of some bytes in its masked form.
  (func $masked (param $at i32) (param $size i32) (result i32)
    (local $crc i32) (local $low i32) (local $high i32)
    (local.set $crc (i32.const -1))
    (block $done
      (loop $next
        (br_if $done (i32.lt_u (local.get $size) (i32.const 8)))
        (local.set $low (i32.xor (local.get $crc) (i32.load align=1 (local.get $at))))
        (local.set $high (i32.load offset=4 align=1 (local.get $at)))
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
        (local.set $at (i32.add (local.get $at) (i32.const 8)))
        (local.set $size (i32.sub (local.get $size) (i32.const 8)))
        (br $next)))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $size)))
        (local.set $crc (i32.xor
          (call $entry (i32.const 0) (i32.xor (local.get $crc) (i32.load8_u (local.get $at))))
          (i32.shr_u (local.get $crc) (i32.const 8))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (local.set $size (i32.sub (local.get $size) (i32.const 1)))
        (br $next)))
    (i32.add
      (i32.rotr (i32.xor (local.get $crc) (i32.const -1)) (i32.const 15))
      (i32.const 0xa282ead8)))

  ;; Locate records. Frame: start and end of the bytes, maximum number of records. On return: where it stopped, number of records.
  (func (export "records") (result i32)
    (local $at i32) (local $end i32) (local $room i32) (local $count i32) (local $rest i32) (local $size i32)
    (local.set $at (i32.load offset=64 (i32.const 0)))
    (local.set $end (i32.load offset=68 (i32.const 0)))
    (local.set $room (i32.load offset=72 (i32.const 0)))
    (loop $next
      (i32.store offset=76 (i32.const 0) (local.get $at))
      (i32.store offset=80 (i32.const 0) (local.get $count))
      (local.set $rest (i32.sub (local.get $end) (local.get $at)))
      (if (i32.lt_u (local.get $rest) (i32.const 12)) (then (return (i32.const 0))))
      (if (i32.eq (local.get $count) (local.get $room)) (then (return (i32.const 1))))
      (if (i32.ne (call $masked (local.get $at) (i32.const 8)) (i32.load offset=8 align=1 (local.get $at)))
        (then (return (i32.const 2))))
      (local.set $rest (i32.sub (local.get $rest) (i32.const 12)))
      (if (i64.gt_u
            (i64.add (i64.load32_u align=1 (local.get $at)) (i64.const 4))
            (i64.extend_i32_u (local.get $rest)))
        (then (return (i32.const 0))))
      (if (i32.load offset=4 align=1 (local.get $at)) (then (return (i32.const 0))))
      (local.set $size (i32.load align=1 (local.get $at)))
      (local.set $at (i32.add (local.get $at) (i32.const 12)))
      (if (i32.ne
            (call $masked (local.get $at) (local.get $size))
            (i32.load align=1 (i32.add (local.get $at) (local.get $size))))
        (then (return (i32.const 3))))
      (i32.store offset=16384 (i32.shl (local.get $count) (i32.const 2)) (i32.sub (local.get $at) (i32.const 4194304)))
      (i32.store offset=1064960 (i32.shl (local.get $count) (i32.const 2)) (local.get $size))
      (local.set $count (i32.add (local.get $count) (i32.const 1)))
      (local.set $at (i32.add (i32.add (local.get $at) (local.get $size)) (i32.const 4)))
      (br $next))
    (unreachable))
)
