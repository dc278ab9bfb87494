  ;; A trie of sequences of 32-bit labels. Nodes are numbered from 1 in order of creation; 0 is the root. The memory, defined in
  ;; tries.py, holds the number of nodes; the offsets of the arrays of their parents, labels and depths by number; and the offset
  ;; of a hash table, its number of entries minus 1, and the seed of its hashes. An entry is the parent and label of a node,
  ;; and its number (0: free).

  ;; Return the entry for the child of a node with a label: that of the child, or a free one.
  (func $entry (param $key i64) (result i32)
    (local $slot i32) (local $entry i32) (local $table i32) (local $mask i32)
    (local.set $table (i32.load offset={TABLE} (i32.const 0)))
    (local.set $mask (i32.load offset={MASK} (i32.const 0)))
    (local.set $slot (i32.wrap_i64 (i64.shr_u
      (call $mix (call $mix (i64.load32_u offset={SEED} (i32.const 0)) (local.get $key)) (local.get $key))
      (i64.const 32))))
    (loop $probe
      (local.set $slot (i32.and (local.get $slot) (local.get $mask)))
      (local.set $entry (i32.add (local.get $table) (i32.shl (local.get $slot) (i32.const 4))))
      (if (i32.eqz (i32.load offset=8 (local.get $entry))) (then (return (local.get $entry))))
      (if (i64.eq (local.get $key) (i64.load (local.get $entry))) (then (return (local.get $entry))))
      (local.set $slot (i32.add (local.get $slot) (i32.const 1)))
      (br $probe))
    (unreachable))

  ;; Return the key of a child: its parent and its label.
  (func $key (param $parent i32) (param $label i32) (result i64)
    (i64.or
      (i64.shl (i64.extend_i32_u (local.get $parent)) (i64.const 32))
      (i64.extend_i32_u (local.get $label))))

  ;; Return the child of a node with a label, which is created if it does not exist.
  (func $child (param $parent i32) (param $label i32) (result i32)
    (local $key i64) (local $entry i32) (local $node i32) (local $cell i32) (local $depths i32)
    (local.set $key (call $key (local.get $parent) (local.get $label)))
    (local.set $entry (call $entry (local.get $key)))
    (local.set $node (i32.load offset=8 (local.get $entry)))
    (if (local.get $node) (then (return (local.get $node))))
    (local.set $node (i32.add (i32.load offset={COUNT} (i32.const 0)) (i32.const 1)))
    (i32.store offset={COUNT} (i32.const 0) (local.get $node))
    (i64.store (local.get $entry) (local.get $key))
    (i32.store offset=8 (local.get $entry) (local.get $node))
    (local.set $cell (i32.shl (local.get $node) (i32.const 2)))
    (local.set $depths (i32.load offset={DEPTHS} (i32.const 0)))
    (i32.store (i32.add (i32.load offset={PARENTS} (i32.const 0)) (local.get $cell)) (local.get $parent))
    (i32.store (i32.add (i32.load offset={LABELS} (i32.const 0)) (local.get $cell)) (local.get $label))
    (i32.store (i32.add (local.get $depths) (local.get $cell))
      (i32.add (i32.load (i32.add (local.get $depths) (i32.shl (local.get $parent) (i32.const 2)))) (i32.const 1)))
    (local.get $node))

  ;; Add sequences of labels, each from its last label to its first. Parameters: number of sequences n; offsets of the arrays of
  ;; their n + 1 boundaries, of the labels, and of the last node of each sequence, which is returned. There has to be room for
  ;; as many nodes as there are labels.
  (func (export "add") (result i32)
    (local $bytes i32) (local $edges i32) (local $sequence i32) (local $nodes i32) (local $row i32) (local $at i32)
    (local $begin i32) (local $node i32)
    (local.set $bytes (i32.shl (i32.load offset={add.sequences} (i32.const 0)) (i32.const 2)))
    (local.set $edges (i32.load offset={add.edges} (i32.const 0)))
    (local.set $sequence (i32.load offset={add.sequence_labels} (i32.const 0)))
    (local.set $nodes (i32.load offset={add.nodes} (i32.const 0)))
    (block $all
      (loop $rows
        (br_if $all (i32.ge_u (local.get $row) (local.get $bytes)))
        (local.set $begin (i32.add (local.get $sequence)
          (i32.shl (i32.load (i32.add (local.get $edges) (local.get $row))) (i32.const 2))))
        (local.set $at (i32.add (local.get $sequence)
          (i32.shl (i32.load offset=4 (i32.add (local.get $edges) (local.get $row))) (i32.const 2))))
        (local.set $node (i32.const 0))
        (block $done
          (loop $next
            (br_if $done (i32.le_u (local.get $at) (local.get $begin)))
            (local.set $at (i32.sub (local.get $at) (i32.const 4)))
            (local.set $node (call $child (local.get $node) (i32.load (local.get $at))))
            (br $next)))
        (i32.store (i32.add (local.get $nodes) (local.get $row)) (local.get $node))
        (local.set $row (i32.add (local.get $row) (i32.const 4)))
        (br $rows)))
    (i32.const 0))

  ;; Add the nodes of another trie. Parameters: number of nodes; offsets of the arrays of their parents and labels by number,
  ;; and of the array of the numbers that they have here, which is returned. There has to be room for as many nodes.
  (func (export "merge") (result i32)
    (local $bytes i32) (local $parents i32) (local $labels i32) (local $nodes i32) (local $cell i32)
    (local.set $bytes (i32.shl (i32.load offset={merge.others} (i32.const 0)) (i32.const 2)))
    (local.set $parents (i32.load offset={merge.other_parents} (i32.const 0)))
    (local.set $labels (i32.load offset={merge.other_labels} (i32.const 0)))
    (local.set $nodes (i32.load offset={merge.nodes} (i32.const 0)))
    (i32.store (local.get $nodes) (i32.const 0))
    (local.set $cell (i32.const 4))
    (block $all
      (loop $rows
        (br_if $all (i32.gt_u (local.get $cell) (local.get $bytes)))
        (i32.store (i32.add (local.get $nodes) (local.get $cell))
          (call $child
            (i32.load (i32.add (local.get $nodes)
              (i32.shl (i32.load (i32.add (local.get $parents) (local.get $cell))) (i32.const 2))))
            (i32.load (i32.add (local.get $labels) (local.get $cell)))))
        (local.set $cell (i32.add (local.get $cell) (i32.const 4)))
        (br $rows)))
    (i32.const 0))

  ;; Enter all nodes into an empty hash table.
  (func (export "index") (result i32)
    (local $node i32) (local $cell i32) (local $key i64) (local $entry i32)
    (block $all
      (loop $rows
        (br_if $all (i32.ge_u (local.get $node) (i32.load offset={COUNT} (i32.const 0))))
        (local.set $node (i32.add (local.get $node) (i32.const 1)))
        (local.set $cell (i32.shl (local.get $node) (i32.const 2)))
        (local.set $key (call $key
          (i32.load (i32.add (i32.load offset={PARENTS} (i32.const 0)) (local.get $cell)))
          (i32.load (i32.add (i32.load offset={LABELS} (i32.const 0)) (local.get $cell)))))
        (local.set $entry (call $entry (local.get $key)))
        (i64.store (local.get $entry) (local.get $key))
        (i32.store offset=8 (local.get $entry) (local.get $node))
        (br $rows)))
    (i32.const 0))
