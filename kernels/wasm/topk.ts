// Reads top-k choices: expert ids as i32 or i64.

/** The expert of one cell; an id that i32 cannot hold becomes one that no bound allows, instead of wrapping into it. */
@inline
export function expertAt(topk: usize, wide: bool, cell: usize): i32 {
  if (!wide) return load<i32>(topk + (cell << 2));
  const value = load<i64>(topk + (cell << 3));
  return value < i64(i32.MIN_VALUE) || value > i64(i32.MAX_VALUE) ? i32.MIN_VALUE : <i32>value;
}
