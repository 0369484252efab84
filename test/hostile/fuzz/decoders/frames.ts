// Frames of the store and of every greeting, and the requests that come in them.
import { StoreCore } from '#lib/world/store-core.js';
import { encodeFrame, FrameReader, memberLimits, strangerLimits } from '#lib/meeting/frames.js';
import { parseRequest } from '#lib/world/store-request.js';
import { type Decoder, Fault } from '../decoder.ts';
import { joined } from '../mutate.ts';

const json = (value: unknown): Uint8Array => new Uint8Array(Buffer.from(JSON.stringify(value)));
const MAX_VALUE_BYTES = 4096;
const SIZE = 3;

const frames = [
  joined(...encodeFrame({ protocol: 'weftline-store', version: 1, nonce: 'ab'.repeat(32) })),
  joined(...encodeFrame({ id: 1, op: 'set', key: 'k' }, [Buffer.from('value')])),
  joined(...encodeFrame({ id: 2, op: 'barrier', name: 'b', timeoutMs: 5 }), ...encodeFrame({ goodbye: true })),
  joined(...encodeFrame({ id: 3, op: 'compareAndSet', key: 'k' }, [Buffer.from('a'), Buffer.from('b'), Buffer.of()])),
];

/** Bytes come in pieces of any size. */
function feed(reader: FrameReader, input: Uint8Array): void {
  const step = 1 + ((input[0] ?? 0) % 13) ** 2;
  for (let at = 0; at < input.length; at += step) {
    reader.push(Buffer.from(input.subarray(at, at + step)));
    for (let frame = reader.next(); frame !== undefined; frame = reader.next()) {
      const bytes = frame.parts.reduce((sum, part) => sum + part.byteLength, 0);
      if (bytes > 2 * MAX_VALUE_BYTES) throw new Fault(`a frame of ${bytes} bytes is beyond the limit`);
    }
  }
}

const frameDecoders: readonly Decoder[] = (['stranger', 'member'] as const).map((who) => ({
  name: `frames-of-a-${who}`,
  codes: ['WL_PROTOCOL'],
  fields: [0, 4, 8],
  memoryBytes: 2 ** 22,
  seeds: () => frames,
  run: (input) => feed(new FrameReader(who === 'stranger' ? strangerLimits : memberLimits(MAX_VALUE_BYTES)), input),
}));

const requests = [
  { op: 'set', key: 'a' },
  { op: 'delete', key: 'a' },
  { op: 'add', key: 'n', delta: 4 },
  { op: 'compareAndSet', key: 'a' },
  { op: 'wait', keys: ['a', 'b'], read: true, from: [0, 2], timeoutMs: 100 },
  { op: 'gather', name: 'g', timeoutMs: 100 },
  { op: 'barrier', name: 'b', timeoutMs: 100 },
  { op: 'gather', name: 'g', members: [0, 1], timeoutMs: 100 },
  { op: 'barrier', name: 'b', members: [1], timeoutMs: 100 },
  { op: 'wait', keys: ['a'], read: true, members: [1, 2], timeoutMs: 100 },
  { op: 'shrink', name: 's', timeoutMs: 100 },
  { op: 'shrink', name: 's', members: [0, 1], lost: [0], timeoutMs: 100 },
];

/** A request of rank 1, then that rank's end; the store must be able to serve the others after it. */
const storeRequests: Decoder = {
  name: 'store-requests',
  codes: [
    'WL_PROTOCOL',
    'WL_INVALID_ARGUMENT',
    'WL_CAPACITY',
    'WL_CLOSED',
    'WL_INACTIVE',
    'WL_PEER_FAILED',
    'WL_TIMEOUT',
  ],
  isJson: true,
  weight: 0.7,
  seeds: () => requests.map((request) => json({ id: 1, ...request })),
  run: async (input) => {
    const reader = new FrameReader(memberLimits(MAX_VALUE_BYTES));
    const prefix = Buffer.alloc(8);
    prefix.writeUInt32LE(input.length, 0);
    reader.push(prefix);
    reader.push(Buffer.from(input));
    const frame = reader.next();
    if (frame === undefined) return;
    const request = parseRequest(frame.header);
    const core = new StoreCore({ size: SIZE, maxValueBytes: MAX_VALUE_BYTES });
    for (let rank = 0; rank < SIZE; rank++) core.join(rank, { pid: rank, host: 'h' });
    const answer = core.request(1, request, [Buffer.from('0'), Buffer.from('1')]);
    core.leave(1, { how: 'lost' });
    let refusal: unknown;
    await answer.catch((error: unknown) => (refusal = error));
    await core.request(2, { op: 'set', key: 'after' }, [Buffer.from('x')]);
    const wanted = { op: 'wait', keys: ['after'], read: true, from: [2], timeoutMs: 1000 } as const;
    const got = await core.request(0, wanted, []);
    if (Buffer.from(got.parts[0] ?? []).toString() !== 'x') throw new Fault('the store lost a value of another rank');
    if (refusal !== undefined) throw refusal;
  },
};

export { frameDecoders, storeRequests };
