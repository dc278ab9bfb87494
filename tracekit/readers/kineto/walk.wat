;; Parser of trace events in JSON, for the work that cannot be done on whole columns.
;; It runs in a sandbox: it can access only its own memory, and any access outside of it is an error.
;;
;; Memory layout, in bytes: 64 frame (32 bits each), 1024 keys, 0x4000 hash table of strings, 0x44000 their hashes, 0xc4000
;; and 0x104000 their offsets and sizes, 0x150000 values (64 bits), 0x950000 types of values (1 byte each), 0xc00000 the JSON,
;; followed by zeros as slack, and by the output of gather. The index of a value is row + 16384 * slot.
;;
;; A key has 16 bytes: hash, length, and slot + 1. 256 is added to slots whose numbers are parsed in thousandths, 512 to slots
;; whose numbers are left as strings.
;; Types: 1 number, 2 code of a string, 3 code of the JSON text of another value.
;; Results: 0 the array has ended, 1 more bytes are needed, 2 no space for another event, 3 not a valid event.
(module
  (import "tracekit" "memory" (memory 1))
  (global $end (mut i32) (i32.const 0))
  (global $codes (mut i32) (i32.const 0))
  (global $row (mut i32) (i32.const 0))
  (global $depth (mut i32) (i32.const 0))
  (global $inside (mut i32) (i32.const 0))
  (global $far (mut i32) (i32.const 0))

  ;; Return the next offset without white space.
  (func $space (param $at i32) (result i32)
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (i32.sub (i32.load8_u (local.get $at)) (i32.const 1)) (i32.const 32)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $next)))
    (local.get $at))

  ;; Return the offset of the quote that ends a string; an offset at or after the end if the string is incomplete.
  (func $quote (param $at i32) (result i32)
    (local $bytes v128) (local $found i32)
    (loop $next
      (if (i32.ge_u (local.get $at) (global.get $end)) (then (return (local.get $at))))
      (local.set $bytes (v128.load align=1 (local.get $at)))
      (local.set $found (i8x16.bitmask (v128.or
        (i8x16.eq (local.get $bytes) (i8x16.splat (i32.const 0x22)))
        (i8x16.eq (local.get $bytes) (i8x16.splat (i32.const 0x5c))))))
      (if (i32.eqz (local.get $found))
        (then
          (local.set $at (i32.add (local.get $at) (i32.const 16)))
          (if (i32.gt_u (local.get $at) (global.get $end)) (then (return (global.get $end))))
          (br $next)))
      (local.set $at (i32.add (local.get $at) (i32.ctz (local.get $found))))
      (if (i32.eq (i32.load8_u (local.get $at)) (i32.const 0x22)) (then (return (local.get $at))))
      (local.set $at (i32.add (local.get $at) (i32.const 2)))
      (br $next))
    (unreachable))

  ;; Return a word of the last bytes of a string, fewer than eight.
  (func $tail (param $at i32) (param $size i32) (result i64)
    (i64.and (i64.load align=1 (local.get $at))
      (i64.sub (i64.shl (i64.const 1) (i64.extend_i32_u (i32.shl (local.get $size) (i32.const 3)))) (i64.const 1))))

  (func $mixed (param $hash i64) (param $word i64) (result i64)
    (local.set $hash (i64.mul (i64.xor (local.get $hash) (local.get $word)) (i64.const 0x9e3779b97f4a7c15)))
    (i64.xor (local.get $hash) (i64.shr_u (local.get $hash) (i64.const 29))))

  (func $hash (param $at i32) (param $size i32) (result i64)
    (local $hash i64)
    (local.set $hash (i64.extend_i32_u (local.get $size)))
    (block $done
      (loop $next
        (br_if $done (i32.lt_u (local.get $size) (i32.const 8)))
        (local.set $hash (call $mixed (local.get $hash) (i64.load align=1 (local.get $at))))
        (local.set $at (i32.add (local.get $at) (i32.const 8)))
        (local.set $size (i32.sub (local.get $size) (i32.const 8)))
        (br $next)))
    (local.set $hash (call $mixed (local.get $hash) (call $tail (local.get $at) (local.get $size))))
    (i64.xor (local.get $hash) (i64.shr_u (local.get $hash) (i64.const 32))))

  (func $same (param $one i32) (param $other i32) (param $size i32) (result i32)
    (block $done
      (loop $next
        (br_if $done (i32.lt_u (local.get $size) (i32.const 8)))
        (if (i64.ne (i64.load align=1 (local.get $one)) (i64.load align=1 (local.get $other)))
          (then (return (i32.const 0))))
        (local.set $one (i32.add (local.get $one) (i32.const 8)))
        (local.set $other (i32.add (local.get $other) (i32.const 8)))
        (local.set $size (i32.sub (local.get $size) (i32.const 8)))
        (br $next)))
    (i64.eq
      (call $tail (local.get $one) (local.get $size))
      (call $tail (local.get $other) (local.get $size))))

  ;; Return the code of a string: equal strings have equal codes unless too many hashes collide. -1 if there are too many strings.
  (func $number_of (param $at i32) (param $size i32) (result i32)
    (local $hash i64) (local $place i32) (local $tries i32) (local $code i32)
    (local.set $hash (call $hash (local.get $at) (local.get $size)))
    (local.set $place (i32.and (i32.wrap_i64 (local.get $hash)) (i32.const 0xffff)))
    (block $new
      (loop $next
        (local.set $code (i32.load offset=0x4000 (i32.shl (local.get $place) (i32.const 2))))
        (br_if $new (i32.eqz (local.get $code)))
        (local.set $code (i32.sub (local.get $code) (i32.const 1)))
        (if (i32.and
              (i64.eq (local.get $hash) (i64.load offset=0x44000 (i32.shl (local.get $code) (i32.const 3))))
              (i32.eq (local.get $size) (i32.load offset=0x104000 (i32.shl (local.get $code) (i32.const 2)))))
          (then
            (if (call $same (local.get $at) (i32.load offset=0xc4000 (i32.shl (local.get $code) (i32.const 2))) (local.get $size))
              (then (return (local.get $code))))))
        (local.set $place (i32.and (i32.add (local.get $place) (i32.const 1)) (i32.const 0xffff)))
        (local.set $tries (i32.add (local.get $tries) (i32.const 1)))
        (br_if $next (i32.lt_u (local.get $tries) (i32.const 32)))))
    (local.set $code (global.get $codes))
    (if (i32.ge_u (local.get $code) (i32.const 60000)) (then (return (i32.const -1))))
    (global.set $codes (i32.add (local.get $code) (i32.const 1)))
    (if (i32.lt_u (local.get $tries) (i32.const 32))
      (then (i32.store offset=0x4000 (i32.shl (local.get $place) (i32.const 2)) (global.get $codes))))
    (i64.store offset=0x44000 (i32.shl (local.get $code) (i32.const 3)) (local.get $hash))
    (i32.store offset=0xc4000 (i32.shl (local.get $code) (i32.const 2)) (local.get $at))
    (i32.store offset=0x104000 (i32.shl (local.get $code) (i32.const 2)) (local.get $size))
    (local.get $code))

  ;; Return the slot of a key plus 1, 0 if the key is not requested.
  (func $slot_of (param $at i32) (param $size i32) (param $level i32) (result i32)
    (local $hash i64) (local $key i32)
    (local.set $hash (i64.xor (call $hash (local.get $at) (local.get $size)) (i64.extend_i32_u (local.get $level))))
    (local.set $key (i32.and (i32.wrap_i64 (local.get $hash)) (i32.const 0x1ff)))
    (loop $next
      (if (i32.eqz (i32.load offset=1036 (i32.shl (local.get $key) (i32.const 4)))) (then (return (i32.const 0))))
      (if (i64.eq (local.get $hash) (i64.load offset=1024 (i32.shl (local.get $key) (i32.const 4))))
        (then
          (if (i32.eq (local.get $size) (i32.load offset=1032 (i32.shl (local.get $key) (i32.const 4))))
            (then (return (i32.load offset=1036 (i32.shl (local.get $key) (i32.const 4))))))))
      (local.set $key (i32.and (i32.add (local.get $key) (i32.const 1)) (i32.const 0x1ff)))
      (br $next))
    (unreachable))

  (func $put (param $slot i32) (param $value i64) (param $mark i32)
    (local $cell i32)
    (local.set $cell (i32.add (i32.shl (local.get $slot) (i32.const 14)) (global.get $row)))
    (i64.store offset=0x150000 (i32.shl (local.get $cell) (i32.const 3)) (local.get $value))
    (i32.store8 offset=0x950000 (local.get $cell) (local.get $mark)))

  ;; Store the code of a string; return 0 if there are too many strings.
  (func $put_text (param $slot i32) (param $at i32) (param $size i32) (param $mark i32) (result i32)
    (local $code i32)
    (local.set $code (call $number_of (local.get $at) (local.get $size)))
    (if (i32.lt_s (local.get $code) (i32.const 0)) (then (return (i32.const 0))))
    (call $put (local.get $slot) (i64.extend_i32_u (local.get $code)) (local.get $mark))
    (i32.const 1))

  ;; Skip nested values, or the rest of them; return the offset of their end, or one at or after the end if they are incomplete.
  (func $nested (param $at i32) (result i32)
    (local $bytes v128) (local $byte i32) (local $found i32)
    (loop $next
      (if (i32.ge_u (local.get $at) (global.get $end)) (then (return (local.get $at))))
      (if (global.get $inside)
        (then
          (local.set $at (call $quote (local.get $at)))
          (if (i32.ge_u (local.get $at) (global.get $end)) (then (return (local.get $at))))
          (global.set $inside (i32.const 0))
          (local.set $at (i32.add (local.get $at) (i32.const 1)))
          (br_if $next (i32.gt_s (global.get $depth) (i32.const 0)))
          (return (local.get $at))))
      (local.set $bytes (v128.load align=1 (local.get $at)))
      (local.set $found (i8x16.bitmask (v128.or
        (i8x16.eq (local.get $bytes) (i8x16.splat (i32.const 0x22)))
        (v128.or
          (i8x16.eq (v128.or (local.get $bytes) (i8x16.splat (i32.const 0x20))) (i8x16.splat (i32.const 0x7b)))
          (i8x16.eq (v128.or (local.get $bytes) (i8x16.splat (i32.const 0x20))) (i8x16.splat (i32.const 0x7d)))))))
      (if (i32.eqz (local.get $found))
        (then
          (local.set $at (i32.add (local.get $at) (i32.const 16)))
          (if (i32.gt_u (local.get $at) (global.get $end)) (then (return (global.get $end))))
          (br $next)))
      (local.set $at (i32.add (local.get $at) (i32.ctz (local.get $found))))
      (local.set $byte (i32.load8_u (local.get $at)))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (if (i32.eq (local.get $byte) (i32.const 0x22)) (then (global.set $inside (i32.const 1)) (br $next)))
      (global.set $depth (i32.add (global.get $depth)
        (select (i32.const 1) (i32.const -1) (i32.eq (i32.or (local.get $byte) (i32.const 0x20)) (i32.const 0x7b)))))
      (br_if $next (i32.gt_s (global.get $depth) (i32.const 0))))
    (local.get $at))

  ;; Return whether a value may end before a byte: a comma, a bracket, white space, or the end.
  (func $ends (param $byte i32) (result i32)
    (i32.or (i32.or (i32.le_u (local.get $byte) (i32.const 32)) (i32.eq (local.get $byte) (i32.const 0x2c)))
      (i32.eq (i32.or (local.get $byte) (i32.const 0x20)) (i32.const 0x7d))))

  ;; Return the offset of the end of a value; the end of the JSON if the value is incomplete.
  (func $skip (param $at i32) (result i32)
    (local $byte i32)
    (local.set $byte (i32.load8_u (local.get $at)))
    (if (i32.eq (local.get $byte) (i32.const 0x22))
      (then
        (local.set $at (call $quote (i32.add (local.get $at) (i32.const 1))))
        (if (i32.ge_u (local.get $at) (global.get $end)) (then (return (global.get $end))))
        (return (i32.add (local.get $at) (i32.const 1)))))
    (if (i32.eq (i32.or (local.get $byte) (i32.const 0x20)) (i32.const 0x7b))
      (then
        (global.set $depth (i32.const 0))
        (global.set $inside (i32.const 0))
        (local.set $at (call $nested (local.get $at)))
        (if (i32.or (i32.gt_s (global.get $depth) (i32.const 0)) (global.get $inside)) (then (return (global.get $end))))
        (return (local.get $at))))
    (block $done
      (loop $next
        (br_if $done (call $ends (i32.load8_u (local.get $at))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $next)))
    (local.get $at))

  ;; Store a number; return the offset of its end, or 0 if 64 bits cannot represent it exactly.
  (func $number (param $slot i32) (param $thousandths i32) (param $at i32) (result i32)
    (local $value i64) (local $digit i32) (local $first i32) (local $minus i32) (local $unit i64) (local $half i32)
    (if (i32.eq (i32.load8_u (local.get $at)) (i32.const 0x2d))
      (then (local.set $minus (i32.const 1)) (local.set $at (i32.add (local.get $at) (i32.const 1)))))
    (local.set $first (local.get $at))
    (block $done
      (loop $next
        (local.set $digit (i32.sub (i32.load8_u (local.get $at)) (i32.const 0x30)))
        (br_if $done (i32.ge_u (local.get $digit) (i32.const 10)))
        (local.set $value (i64.add (i64.mul (local.get $value) (i64.const 10)) (i64.extend_i32_u (local.get $digit))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $next)))
    (local.set $digit (i32.sub (local.get $at) (local.get $first)))
    (if (i32.ge_u (i32.sub (local.get $digit) (i32.const 1)) (i32.const 18)) (then (return (i32.const 0))))
    (local.set $unit (i64.const 1))
    (if (local.get $thousandths)
      (then
        (if (i64.gt_u (local.get $value) (i64.const 9000000000000000)) (then (return (i32.const 0))))
        (local.set $value (i64.mul (local.get $value) (i64.const 1000)))
        (local.set $unit (i64.const 1000))))
    (if (i32.eq (i32.load8_u (local.get $at)) (i32.const 0x2e))
      (then
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (local.set $half (i32.const 1))
        (block $whole
          (loop $next
            (local.set $digit (i32.sub (i32.load8_u (local.get $at)) (i32.const 0x30)))
            (br_if $whole (i32.ge_u (local.get $digit) (i32.const 10)))
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (if (i64.gt_u (local.get $unit) (i64.const 1))
              (then
                (local.set $unit (i64.div_u (local.get $unit) (i64.const 10)))
                (local.set $value (i64.add (local.get $value) (i64.mul (local.get $unit) (i64.extend_i32_u (local.get $digit)))))
                (br $next)))
            (if (i32.eqz (local.get $thousandths))
              (then (if (local.get $digit) (then (return (i32.const 0)))))
              (else
                (if (local.get $half)
                  (then
                    (local.set $value (i64.add (local.get $value) (i64.extend_i32_u (i32.ge_u (local.get $digit) (i32.const 5)))))
                    (local.set $half (i32.const 0))))))
            (br $next)))))
    (if (i32.eqz (call $ends (i32.load8_u (local.get $at)))) (then (return (i32.const 0))))
    (if (local.get $minus) (then (local.set $value (i64.sub (i64.const 0) (local.get $value)))))
    (call $put (local.get $slot) (local.get $value) (i32.const 1))
    (local.get $at))

  ;; Store a value; return the offset of its end, the end of the JSON if it is incomplete, or 0 if there are too many strings.
  (func $value (param $slot i32) (param $count i32) (param $at i32) (result i32)
    (local $byte i32) (local $stop i32)
    (local.set $byte (i32.load8_u (local.get $at)))
    (if (i32.eq (local.get $byte) (i32.const 0x22))
      (then
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (local.set $stop (call $quote (local.get $at)))
        (if (i32.ge_u (local.get $stop) (global.get $end)) (then (return (global.get $end))))
        (if (i32.eqz (call $put_text (local.get $slot) (local.get $at) (i32.sub (local.get $stop) (local.get $at)) (i32.const 2)))
          (then (return (i32.const 0))))
        (return (i32.add (local.get $stop) (i32.const 1)))))
    (if (i32.and (i32.ne (local.get $count) (i32.const 2)) (i32.or (i32.eq (local.get $byte) (i32.const 0x2d))
          (i32.lt_u (i32.sub (local.get $byte) (i32.const 0x30)) (i32.const 10))))
      (then
        (local.set $stop (call $number (local.get $slot) (local.get $count) (local.get $at)))
        (if (local.get $stop) (then (return (local.get $stop))))))
    (local.set $stop (call $skip (local.get $at)))
    (if (i32.ge_u (local.get $stop) (global.get $end)) (then (return (global.get $end))))
    (if (i32.eqz (call $put_text (local.get $slot) (local.get $at) (i32.sub (local.get $stop) (local.get $at)) (i32.const 3)))
      (then (return (i32.const 0))))
    (local.get $stop))

  ;; Remove the values of an incomplete event.
  (func $forget
    (local $slot i32)
    (loop $next
      (i32.store8 offset=0x950000 (i32.add (i32.shl (local.get $slot) (i32.const 14)) (global.get $row)) (i32.const 0))
      (local.set $slot (i32.add (local.get $slot) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $slot) (i32.const 64)))))

  ;; Parse one event from its first key on; return the offset of its end, 1 if it is incomplete, 0 if it is invalid.
  ;; Slot 0 receives the location of the arguments: the start, and above 32 bits the end.
  (func $event (param $at i32) (result i32)
    (local $level i32) (local $byte i32) (local $stop i32) (local $slot i32) (local $args i32)
    (loop $member
      (global.set $far (local.get $at))
      (local.set $at (call $space (local.get $at)))
      (if (i32.ge_u (local.get $at) (global.get $end)) (then (return (i32.const 1))))
      (local.set $byte (i32.load8_u (local.get $at)))
      (if (i32.eq (local.get $byte) (i32.const 0x7d))
        (then
          (local.set $at (i32.add (local.get $at) (i32.const 1)))
          (if (i32.eqz (local.get $level)) (then (return (local.get $at))))
          (local.set $level (i32.const 0))
          (call $put (i32.const 0)
            (i64.or (i64.extend_i32_u (local.get $args)) (i64.shl (i64.extend_i32_u (local.get $at)) (i64.const 32)))
            (i32.const 1)))
        (else
          (if (i32.ne (local.get $byte) (i32.const 0x22)) (then (return (i32.const 0))))
          (local.set $at (i32.add (local.get $at) (i32.const 1)))
          (local.set $stop (call $quote (local.get $at)))
          (if (i32.ge_u (local.get $stop) (global.get $end)) (then (return (i32.const 1))))
          (local.set $slot (call $slot_of (local.get $at) (i32.sub (local.get $stop) (local.get $at)) (local.get $level)))
          (local.set $at (call $space (i32.add (local.get $stop) (i32.const 1))))
          (if (i32.ge_u (local.get $at) (global.get $end)) (then (return (i32.const 1))))
          (if (i32.ne (i32.load8_u (local.get $at)) (i32.const 0x3a)) (then (return (i32.const 0))))
          (local.set $at (call $space (i32.add (local.get $at) (i32.const 1))))
          (if (i32.ge_u (local.get $at) (global.get $end)) (then (return (i32.const 1))))
          (if (i32.and (i32.eq (local.get $slot) (i32.const 1)) (i32.eq (i32.load8_u (local.get $at)) (i32.const 0x7b)))
            (then
              (local.set $args (local.get $at))
              (local.set $level (i32.const 1))
              (local.set $at (i32.add (local.get $at) (i32.const 1)))
              (br $member)))
          (local.set $stop (local.get $at))
          (local.set $at
            (if (result i32) (i32.and (local.get $slot) (i32.const 0xff))
              (then (call $value
                (i32.sub (i32.and (local.get $slot) (i32.const 0xff)) (i32.const 1))
                (i32.shr_u (local.get $slot) (i32.const 8)) (local.get $at)))
              (else (call $skip (local.get $at)))))
          (if (i32.le_u (local.get $at) (local.get $stop)) (then (return (i32.const 0))))))
      (local.set $at (call $space (local.get $at)))
      (if (i32.ge_u (local.get $at) (global.get $end)) (then (return (i32.const 1))))
      (local.set $byte (i32.load8_u (local.get $at)))
      (if (i32.eq (local.get $byte) (i32.const 0x2c)) (then (local.set $at (i32.add (local.get $at) (i32.const 1))) (br $member)))
      (br_if $member (i32.eq (local.get $byte) (i32.const 0x7d))))
    (i32.const 0))

  ;; Parse events. Frame: start and end of the bytes, rows, maximum number of rows, strings. On return it has the offset of the
  ;; first byte that is not part of a parsed event, rows, strings, and how far an invalid event was examined.
  (func (export "events") (result i32)
    (local $at i32) (local $most i32) (local $stop i32) (local $byte i32)
    (local.set $at (i32.load offset=64 (i32.const 0)))
    (global.set $end (i32.load offset=68 (i32.const 0)))
    (global.set $row (i32.load offset=72 (i32.const 0)))
    (local.set $most (i32.load offset=76 (i32.const 0)))
    (global.set $codes (i32.load offset=80 (i32.const 0)))
    (loop $next
      (local.set $at (call $space (local.get $at)))
      (if (i32.eq (i32.load8_u (local.get $at)) (i32.const 0x2c))
        (then (local.set $at (call $space (i32.add (local.get $at) (i32.const 1))))))
      (i32.store offset=64 (i32.const 0) (local.get $at))
      (i32.store offset=72 (i32.const 0) (global.get $row))
      (i32.store offset=80 (i32.const 0) (global.get $codes))
      (if (i32.ge_u (local.get $at) (global.get $end)) (then (return (i32.const 1))))
      (local.set $byte (i32.load8_u (local.get $at)))
      (if (i32.eq (local.get $byte) (i32.const 0x5d))
        (then
          (i32.store offset=64 (i32.const 0) (i32.add (local.get $at) (i32.const 1)))
          (return (i32.const 0))))
      (if (i32.ne (local.get $byte) (i32.const 0x7b)) (then (return (i32.const 3))))
      (if (i32.or (i32.ge_u (global.get $row) (local.get $most)) (i32.gt_u (global.get $codes) (i32.const 50000)))
        (then (return (i32.const 2))))
      (local.set $stop (call $event (i32.add (local.get $at) (i32.const 1))))
      (if (i32.gt_u (local.get $stop) (local.get $at))
        (then
          (global.set $row (i32.add (global.get $row) (i32.const 1)))
          (local.set $at (local.get $stop))
          (br $next))))
    (call $forget)
    (i32.store offset=80 (i32.const 0) (global.get $codes))
    (i32.store offset=84 (i32.const 0) (global.get $far))
    (select (i32.const 1) (i32.const 3) (local.get $stop)))

  ;; Skip a value. Frame: start and end of the bytes, depth, whether a string is open. Result: 0 it has ended, 1 it continues.
  (func (export "pass") (result i32)
    (local $at i32)
    (global.set $end (i32.load offset=68 (i32.const 0)))
    (global.set $depth (i32.load offset=72 (i32.const 0)))
    (global.set $inside (i32.load offset=76 (i32.const 0)))
    (local.set $at (call $nested (i32.load offset=64 (i32.const 0))))
    (i32.store offset=64 (i32.const 0) (local.get $at))
    (i32.store offset=72 (i32.const 0) (global.get $depth))
    (i32.store offset=76 (i32.const 0) (global.get $inside))
    (i32.or (i32.gt_s (global.get $depth) (i32.const 0)) (global.get $inside)))

  ;; Compute the hash of a string. Frame: offset, size, level of the key, offset of the result.
  (func (export "hash") (result i32)
    (i64.store (i32.load offset=76 (i32.const 0))
      (i64.xor (call $hash (i32.load offset=64 (i32.const 0)) (i32.load offset=68 (i32.const 0)))
        (i64.load32_u offset=72 (i32.const 0))))
    (i32.const 0))

  ;; Concatenate byte ranges. Frame: number of ranges, offset of the ranges (64 bits: start, and above 32 bits the end), offset
  ;; of their ends in the output (32 bits), offset of the output. Result: number of bytes written.
  (func (export "gather") (result i32)
    (local $n i32) (local $pieces i32) (local $ends i32) (local $to i32) (local $from i64) (local $size i32) (local $put i32)
    (local.set $n (i32.load offset=64 (i32.const 0)))
    (local.set $pieces (i32.load offset=68 (i32.const 0)))
    (local.set $ends (i32.load offset=72 (i32.const 0)))
    (local.set $to (i32.load offset=76 (i32.const 0)))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $n)))
        (local.set $from (i64.load (local.get $pieces)))
        (local.set $size (i32.sub (i32.wrap_i64 (i64.shr_u (local.get $from) (i64.const 32))) (i32.wrap_i64 (local.get $from))))
        (memory.copy (i32.add (local.get $to) (local.get $put)) (i32.wrap_i64 (local.get $from)) (local.get $size))
        (local.set $put (i32.add (local.get $put) (local.get $size)))
        (i32.store (local.get $ends) (local.get $put))
        (local.set $pieces (i32.add (local.get $pieces) (i32.const 8)))
        (local.set $ends (i32.add (local.get $ends) (i32.const 4)))
        (local.set $n (i32.sub (local.get $n) (i32.const 1)))
        (br $next)))
    (local.get $put))
)
