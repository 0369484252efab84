// The blocks of messages that the kernel reads: the quick way to fill one says the same as the plain one.
import assert from 'node:assert/strict';
import test from 'node:test';
import { viewAt } from '#lib/native/library.js';
import { MESSAGE_HEADER_WORDS, MessageBlock } from '#lib/native/udp.js';

function iovecsOf(block: MessageBlock, count: number): Uint32Array {
  // They follow the headers of all messages.
  const first = block.addressOf(0) + block.messages * MESSAGE_HEADER_WORDS * 4;
  return new Uint32Array(viewAt(first, block.messages * block.iovecsPerMessage * 16)).slice(0, count * 4);
}

for (const [name, header, payload] of [
  ['far from a multiple of 4 GiB', 0x7f12_3456_7890, 0x7f00_0000_1000],
  ['the headers cross one', 0x7f12_ffff_ff80, 0x7f00_0000_1000],
  ['the payload crosses one', 0x7f12_3456_7890, 0x7f00_ffff_f001],
  ['the payload ends at one', 0x7f12_3456_7890, 0x7f01_0000_0000 - 5 * 1408],
] as const) {
  test(`headers and the parts of a range, ${name}`, () => {
    const pairs = { count: 5, headerBytes: 64, payloadBytes: 1408, lastPayloadBytes: 77 };
    const quick = new MessageBlock({ messages: 2, iovecsPerMessage: 10 });
    const plain = new MessageBlock({ messages: 2, iovecsPerMessage: 10 });
    quick.setPairs(0, pairs, header, payload);
    for (let pair = 0; pair < pairs.count; pair += 1) {
      plain.setIovec(0, 2 * pair, header + pair * 64, 64);
      plain.setIovec(0, 2 * pair + 1, payload + pair * 1408, pair === 4 ? 77 : 1408);
    }
    assert.deepEqual(iovecsOf(quick, 10), iovecsOf(plain, 10));
  });
}
