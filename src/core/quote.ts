// Text as people read it: from files, peers and users on one line, without control characters, never long; equal texts counted.

const DEFAULT_LENGTH = 80;
/** Elements of a list that are shown. */
const MAX_LISTED = 8;

/** What could move a terminal's cursor, change the order of text or not be seen at all. */
const unprintable = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

/** The text escaped where it cannot be shown, and cut to about so many characters. */
export function printable(text: string, length: number = DEFAULT_LENGTH): string {
  const shown = text.length > length ? text.slice(0, length) : text;
  const escaped = shown.replace(unprintable, escapeCharacter);
  return text.length > length ? `${escaped}… (${text.length} characters)` : escaped;
}

/** Text of several lines, escaped where it cannot be shown, none cut. Compilers quote lines that begin with tabs. */
export function printableLines(text: string): string {
  return text.replace(unprintable, (one) => (one === '\n' || one === '\t' ? one : escapeCharacter(one)));
}

/** True for text that can be shown as it is. */
export function isPrintable(text: string): boolean {
  return text.search(unprintable) === -1;
}

/** The same in quotes; a value that is no text as JSON. */
export function quote(value: unknown, length: number = DEFAULT_LENGTH): string {
  if (typeof value === 'string') {
    const cut = value.length > length;
    const shown = (cut ? value.slice(0, length) : value).replaceAll('\\', '\\\\').replaceAll('"', '\\"');
    return `"${printable(shown, Number.POSITIVE_INFINITY)}${cut ? '…' : ''}"${cut ? ` (${value.length} characters)` : ''}`;
  }
  try {
    return printable(JSON.stringify(value) ?? String(value), length);
  } catch {
    // A circular value, or a bigint. Not every object can be made a string.
    return printable(typeof value === 'bigint' ? String(value) : Object.prototype.toString.call(value), length);
  }
}

/** The first of the texts, quoted, and how many more there are; "none" for none. */
export function quoteList(texts: readonly string[], length: number = DEFAULT_LENGTH): string {
  if (texts.length === 0) return 'none';
  const shown = texts.slice(0, MAX_LISTED).map((text) => quote(text, length));
  if (texts.length > MAX_LISTED) shown.push(`${texts.length - MAX_LISTED} more`);
  return shown.join(', ');
}

function escapeCharacter(character: string): string {
  const digits = (character.codePointAt(0) as number).toString(16);
  return digits.length > 4 ? `\\u{${digits}}` : `\\u${digits.padStart(4, '0')}`;
}

/** Equal texts counted: "4 x NVIDIA H200". */
export function countEqual(texts: readonly string[]): string {
  return [...new Set(texts)].map((text) => `${texts.filter((other) => other === text).length} x ${text}`).join(', ');
}
