  ;; Hashing and comparing strings. Eight bytes beyond the end of a string have to be readable.

  ;; Return the remaining bytes of a string, of which there are at most seven, as a number.
  (func $last_bytes (param $offset i32) (param $size i32) (result i64)
    (i64.and
      (i64.load align=1 (local.get $offset))
      (i64.sub (i64.shl (i64.const 1) (i64.extend_i32_u (i32.shl (local.get $size) (i32.const 3)))) (i64.const 1))))

  ;; Return a hash that is updated with a word of eight bytes.
  (func $mix (param $hash i64) (param $word i64) (result i64)
    (local.set $hash (i64.mul (i64.xor (local.get $hash) (local.get $word)) (i64.const 0x9e3779b97f4a7c15)))
    (i64.xor (local.get $hash) (i64.shr_u (local.get $hash) (i64.const 29))))

  ;; Return a 64-bit hash of a string. Four hashes of a long string are computed side by side, each of every fourth word.
  (func $hash (param $offset i32) (param $size i32) (result i64)
    (local $hash i64) (local $second i64) (local $third i64) (local $fourth i64)
    (local.set $hash (i64.extend_i32_u (local.get $size)))
    (if (i32.ge_u (local.get $size) (i32.const 64))
      (then
        (loop $next
          (local.set $hash (i64.mul
            (i64.xor (local.get $hash) (i64.load align=1 (local.get $offset))) (i64.const 0x9e3779b97f4a7c15)))
          (local.set $second (i64.mul
            (i64.xor (local.get $second) (i64.load offset=8 align=1 (local.get $offset))) (i64.const 0x9e3779b97f4a7c15)))
          (local.set $third (i64.mul
            (i64.xor (local.get $third) (i64.load offset=16 align=1 (local.get $offset))) (i64.const 0x9e3779b97f4a7c15)))
          (local.set $fourth (i64.mul
            (i64.xor (local.get $fourth) (i64.load offset=24 align=1 (local.get $offset))) (i64.const 0x9e3779b97f4a7c15)))
          (local.set $hash (i64.xor (local.get $hash) (i64.shr_u (local.get $hash) (i64.const 29))))
          (local.set $second (i64.xor (local.get $second) (i64.shr_u (local.get $second) (i64.const 29))))
          (local.set $third (i64.xor (local.get $third) (i64.shr_u (local.get $third) (i64.const 29))))
          (local.set $fourth (i64.xor (local.get $fourth) (i64.shr_u (local.get $fourth) (i64.const 29))))
          (local.set $offset (i32.add (local.get $offset) (i32.const 32)))
          (local.set $size (i32.sub (local.get $size) (i32.const 32)))
          (br_if $next (i32.ge_u (local.get $size) (i32.const 32))))
        (local.set $hash (call $mix (call $mix (call $mix (local.get $hash)
          (local.get $second)) (local.get $third)) (local.get $fourth)))))
    (block $done
      (loop $next
        (br_if $done (i32.lt_u (local.get $size) (i32.const 8)))
        (local.set $hash (call $mix (local.get $hash) (i64.load align=1 (local.get $offset))))
        (local.set $offset (i32.add (local.get $offset) (i32.const 8)))
        (local.set $size (i32.sub (local.get $size) (i32.const 8)))
        (br $next)))
    (local.set $hash (call $mix (local.get $hash) (call $last_bytes (local.get $offset) (local.get $size))))
    (i64.xor (local.get $hash) (i64.shr_u (local.get $hash) (i64.const 32))))

  ;; Return whether two strings of the same size are equal.
  (func $equal (param $one i32) (param $other i32) (param $size i32) (result i32)
    (block $long
      (loop $next
        (br_if $long (i32.lt_u (local.get $size) (i32.const 32)))
        (if (v128.any_true (v128.or
            (v128.xor (v128.load align=1 (local.get $one)) (v128.load align=1 (local.get $other)))
            (v128.xor (v128.load offset=16 align=1 (local.get $one)) (v128.load offset=16 align=1 (local.get $other)))))
          (then (return (i32.const 0))))
        (local.set $one (i32.add (local.get $one) (i32.const 32)))
        (local.set $other (i32.add (local.get $other) (i32.const 32)))
        (local.set $size (i32.sub (local.get $size) (i32.const 32)))
        (br $next)))
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
      (call $last_bytes (local.get $one) (local.get $size))
      (call $last_bytes (local.get $other) (local.get $size))))
