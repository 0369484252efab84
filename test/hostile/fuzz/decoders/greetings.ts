// Hellos of strangers and of peers that hold the token, on both sides, and what follows them.
import { readHello, readWelcome } from '#lib/agent/backends/multipath/multipath-backend.js';
import { acceptRdmaPeer, type RdmaCaller } from '#lib/agent/rdma/rdma-meeting.js';
import { introduce, readIntroduction } from '#lib/agent/endpoint/endpoint.js';
import { MetadataChannel } from '#lib/agent/exchange/metadata-exchange.js';
import { decodeRefusal, encodeFrame, FrameReader, strangerLimits } from '#lib/meeting/frames.js';
import { ControlChannel } from '#lib/meeting/control-channel.js';
import { credentialsOf } from '#lib/meeting/credentials.js';
import { type HelloBody, receiveHello, sayHello } from '#lib/meeting/hello.js';
import { acceptPeer } from '#lib/transport/host/greeting.js';
import { udp } from '#lib/transport/io/udp/udp-io.js';
import { StoreConnection } from '#lib/world/store-connection.js';
import { StoreCore } from '#lib/world/store-core.js';
import { readRank } from '#lib/world/store-request.js';
import { errorCodes, type ErrorCode, WeftlineError } from 'weftline';
import { type Decoder, Fault } from '../decoder.ts';
import { FakeSocket } from '../fake-socket.ts';

const json = (value: unknown): Uint8Array => new Uint8Array(Buffer.from(JSON.stringify(value)));
const credentials = credentialsOf('a token of the fuzzer');
const hello = { protocol: 'weftline-fuzz', version: 1, credentials } as const;
/** Nothing is to be awaited for so long: the other end hangs up. */
const DEADLINE_MS = 15_000;
const nonce = 'ab'.repeat(32);
const proof = 'cd'.repeat(32);

/** A peer may refuse with any reason that is one. */
const codes = (Object.keys(errorCodes) as ErrorCode[]).filter((code) => code !== 'WL_INTERNAL');

function parse(input: Uint8Array): unknown {
  try {
    return JSON.parse(Buffer.from(input).toString('utf8'));
  } catch {
    return undefined;
  }
}

/** Frames as JSON: a list of headers; bytes of a part are text in `part`. */
function sendFrames(socket: FakeSocket, input: Uint8Array): void {
  const frames = parse(input);
  for (const frame of Array.isArray(frames) ? (frames as unknown[]) : [frames]) {
    const header = (typeof frame === 'object' && frame !== null ? frame : {}) as Record<string, unknown>;
    const { part, ...rest } = header;
    const parts = typeof part === 'string' ? [Buffer.from(part)] : [];
    for (const piece of encodeFrame(rest, parts)) socket.write(piece);
  }
  socket.end();
}

function channelOf(socket: FakeSocket): ControlChannel {
  return new ControlChannel(socket.socket, performance.now() + DEADLINE_MS);
}

/** What comes from the other end is of no interest. */
function ignore(socket: FakeSocket): void {
  socket.on('error', () => {});
  socket.resume();
}

const clientFrame = { protocol: 'weftline-fuzz', version: 1, nonce, credential: 'token', proof, part: '{"name":"x"}' };
const serverFrame = { protocol: 'weftline-fuzz', version: 1, nonce, credential: 'token' };
const refusal = { refused: { code: 'WL_UNAUTHORIZED', message: 'no', details: { peer: 'x', ranks: [1] }, rank: 1 } };

const calledByStranger: Decoder = {
  name: 'hello-of-a-caller',
  codes,
  isJson: true,
  weight: 0.15,
  seeds: () =>
    [[clientFrame], [refusal], [{ ...clientFrame, credential: 'user' }], [{ goodbye: true }, clientFrame]].map(json),
  run: async (input) => {
    const [near, far] = FakeSocket.pair();
    ignore(far);
    sendFrames(far, input);
    await receiveHello(channelOf(near), hello, () => ({}));
    throw new Fault('a caller without the token was let in');
  },
};

