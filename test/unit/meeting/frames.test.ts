import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../../support/fast-check.ts';
import { WeftlineError } from 'weftline';
import { encodeFrame, type Frame, FrameReader, memberLimits, strangerLimits } from '#lib/meeting/frames.js';
import { tokenCredential, userCredential } from '#lib/meeting/credentials.js';
import { createNonce, type HelloFacts, Proofs, sameProof } from '#lib/meeting/hello.js';
import { parseRequest } from '#lib/world/store-request.js';

/** Reads all frames from bytes that arrive in pieces of the given sizes. */
function readAll(bytes: Buffer, sizes: readonly number[], reader = new FrameReader(memberLimits(1 << 20))): Frame[] {
  const frames: Frame[] = [];
  let at = 0;
  for (let piece = 0; at < bytes.byteLength; piece += 1) {
    const size = sizes[piece % sizes.length] ?? 1;
    reader.push(bytes.subarray(at, at + size));
    at += size;
    for (let frame = reader.next(); frame !== undefined; frame = reader.next()) frames.push(frame);
  }
  return frames;
}

const anyFrame = fc.record({
  header: fc.record({ op: fc.string(), id: fc.integer(), nested: fc.jsonValue() }),
  parts: fc.array(fc.uint8Array({ maxLength: 300 }), { maxLength: 4 }),
});
const anySizes = fc.array(fc.integer({ min: 1, max: 400 }), { minLength: 1, maxLength: 5 });

test('frames arrive as they were sent, however the bytes are cut', () => {
  fc.assert(
    fc.property(fc.array(anyFrame, { maxLength: 6 }), anySizes, (sent, sizes) => {
      const bytes = Buffer.concat(sent.flatMap(({ header, parts }) => [...encodeFrame(header, parts)]));
      const received = readAll(bytes, sizes).map(({ header, parts }) => {
        const { parts: _lengths, ...rest } = header;
        return { header: rest, parts: parts.map((part) => Uint8Array.from(part)) };
      });
      const plain = sent.map(({ header, parts }) => ({
        header: JSON.parse(JSON.stringify(header)) as unknown,
        parts,
      }));
      assert.deepEqual(received, plain);
    }),
  );
});

test('random and damaged bytes give frames or WL_PROTOCOL, nothing else', () => {
  const damaged = fc.tuple(anyFrame, fc.nat(), fc.nat(255)).map(([{ header, parts }, at, value]) => {
    const bytes = Buffer.concat(encodeFrame(header, parts));
    bytes[at % bytes.byteLength] = value;
    return bytes;
  });
  const random = fc.uint8Array({ maxLength: 600 }).map((bytes) => Buffer.from(bytes));
  fc.assert(
    fc.property(fc.oneof(random, damaged), anySizes, (bytes, sizes) => {
      try {
        for (const { header } of readAll(bytes, sizes, new FrameReader({ headerBytes: 500, payloadBytes: 500 }))) {
          parseRequest(header);
        }
      } catch (error) {
        assert.ok(error instanceof WeftlineError && error.code === 'WL_PROTOCOL', String(error));
      }
    }),
    { numRuns: 500 },
  );
});

test('a frame beyond the limits is refused from its first eight bytes', () => {
  const reader = new FrameReader(strangerLimits);
  const prefix = Buffer.alloc(8);
  prefix.writeUInt32LE(strangerLimits.headerBytes + 1, 0);
  reader.push(prefix);
  assert.throws(() => reader.next(), {
    code: 'WL_PROTOCOL',
    message: /4097 \+ 0 bytes, expected at most 4096 \+ 16384/,
  });
});

test('limits may be widened between two frames', () => {
  const reader = new FrameReader(strangerLimits);
  reader.push(Buffer.concat([...encodeFrame({ a: 1 }), ...encodeFrame({ b: 2 }, [new Uint8Array(9)])]));
  assert.deepEqual(reader.next()?.header, { a: 1 });
  reader.limits = memberLimits(1024);
  assert.equal(reader.next()?.parts[0]?.byteLength, 9);
});

test('a proof changes with the key, the side and every fact that it covers', () => {
  const facts: HelloFacts = {
    protocol: 'test',
    version: 1,
    serverNonce: createNonce(),
    clientNonce: createNonce(),
    serverKind: 'token',
    clientKind: 'token',
    clientBody: Buffer.from('{}'),
    ends: undefined,
  };
  const body = Buffer.from('{"a":1}');
  const { key } = tokenCredential('token');
  const proofs = new Proofs(key, facts);
  assert.ok(sameProof(proofs.ofClient(), new Proofs(key, { ...facts }).ofClient()));
  assert.ok(sameProof(proofs.ofServer(body), new Proofs(key, { ...facts }).ofServer(Buffer.from(body))));
  assert.deepEqual(proofs.session().key('a'), new Proofs(key, { ...facts }).session().key('a'));
  assert.notDeepEqual(proofs.session().key('a'), proofs.session().key('b'));
  const others = [
    new Proofs(tokenCredential('other').key, facts),
    new Proofs(userCredential({ path: '', bytes: Buffer.from('token') }).key, facts),
    ...[
      { protocol: 'other' },
      { version: 2 },
      { serverNonce: createNonce() },
      { clientNonce: createNonce() },
      { serverKind: 'user' as const },
      { clientKind: 'user' as const },
      { clientBody: Buffer.from('{ }') },
      { ends: ['127.0.0.1 1', '127.0.0.1 2'] as const },
      { ends: ['127.0.0.1 2', '127.0.0.1 1'] as const },
    ].map((change) => new Proofs(key, { ...facts, ...change })),
  ];
  const seen = new Set([proofs.ofClient(), proofs.ofServer(body), proofs.ofServer(Buffer.from('{}'))]);
  for (const other of others) seen.add(other.ofClient()).add(other.ofServer(body));
  assert.equal(seen.size, 3 + 2 * others.length);
  for (const other of ['', undefined, 7, proofs.ofServer(body)]) assert.ok(!sameProof(proofs.ofClient(), other));
});
