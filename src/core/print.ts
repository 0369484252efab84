// What the programs write to a terminal, whoever the text is from: nothing in it can move the cursor or pass for another text.
import { printableLines } from './quote.ts';

/** Lines of text; what is no line end and cannot be shown is escaped. */
export function printTo(stream: NodeJS.WritableStream, text: string): void {
  stream.write(printableLines(text));
}

/** JSON as JSON.stringify() has made it, with escapes for what it leaves as it is and terminals act upon. */
export function printJson(stream: NodeJS.WritableStream, json: string): void {
  stream.write(escapedJson(json));
}

/** The same JSON. Outside its strings nothing is escaped. */
export function escapedJson(json: string): string {
  return json.replace(/[\p{Cf}\p{Zl}\p{Zp}\u007f-\u009f]/gu, (character) =>
    character.replace(/[^]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`),
  );
}