const callingStranger: Decoder = {
  name: 'hello-of-a-host',
  codes,
  isJson: true,
  weight: 0.15,
  seeds: () => [[serverFrame, { proof, part: '{}' }], [serverFrame, refusal], [refusal]].map(json),
  run: async (input) => {
    const [near, far] = FakeSocket.pair();
    ignore(far);
    sendFrames(far, input);
    await sayHello(channelOf(near), hello, { name: 'fuzz' });
    throw new Fault('a host without the token was believed');
  },
};

const bodies: readonly HelloBody[] = [
  {
    name: 'host',
    connection: 7,
    paths: 2,
    hello: { name: 'a', incarnation: '0123456789abcdef', expects: 'b', region: 1, key: 2 },
  },
  { incarnation: '0123456789abcdef', region: 1, key: 2 },
  introduce({ gpuIndex: 0, connection: 3, metadata: Uint8Array.of(1, 2, 3) }),
  {
    name: 'a',
    incarnation: '0123456789abcdef',
    expects: 'x',
    end: { end: { worker: 'abcd', tag: 7 }, mailbox: { address: 4096, key: 'ab12' } },
    after: '0123456789abcdef',
    asked: ['00'],
  },
  { rank: 1, size: 3, pid: 7, host: 'h' },
];

/** What peers say of themselves, read by each that reads such a thing. */
const helloBodies: Decoder = {
  name: 'hello-bodies',
  weight: 0.4,
  codes: ['WL_PROTOCOL', 'WL_CONFIG_MISMATCH'],
  isJson: true,
  seeds: () => bodies.map(json),
  run: (input) => {
    const body = parse(input);
    if (typeof body !== 'object' || body === null || Array.isArray(body)) return;
    const readers: readonly ((words: HelloBody) => unknown)[] = [
      readIntroduction,
      (words) => readHello(words['hello']),
      (words) => readWelcome(words, 'peer'),
      (words) => readRank(words, { rank: 3, node: 2 }),
    ];
    let refused: unknown;
    for (const read of readers) {
      try {
        read(body as HelloBody);
      } catch (error) {
        if (!(error instanceof WeftlineError) || error.code === 'WL_INTERNAL') throw error;
        refused = error;
      }
    }
    if (refused !== undefined) throw refused;
  },
};

/** The caller holds the token, and what it says of itself is odd. */
function calledByPeer(
  name: string,
  serve: (channel: ControlChannel) => Promise<unknown>,
  protocol: typeof hello,
): Decoder {
  return {
    name,
    codes,
    isJson: true,
    weight: 0.05,
    seeds: () => bodies.map(json),
    run: async (input) => {
      const body = parse(input);
      if (typeof body !== 'object' || body === null || Array.isArray(body)) return;
      const [near, far] = FakeSocket.pair();
      const caller = channelOf(far);
      const called = sayHello(caller, protocol, body as HelloBody).finally(() => caller.hangUp());
      const [served] = await Promise.allSettled([serve(channelOf(near)), called]);
      if (served.status === 'rejected') throw served.reason;
    },
  };
}

const transportOptions = {
  io: udp,
  engines: [],
  name: 'host',
  paths: 1,
  segmentBytes: 1400,
  bufferBytes: 65_536,
  segmentationOffload: false,
  authenticate: false,
  receiverCredits: false,
  eagerBytes: 1024,
  rails: [],
  spread: 'turn',
  connectionIds: [1],
} as const;

const toTransport = calledByPeer(
  'hello-to-a-transport',
  (channel) => acceptPeer(channel, credentials, { open: async () => ({ options: transportOptions }), adopt: never }),
  helloNamed(
    'weftline-transport',
    await versionOf((channel) => acceptPeer(channel, credentials, { open: never, adopt: never })),
  ),
);

const rdmaSelf = { protocol: 'ucx', credentials, name: 'host', incarnation: 'x' };
const answer = ({ end, asked }: RdmaCaller) => ({ end, guest: 'g', gone: asked });

const toRdma = calledByPeer(
  'hello-to-rdma',
  (channel) => acceptRdmaPeer(channel, rdmaSelf, answer),
  helloNamed('weftline-ucx', await versionOf((channel) => acceptRdmaPeer(channel, rdmaSelf, answer))),
);

