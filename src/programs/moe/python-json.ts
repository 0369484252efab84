// JSON as Python's json module writes it: with NaN, Infinity and -Infinity, which JSON does not have.

/** A string, so that what looks like a number within it stays, or one of those words. Linear in the text: a string may lack its end. */
const STRING_OR_WORD = /"(?:[^"\\]|\\[^])*"?|-?Infinity\b|NaN\b/g;

/** Infinities are numbers; NaN, for which there is no literal, is the text "NaN". Fails as JSON.parse() does. */
export function parsePythonJson(text: string): unknown {
  return JSON.parse(text.replaceAll(STRING_OR_WORD, (found) => replacements[found] ?? found));
}

const replacements: Readonly<Record<string, string>> = { Infinity: '1e999', '-Infinity': '-1e999', NaN: '"NaN"' };
