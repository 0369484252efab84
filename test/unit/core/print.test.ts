// What goes to a terminal shows every character and obeys none.
import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import test from 'node:test';
import { printTo, printJson } from '#lib/core/print.js';

const hostile = '\u001b[2J\u009b3J\u202e\u{e0001}\r\u0007';

function printed(write: (stream: PassThrough) => void): string {
  const stream = new PassThrough();
  write(stream);
  return String(stream.read());
}

test('lines and tabs stay, all that moves a cursor or hides text is escaped', () => {
  const text = printed((stream) => printTo(stream, `a\tb\n${hostile}é😀\n`));
  assert.equal(text, 'a\tb\n\\u001b[2J\\u009b3J\\u202e\\u{e0001}\\u000d\\u0007é😀\n');
});

test('JSON is the same JSON', () => {
  const document = { [hostile]: [hostile, 'é😀'] };
  for (const indent of [undefined, 2]) {
    const text = printed((stream) => printJson(stream, JSON.stringify(document, undefined, indent)));
    assert.deepEqual(JSON.parse(text), document);
    assert.doesNotMatch(text.replaceAll('\n', ''), /[\p{Cc}\p{Cf}]/u);
  }
});
