// Options of the long runs: one that is mistyped must not make a run that tests nothing and passes.

/** Ends the process with the reason. */
function refuse(name: string, text: string, expected: string): never {
  console.error(`Invalid --${name}: expected ${expected}, got ${JSON.stringify(text)}`);
  process.exit(2);
}

export function numberOption(name: string, text: string): number {
  const value = Number(text);
  if (text.trim() !== '' && Number.isFinite(value) && value >= 0) return value;
  return refuse(name, text, 'a number of at least 0');
}

/** Each must be part of a name that there is. */
export function checkNames(option: string, wanted: readonly string[], names: readonly string[]): void {
  for (const part of wanted) {
    if (!names.some((name) => name.includes(part))) refuse(option, part, names.join(', '));
  }
}
