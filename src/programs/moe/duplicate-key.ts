// Finds a key that a JSON object holds twice; JSON.parse keeps the last one without a word.

// Shared by all calls, each of which sets where they begin: making one per text would take longer than the search.
const bracketOrQuote = /["{}[\]]/g;
const quoteOrEscape = /["\\]/g;
const colon = /\s*:/y;

/** The first key that repeats within one object of `json`, which must be valid JSON; undefined if none does. Linear. */
export function duplicateKey(json: string): string | undefined {
  // One set for each open object, undefined for each open array.
  const open: (Set<string> | undefined)[] = [];
  let at = 0;
  for (;;) {
    bracketOrQuote.lastIndex = at;
    const found = bracketOrQuote.exec(json);
    if (found === null) return undefined;
    at = found.index + 1;
    const [token] = found;
    if (token === '{') open.push(new Set());
    else if (token === '[') open.push(undefined);
    else if (token !== '"') open.pop();
    else {
      at = endOfString(json, found.index);
      const keys = open.at(-1);
      // In an object, a string before a colon is a key.
      if (keys === undefined || !isColonNext(json, at)) continue;
      const text = json.slice(found.index + 1, at - 1);
      const key = text.includes('\\') ? (JSON.parse(`"${text}"`) as string) : text;
      if (keys.has(key)) return key;
      keys.add(key);
    }
  }
}

/** One past the closing quote of the string that starts at `start`. A regular expression would run out of stack on long ones. */
function endOfString(json: string, start: number): number {
  quoteOrEscape.lastIndex = start + 1;
  for (;;) {
    const found = quoteOrEscape.exec(json);
    if (found === null) return json.length;
    if (found[0] === '"') return quoteOrEscape.lastIndex;
    quoteOrEscape.lastIndex++;
  }
}

function isColonNext(json: string, from: number): boolean {
  colon.lastIndex = from;
  return colon.test(json);
}
