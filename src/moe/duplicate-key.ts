// Finds a key that a JSON object holds twice; JSON.parse keeps the last one without a word.

/** The first key that repeats within one object of `json`, which must be valid JSON; undefined if none does. */
export function duplicateKey(json: string): string | undefined {
  // One set for each open object, undefined for each open array.
  const open: (Set<string> | undefined)[] = [];
  const bracketOrQuote = /["{}[\]]/g;
  for (let found = bracketOrQuote.exec(json); found !== null; found = bracketOrQuote.exec(json)) {
    const [token] = found;
    if (token === '{') open.push(new Set());
    else if (token === '[') open.push(undefined);
    else if (token !== '"') open.pop();
    else {
      const end = endOfString(json, found.index);
      bracketOrQuote.lastIndex = end;
      const keys = open.at(-1);
      // In an object, a string before a colon is a key.
      if (keys === undefined || !isColonNext(json, end)) continue;
      const key = JSON.parse(json.slice(found.index, end)) as string;
      if (keys.has(key)) return key;
      keys.add(key);
    }
  }
  return undefined;
}

/** One past the closing quote of the string that starts at `start`. A regular expression would run out of stack on long ones. */
function endOfString(json: string, start: number): number {
  const quoteOrEscape = /["\\]/g;
  quoteOrEscape.lastIndex = start + 1;
  for (;;) {
    const found = quoteOrEscape.exec(json);
    if (found === null) return json.length;
    if (found[0] === '"') return quoteOrEscape.lastIndex;
    quoteOrEscape.lastIndex++;
  }
}

function isColonNext(json: string, from: number): boolean {
  const colon = /\s*:/y;
  colon.lastIndex = from;
  return colon.test(json);
}
