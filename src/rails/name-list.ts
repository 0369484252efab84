// Lists of devices as settings have them: names, beginnings of names, exact names, or all but some.

export interface NamePattern {
  readonly name: string;
  readonly isExact: boolean;
}

interface NameList {
  /** All but those that match. */
  readonly isExclusion: boolean;
  readonly patterns: readonly NamePattern[];
}

/** `eth0,ib`, `=eth0,ib0` (all exact), `eth,=ib0`, `^docker,veth`, `^=eth0`; undefined for what is no such list. */
export function readNameList(text: string): NameList | undefined {
  const list = text.trim();
  const isExclusion = list.startsWith('^');
  const names = isExclusion ? list.slice(1).trim() : list;
  const areExact = names.startsWith('=');
  const elements = (areExact ? names.slice(1) : names).split(',').map((element) => element.trim());
  const patterns = elements.map((element) => {
    const isExact = element.startsWith('=');
    return { name: isExact ? element.slice(1).trim() : element, isExact: areExact || isExact };
  });
  if (patterns.some(({ name }) => name === '' || /[\^=]/.test(name))) return undefined;
  return { isExclusion, patterns };
}

/** What a pattern means: the one of that name, or else, if it is not exact, all whose names begin so. */
export function matchingNames<T extends { readonly name: string }>(
  { name, isExact }: NamePattern,
  things: readonly T[],
): readonly T[] {
  const same = things.filter((one) => one.name === name);
  if (same.length > 0 || isExact) return same;
  return things.filter((one) => one.name.startsWith(name));
}
