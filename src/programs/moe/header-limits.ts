// What a safetensors header may hold, checked byte by byte before it is parsed: parsing a hostile one costs gigabytes.

/** 256 bytes for each of MAX_TENSORS, several times what the largest published files have. The format allows 100 MB. */
export const MAX_HEADER_BYTES: number = 16 << 20;
const MAX_TENSORS = 65_536;
export const MAX_DIMENSIONS = 32;
/** The header, an entry, a shape. */
const MAX_DEPTH = 3;
/** Colons and commas: an entry of four dimensions has eleven. */
const MAX_MARKS: number = 16 * MAX_TENSORS;

const mark = { quote: 0x22, comma: 0x2c, colon: 0x3a, backslash: 0x5c, open: 0x5b, close: 0x5d };
/** The braces are the brackets with this bit. */
const BRACE_BIT = 0x20;

/** Why the JSON text is more than a header may be; undefined if it is not. Takes any bytes, linear in their number. */
export function overLimits(json: Uint8Array): string | undefined {
  let depth = 0;
  let marks = 0;
  let names = 0;
  for (let at = 0; at < json.length; at += 1) {
    const byte = json[at]!;
    if (byte === mark.quote) at = endOfText(json, at);
    else if (byte === mark.comma) marks += 1;
    else if (byte === mark.colon) {
      marks += 1;
      if (depth === 1) names += 1;
    } else if ((byte | BRACE_BIT) === (mark.open | BRACE_BIT)) depth += 1;
    else if ((byte | BRACE_BIT) === (mark.close | BRACE_BIT)) depth -= 1;
    if (depth > MAX_DEPTH) return `its header is nested more than ${MAX_DEPTH} levels deep, at byte ${at}`;
    // One is __metadata__.
    if (names > MAX_TENSORS + 1) return `its header has more than ${MAX_TENSORS} tensors`;
    if (marks > MAX_MARKS) return `its header has more than ${MAX_MARKS} values`;
  }
  return undefined;
}

/** Where the text that begins at `start` has its closing quote, or the last byte if it has none. */
function endOfText(json: Uint8Array, start: number): number {
  for (let at = start + 1; at < json.length; at += 1) {
    const byte = json[at]!;
    if (byte === mark.quote) return at;
    if (byte === mark.backslash) at += 1;
  }
  return json.length;
}