const metadataFrames = [
  { verb: 'load', part: 'metadata' },
  { verb: 'fetch' },
  { verb: 'invalidate', name: 'a' },
  { name: 'b', part: 'metadata' },
  { verb: 'bye' },
];

/** Requests and answers of a peer that has proven itself. */
const metadataExchange: Decoder = {
  name: 'metadata-exchange',
  codes,
  isJson: true,
  weight: 0.15,
  seeds: () => [metadataFrames.slice(0, 2), metadataFrames.slice(2), [refusal], metadataFrames].map(json),
  run: async (input) => {
    const [near, far] = FakeSocket.pair();
    ignore(far);
    sendFrames(far, input);
    const channel = new MetadataChannel(channelOf(near));
    for (let request = 0; request < 8; request++) {
      if (request % 3 === 2) await channel.ask({ verb: 'fetch' });
      else if ((await channel.nextRequest()) === undefined) return;
    }
  },
};

const refusals: Decoder = {
  name: 'refusals',
  codes,
  isJson: true,
  weight: 0.5,
  seeds: () =>
    [refusal.refused, { code: 'x', message: '' }, { code: 'WL_TIMEOUT', message: 'late', cause: refusal.refused }].map(
      json,
    ),
  run: (input) => {
    const error = decodeRefusal(parse(input), 'peer');
    // oxlint-disable-next-line no-control-regex -- what must not be in it
    if (/[\u0000-\u001F\u007F\u202E]/.test(error.message))
      throw new Fault('text of a peer would be obeyed by a terminal');
    throw error;
  },
};

const memberFrames = [
  { id: 1, op: 'set', key: 'a', part: 'value' },
  { id: 2, op: 'wait', keys: ['a'], read: true, timeoutMs: 50 },
  { id: 3, op: 'barrier', name: 'b', timeoutMs: 50 },
  { cancel: 3 },
  { goodbye: true, error: { code: 'WL_CHECK', message: 'it failed', details: {} } },
];

/** A rank of the job says anything; another one must be served after that. */
const storeMember: Decoder = {
  name: 'store-member',
  codes: [],
  isJson: true,
  weight: 0.1,
  seeds: () => [memberFrames, memberFrames.slice(0, 2), memberFrames.slice(2)].map(json),
  run: async (input) => {
    const core = new StoreCore({ size: 2, maxValueBytes: 4096 });
    for (const rank of [0, 1]) core.join(rank, { pid: rank, host: 'h' });
    const [near, far] = FakeSocket.pair();
    ignore(far);
    near.on('error', () => {});
    const ended = new Promise<void>((resolve) => {
      const options = { rank: 1, core, maxValueBytes: 4096, onQuestion: () => {}, onEnd: () => resolve() };
      const connection = new StoreConnection(
        { socket: near.socket, reader: new FrameReader(strangerLimits) },
        { ...options, onDeparture: ({ rank }, departure) => core.leave(rank, departure) },
      );
      connection.start();
    });
    sendFrames(far, input);
    await ended;
    const wanted = { op: 'wait', keys: ['k'], read: true, from: [0], timeoutMs: 1000 } as const;
    await core.request(0, { op: 'set', key: 'k' }, [Buffer.from('v')]);
    const { parts } = await core.request(0, wanted, []);
    if (Buffer.from(parts[0] ?? []).toString() !== 'v') throw new Fault('the store lost a value of another rank');
  },
};

/** The version that a host announces. */
async function versionOf(serve: (channel: ControlChannel) => Promise<unknown>): Promise<number> {
  const [near, far] = FakeSocket.pair();
  const caller = channelOf(far);
  const serving = serve(channelOf(near)).catch(() => {});
  const { version } = await caller.receive('challenge');
  caller.hangUp();
  await serving;
  return version as number;
}

function helloNamed(protocol: string, version: number): typeof hello {
  return { protocol, version, credentials } as unknown as typeof hello;
}

function never(): Promise<never> {
  return Promise.reject(new WeftlineError('WL_CLOSED', 'not for this'));
}

export const greetingDecoders: readonly Decoder[] = [
  calledByStranger,
  callingStranger,
  helloBodies,
  toTransport,
  toRdma,
  metadataExchange,
  refusals,
  storeMember,
];
