  ;; Parse the JSON events of a Chrome trace. event_sandbox.py defines the memory layout, the keys, the types of cells and the
  ;; return values. The value of each registered key of an event is stored in the cell of the key's slot and the event's row.

  (global $end (mut i32) (i32.const 0))
  (global $strings (mut i32) (i32.const 0))
  (global $row (mut i32) (i32.const 0))
  (global $depth (mut i32) (i32.const 0))
  (global $in_string (mut i32) (i32.const 0))
  (global $examined (mut i32) (i32.const 0))

  ;; Return the offset of the next byte that is not white space. Bytes 1 to 32 count as white space; 0 ends the input.
  (func $skip_space (param $offset i32) (result i32)
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (i32.sub (i32.load8_u (local.get $offset)) (i32.const 1)) (i32.const 32)))
        (local.set $offset (i32.add (local.get $offset) (i32.const 1)))
        (br $next)))
    (local.get $offset))

  ;; Return the offset of the quote that ends a string. If the input ends before it, return an offset at or beyond the end.
  (func $find_quote (param $offset i32) (result i32)
    (local $bytes v128) (local $matches i32)
    (loop $next
      (if (i32.ge_u (local.get $offset) (global.get $end)) (then (return (local.get $offset))))
      (local.set $bytes (v128.load align=1 (local.get $offset)))
      (local.set $matches (i8x16.bitmask (v128.or
        (i8x16.eq (local.get $bytes) (i8x16.splat (i32.const 0x22)))
        (i8x16.eq (local.get $bytes) (i8x16.splat (i32.const 0x5c))))))
      (if (i32.eqz (local.get $matches))
        (then
          (local.set $offset (i32.add (local.get $offset) (i32.const 16)))
          (if (i32.gt_u (local.get $offset) (global.get $end)) (then (return (global.get $end))))
          (br $next)))
      (local.set $offset (i32.add (local.get $offset) (i32.ctz (local.get $matches))))
      (if (i32.eq (i32.load8_u (local.get $offset)) (i32.const 0x22)) (then (return (local.get $offset))))
      (local.set $offset (i32.add (local.get $offset) (i32.const 2)))
      (br $next))
    (unreachable))

  ;; Return the dictionary code of a string, or -1 if there are too many strings. Equal strings have the same code, unless
  ;; MAX_PROBES entries of the hash table are occupied by other strings.
  (func $code_of (param $offset i32) (param $size i32) (result i32)
    (local $hash i64) (local $entry i32) (local $probes i32) (local $code i32)
    (local.set $hash (call $hash (local.get $offset) (local.get $size)))
    (local.set $entry (i32.and (i32.wrap_i64 (local.get $hash)) (i32.const {STRING_TABLE_MASK})))
    (block $new
      (loop $next
        (local.set $code (i32.load offset={STRING_TABLE} (i32.shl (local.get $entry) (i32.const 2))))
        (br_if $new (i32.eqz (local.get $code)))
        (local.set $code (i32.sub (local.get $code) (i32.const 1)))
        (if (i32.and
              (i64.eq (local.get $hash) (i64.load offset={STRING_HASHES} (i32.shl (local.get $code) (i32.const 3))))
              (i32.eq (local.get $size) (i32.load offset={STRING_SIZES} (i32.shl (local.get $code) (i32.const 2)))))
          (then
            (if (call $equal (local.get $offset) (i32.load offset={STRING_STARTS} (i32.shl (local.get $code) (i32.const 2))) (local.get $size))
              (then (return (local.get $code))))))
        (local.set $entry (i32.and (i32.add (local.get $entry) (i32.const 1)) (i32.const {STRING_TABLE_MASK})))
        (local.set $probes (i32.add (local.get $probes) (i32.const 1)))
        (br_if $next (i32.lt_u (local.get $probes) (i32.const {MAX_PROBES})))))
    (local.set $code (global.get $strings))
    (if (i32.ge_u (local.get $code) (i32.const {MAX_STRINGS})) (then (return (i32.const -1))))
    (global.set $strings (i32.add (local.get $code) (i32.const 1)))
    (if (i32.lt_u (local.get $probes) (i32.const {MAX_PROBES}))
      (then (i32.store offset={STRING_TABLE} (i32.shl (local.get $entry) (i32.const 2)) (global.get $strings))))
    (i64.store offset={STRING_HASHES} (i32.shl (local.get $code) (i32.const 3)) (local.get $hash))
    (i32.store offset={STRING_STARTS} (i32.shl (local.get $code) (i32.const 2)) (local.get $offset))
    (i32.store offset={STRING_SIZES} (i32.shl (local.get $code) (i32.const 2)) (local.get $size))
    (local.get $code))

  ;; Return the slot of a key plus 1, with its flags, or 0 if the key is not registered.
  (func $slot_of (param $offset i32) (param $size i32) (param $level i32) (result i32)
    (local $hash i64) (local $key i32)
    (local.set $hash (i64.xor (call $hash (local.get $offset) (local.get $size)) (i64.extend_i32_u (local.get $level))))
    (local.set $key (i32.and (i32.wrap_i64 (local.get $hash)) (i32.const {KEY_MASK})))
    (loop $next
      (if (i32.eqz (i32.load offset={KEY_SLOTS} (i32.shl (local.get $key) (i32.const 4)))) (then (return (i32.const 0))))
      (if (i64.eq (local.get $hash) (i64.load offset={KEYS} (i32.shl (local.get $key) (i32.const 4))))
        (then
          (if (i32.eq (local.get $size) (i32.load offset={KEY_SIZES} (i32.shl (local.get $key) (i32.const 4))))
            (then (return (i32.load offset={KEY_SLOTS} (i32.shl (local.get $key) (i32.const 4))))))))
      (local.set $key (i32.and (i32.add (local.get $key) (i32.const 1)) (i32.const {KEY_MASK})))
      (br $next))
    (unreachable))

  ;; Store a value and its type in the cell of a slot in the current row.
  (func $store (param $slot i32) (param $value i64) (param $type i32)
    (local $cell i32)
    (local.set $cell (i32.add (i32.mul (local.get $slot) (i32.const {ROWS})) (global.get $row)))
    (i64.store offset={CELLS} (i32.shl (local.get $cell) (i32.const 3)) (local.get $value))
    (i32.store8 offset={TYPES} (local.get $cell) (local.get $type)))

  ;; Store the dictionary code of a string in a cell. Return 1, or 0 if there are too many strings.
  (func $store_string (param $slot i32) (param $offset i32) (param $size i32) (param $type i32) (result i32)
    (local $code i32)
    (local.set $code (call $code_of (local.get $offset) (local.get $size)))
    (if (i32.lt_s (local.get $code) (i32.const 0)) (then (return (i32.const 0))))
    (call $store (local.get $slot) (i64.extend_i32_u (local.get $code)) (local.get $type))
    (i32.const 1))

  ;; Skip the rest of an array or object. Return the offset of its end. If the input ends before it, return an offset at or
  ;; beyond the end of the input.
  (func $skip_nested (param $offset i32) (result i32)
    (local $bytes v128) (local $byte i32) (local $matches i32)
    (loop $next
      (if (i32.ge_u (local.get $offset) (global.get $end)) (then (return (local.get $offset))))
      (if (global.get $in_string)
        (then
          (local.set $offset (call $find_quote (local.get $offset)))
          (if (i32.ge_u (local.get $offset) (global.get $end)) (then (return (local.get $offset))))
          (global.set $in_string (i32.const 0))
          (local.set $offset (i32.add (local.get $offset) (i32.const 1)))
          (br_if $next (i32.gt_s (global.get $depth) (i32.const 0)))
          (return (local.get $offset))))
      (local.set $bytes (v128.load align=1 (local.get $offset)))
      (local.set $matches (i8x16.bitmask (v128.or
        (i8x16.eq (local.get $bytes) (i8x16.splat (i32.const 0x22)))
        (v128.or
          (i8x16.eq (v128.or (local.get $bytes) (i8x16.splat (i32.const 0x20))) (i8x16.splat (i32.const 0x7b)))
          (i8x16.eq (v128.or (local.get $bytes) (i8x16.splat (i32.const 0x20))) (i8x16.splat (i32.const 0x7d)))))))
      (if (i32.eqz (local.get $matches))
        (then
          (local.set $offset (i32.add (local.get $offset) (i32.const 16)))
          (if (i32.gt_u (local.get $offset) (global.get $end)) (then (return (global.get $end))))
          (br $next)))
      (local.set $offset (i32.add (local.get $offset) (i32.ctz (local.get $matches))))
      (local.set $byte (i32.load8_u (local.get $offset)))
      (local.set $offset (i32.add (local.get $offset) (i32.const 1)))
      (if (i32.eq (local.get $byte) (i32.const 0x22)) (then (global.set $in_string (i32.const 1)) (br $next)))
      (global.set $depth (i32.add (global.get $depth)
        (select (i32.const 1) (i32.const -1) (i32.eq (i32.or (local.get $byte) (i32.const 0x20)) (i32.const 0x7b)))))
      (br_if $next (i32.gt_s (global.get $depth) (i32.const 0))))
    (local.get $offset))

  ;; Return whether a byte can follow a value: a comma, a closing bracket, white space, or the end of the input.
  (func $can_follow_value (param $byte i32) (result i32)
    (i32.or (i32.or (i32.le_u (local.get $byte) (i32.const 32)) (i32.eq (local.get $byte) (i32.const 0x2c)))
      (i32.eq (i32.or (local.get $byte) (i32.const 0x20)) (i32.const 0x7d))))

  ;; Skip a value. Return the offset of its end, or the end of the input if the value is incomplete.
  (func $skip_value (param $offset i32) (result i32)
    (local $byte i32)
    (local.set $byte (i32.load8_u (local.get $offset)))
    (if (i32.eq (local.get $byte) (i32.const 0x22))
      (then
        (local.set $offset (call $find_quote (i32.add (local.get $offset) (i32.const 1))))
        (if (i32.ge_u (local.get $offset) (global.get $end)) (then (return (global.get $end))))
        (return (i32.add (local.get $offset) (i32.const 1)))))
    (if (i32.eq (i32.or (local.get $byte) (i32.const 0x20)) (i32.const 0x7b))
      (then
        (global.set $depth (i32.const 0))
        (global.set $in_string (i32.const 0))
        (local.set $offset (call $skip_nested (local.get $offset)))
        (if (i32.or (i32.gt_s (global.get $depth) (i32.const 0)) (global.get $in_string)) (then (return (global.get $end))))
        (return (local.get $offset))))
    (block $done
      (loop $next
        (br_if $done (call $can_follow_value (i32.load8_u (local.get $offset))))
        (local.set $offset (i32.add (local.get $offset) (i32.const 1)))
        (br $next)))
    (local.get $offset))

  ;; Store a number in a cell. Return the offset of its end, or 0 if the number cannot be parsed here. The caller then stores
  ;; its JSON text.
  (func $store_number (param $slot i32) (param $thousandths i32) (param $offset i32) (result i32)
    (local $value i64) (local $digit i32) (local $first i32) (local $negative i32) (local $unit i64) (local $may_round i32)
    (if (i32.eq (i32.load8_u (local.get $offset)) (i32.const 0x2d))
      (then (local.set $negative (i32.const 1)) (local.set $offset (i32.add (local.get $offset) (i32.const 1)))))
    (local.set $first (local.get $offset))
    (block $done
      (loop $next
        (local.set $digit (i32.sub (i32.load8_u (local.get $offset)) (i32.const 0x30)))
        (br_if $done (i32.ge_u (local.get $digit) (i32.const 10)))
        (local.set $value (i64.add (i64.mul (local.get $value) (i64.const 10)) (i64.extend_i32_u (local.get $digit))))
        (local.set $offset (i32.add (local.get $offset) (i32.const 1)))
        (br $next)))
    (local.set $digit (i32.sub (local.get $offset) (local.get $first)))
    (if (i32.ge_u (i32.sub (local.get $digit) (i32.const 1)) (i32.const 18)) (then (return (i32.const 0))))
    (local.set $unit (i64.const 1))
    (if (local.get $thousandths)
      (then
        (if (i64.gt_u (local.get $value) (i64.const 9000000000000000)) (then (return (i32.const 0))))
        (local.set $value (i64.mul (local.get $value) (i64.const 1000)))
        (local.set $unit (i64.const 1000))))
    (if (i32.eq (i32.load8_u (local.get $offset)) (i32.const 0x2e))
      (then
        (local.set $offset (i32.add (local.get $offset) (i32.const 1)))
        (local.set $may_round (i32.const 1))
        (block $whole
          (loop $next
            (local.set $digit (i32.sub (i32.load8_u (local.get $offset)) (i32.const 0x30)))
            (br_if $whole (i32.ge_u (local.get $digit) (i32.const 10)))
            (local.set $offset (i32.add (local.get $offset) (i32.const 1)))
            (if (i64.gt_u (local.get $unit) (i64.const 1))
              (then
                (local.set $unit (i64.div_u (local.get $unit) (i64.const 10)))
                (local.set $value (i64.add (local.get $value) (i64.mul (local.get $unit) (i64.extend_i32_u (local.get $digit)))))
                (br $next)))
            (if (i32.eqz (local.get $thousandths))
              (then (if (local.get $digit) (then (return (i32.const 0)))))
              (else
                (if (local.get $may_round)
                  (then
                    (local.set $value (i64.add (local.get $value) (i64.extend_i32_u (i32.ge_u (local.get $digit) (i32.const 5)))))
                    (local.set $may_round (i32.const 0))))))
            (br $next)))))
    (if (i32.eqz (call $can_follow_value (i32.load8_u (local.get $offset)))) (then (return (i32.const 0))))
    (if (local.get $negative) (then (local.set $value (i64.sub (i64.const 0) (local.get $value)))))
    (call $store (local.get $slot) (local.get $value) (i32.const {NUMBER}))
    (local.get $offset))

  ;; Store a value in a cell. Return the offset of its end, the end of the input if the value is incomplete, or 0 if there
  ;; are too many strings.
  (func $store_value (param $slot i32) (param $flags i32) (param $offset i32) (result i32)
    (local $byte i32) (local $stop i32)
    (local.set $byte (i32.load8_u (local.get $offset)))
    (if (i32.eq (local.get $byte) (i32.const 0x22))
      (then
        (local.set $offset (i32.add (local.get $offset) (i32.const 1)))
        (local.set $stop (call $find_quote (local.get $offset)))
        (if (i32.ge_u (local.get $stop) (global.get $end)) (then (return (global.get $end))))
        (if (i32.eqz (call $store_string (local.get $slot) (local.get $offset) (i32.sub (local.get $stop) (local.get $offset)) (i32.const {STRING})))
          (then (return (i32.const 0))))
        (return (i32.add (local.get $stop) (i32.const 1)))))
    (if (i32.and (i32.eqz (i32.and (local.get $flags) (i32.const {AS_STRING}))) (i32.or (i32.eq (local.get $byte) (i32.const 0x2d))
          (i32.lt_u (i32.sub (local.get $byte) (i32.const 0x30)) (i32.const 10))))
      (then
        (local.set $stop (call $store_number (local.get $slot) (i32.and (local.get $flags) (i32.const {THOUSANDTHS})) (local.get $offset)))
        (if (local.get $stop) (then (return (local.get $stop))))))
    (local.set $stop (call $skip_value (local.get $offset)))
    (if (i32.ge_u (local.get $stop) (global.get $end)) (then (return (global.get $end))))
    (if (i32.eqz (call $store_string (local.get $slot) (local.get $offset) (i32.sub (local.get $stop) (local.get $offset)) (i32.const {OTHER})))
      (then (return (i32.const 0))))
    (local.get $stop))

  ;; Clear the cells of an incomplete event.
  (func $clear_row
    (local $slot i32)
    (loop $next
      (i32.store8 offset={TYPES} (i32.add (i32.mul (local.get $slot) (i32.const {ROWS})) (global.get $row)) (i32.const 0))
      (local.set $slot (i32.add (local.get $slot) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $slot) (i32.const {SLOTS})))))

  ;; Parse one event, beginning at its first key. Return the offset of its end, 1 if it is incomplete, or 0 if it is invalid.
  ;; Slot 0 receives the range of its arguments: the start offset, and the end offset in the upper 32 bits.
  (func $parse_event (param $offset i32) (result i32)
    (local $level i32) (local $byte i32) (local $stop i32) (local $slot i32) (local $args i32)
    (loop $member
      (global.set $examined (local.get $offset))
      (local.set $offset (call $skip_space (local.get $offset)))
      (if (i32.ge_u (local.get $offset) (global.get $end)) (then (return (i32.const 1))))
      (local.set $byte (i32.load8_u (local.get $offset)))
      (if (i32.eq (local.get $byte) (i32.const 0x7d))
        (then
          (local.set $offset (i32.add (local.get $offset) (i32.const 1)))
          (if (i32.eqz (local.get $level)) (then (return (local.get $offset))))
          (local.set $level (i32.const 0))
          (call $store (i32.const 0)
            (i64.or (i64.extend_i32_u (local.get $args)) (i64.shl (i64.extend_i32_u (local.get $offset)) (i64.const 32)))
            (i32.const {NUMBER})))
        (else
          (if (i32.ne (local.get $byte) (i32.const 0x22)) (then (return (i32.const 0))))
          (local.set $offset (i32.add (local.get $offset) (i32.const 1)))
          (local.set $stop (call $find_quote (local.get $offset)))
          (if (i32.ge_u (local.get $stop) (global.get $end)) (then (return (i32.const 1))))
          (local.set $slot (call $slot_of (local.get $offset) (i32.sub (local.get $stop) (local.get $offset)) (local.get $level)))
          (local.set $offset (call $skip_space (i32.add (local.get $stop) (i32.const 1))))
          (if (i32.ge_u (local.get $offset) (global.get $end)) (then (return (i32.const 1))))
          (if (i32.ne (i32.load8_u (local.get $offset)) (i32.const 0x3a)) (then (return (i32.const 0))))
          (local.set $offset (call $skip_space (i32.add (local.get $offset) (i32.const 1))))
          (if (i32.ge_u (local.get $offset) (global.get $end)) (then (return (i32.const 1))))
          (if (i32.and (i32.eq (local.get $slot) (i32.const 1)) (i32.eq (i32.load8_u (local.get $offset)) (i32.const 0x7b)))
            (then
              (local.set $args (local.get $offset))
              (local.set $level (i32.const 1))
              (local.set $offset (i32.add (local.get $offset) (i32.const 1)))
              (br $member)))
          (local.set $stop (local.get $offset))
          (local.set $offset
            (if (result i32) (i32.and (local.get $slot) (i32.const {SLOT_MASK}))
              (then (call $store_value
                (i32.sub (i32.and (local.get $slot) (i32.const {SLOT_MASK})) (i32.const 1))
                (local.get $slot) (local.get $offset)))
              (else (call $skip_value (local.get $offset)))))
          (if (i32.le_u (local.get $offset) (local.get $stop)) (then (return (i32.const 0))))))
      (local.set $offset (call $skip_space (local.get $offset)))
      (if (i32.ge_u (local.get $offset) (global.get $end)) (then (return (i32.const 1))))
      (local.set $byte (i32.load8_u (local.get $offset)))
      (if (i32.eq (local.get $byte) (i32.const 0x2c)) (then (local.set $offset (i32.add (local.get $offset) (i32.const 1))) (br $member)))
      (br_if $member (i32.eq (local.get $byte) (i32.const 0x7d))))
    (i32.const 0))

  ;; Parse events. Parameters: offset and end of the input, number of rows and its maximum, number of strings. The function
  ;; updates the offset (of the next event), rows and strings. If an event is invalid, it sets the offset up to which the event
  ;; was examined.
  (func (export "events") (result i32)
    (local $offset i32) (local $max_rows i32) (local $stop i32) (local $byte i32)
    (local.set $offset (i32.load offset={events.offset} (i32.const 0)))
    (global.set $end (i32.load offset={events.end} (i32.const 0)))
    (global.set $row (i32.load offset={events.rows} (i32.const 0)))
    (local.set $max_rows (i32.load offset={events.max_rows} (i32.const 0)))
    (global.set $strings (i32.load offset={events.strings} (i32.const 0)))
    (loop $next
      (local.set $offset (call $skip_space (local.get $offset)))
      (if (i32.eq (i32.load8_u (local.get $offset)) (i32.const 0x2c))
        (then (local.set $offset (call $skip_space (i32.add (local.get $offset) (i32.const 1))))))
      (i32.store offset={events.offset} (i32.const 0) (local.get $offset))
      (i32.store offset={events.rows} (i32.const 0) (global.get $row))
      (i32.store offset={events.strings} (i32.const 0) (global.get $strings))
      (if (i32.ge_u (local.get $offset) (global.get $end)) (then (return (i32.const {MORE}))))
      (local.set $byte (i32.load8_u (local.get $offset)))
      (if (i32.eq (local.get $byte) (i32.const 0x5d))
        (then
          (i32.store offset={events.offset} (i32.const 0) (i32.add (local.get $offset) (i32.const 1)))
          (return (i32.const {ENDED}))))
      (if (i32.ne (local.get $byte) (i32.const 0x7b)) (then (return (i32.const {INVALID}))))
      (if (i32.or (i32.ge_u (global.get $row) (local.get $max_rows)) (i32.gt_u (global.get $strings) (i32.const {ENOUGH_STRINGS})))
        (then (return (i32.const {FULL}))))
      (local.set $stop (call $parse_event (i32.add (local.get $offset) (i32.const 1))))
      (if (i32.gt_u (local.get $stop) (local.get $offset))
        (then
          (global.set $row (i32.add (global.get $row) (i32.const 1)))
          (local.set $offset (local.get $stop))
          (br $next))))
    (call $clear_row)
    (i32.store offset={events.strings} (i32.const 0) (global.get $strings))
    (i32.store offset={events.examined} (i32.const 0) (global.get $examined))
    (select (i32.const {MORE}) (i32.const {INVALID}) (local.get $stop)))

  ;; Skip the rest of an array or object. Parameters: offset and end of the input, nesting depth, whether the offset is
  ;; inside a string. Result: 0 if the end of the value was found, 1 if the input ends before it.
  (func (export "skip") (result i32)
    (local $offset i32)
    (global.set $end (i32.load offset={skip.end} (i32.const 0)))
    (global.set $depth (i32.load offset={skip.depth} (i32.const 0)))
    (global.set $in_string (i32.load offset={skip.in_string} (i32.const 0)))
    (local.set $offset (call $skip_nested (i32.load offset={skip.offset} (i32.const 0))))
    (i32.store offset={skip.offset} (i32.const 0) (local.get $offset))
    (i32.store offset={skip.depth} (i32.const 0) (global.get $depth))
    (i32.store offset={skip.in_string} (i32.const 0) (global.get $in_string))
    (i32.or (i32.gt_s (global.get $depth) (i32.const 0)) (global.get $in_string)))

  ;; Compute the hash of a key. Parameters: offset and size of the key, its level, and the offset of the result (64 bits).
  (func (export "hash") (result i32)
    (i64.store (i32.load offset={hash.output} (i32.const 0))
      (i64.xor (call $hash (i32.load offset={hash.offset} (i32.const 0)) (i32.load offset={hash.size} (i32.const 0)))
        (i64.load32_u offset={hash.level} (i32.const 0))))
    (i32.const 0))

  ;; Concatenate ranges of bytes. Parameters: number of ranges; offsets of the array of ranges (64 bits: start offset, and end
  ;; offset in the upper 32 bits), of the output array of ends (32 bits) and of the output. Result: size of the output.
  (func (export "gather") (result i32)
    (local $remaining i32) (local $ranges i32) (local $ends i32) (local $output i32) (local $range i64) (local $size i32) (local $written i32)
    (local.set $remaining (i32.load offset={gather.count} (i32.const 0)))
    (local.set $ranges (i32.load offset={gather.ranges} (i32.const 0)))
    (local.set $ends (i32.load offset={gather.ends} (i32.const 0)))
    (local.set $output (i32.load offset={gather.output} (i32.const 0)))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $remaining)))
        (local.set $range (i64.load (local.get $ranges)))
        (local.set $size (i32.sub (i32.wrap_i64 (i64.shr_u (local.get $range) (i64.const 32))) (i32.wrap_i64 (local.get $range))))
        (memory.copy (i32.add (local.get $output) (local.get $written)) (i32.wrap_i64 (local.get $range)) (local.get $size))
        (local.set $written (i32.add (local.get $written) (local.get $size)))
        (i32.store (local.get $ends) (local.get $written))
        (local.set $ranges (i32.add (local.get $ranges) (i32.const 8)))
        (local.set $ends (i32.add (local.get $ends) (i32.const 4)))
        (local.set $remaining (i32.sub (local.get $remaining) (i32.const 1)))
        (br $next)))
    (local.get $written))
