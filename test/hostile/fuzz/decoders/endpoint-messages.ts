// Notifications between endpoints: one that makes no sense ends its connection with a reason, and touches no other.
import {
  encodeMessage,
  encodePieces,
  ENDPOINT_MAGIC,
  endpointMessage,
  endpointMessageKinds,
} from '#lib/agent/endpoint/message.js';
import { Block } from '#lib/abi/layout.js';
import { EndpointConnection } from '#lib/agent/endpoint/endpoint-connection.js';
import { MessageRouter } from '#lib/agent/endpoint/endpoint.js';
import { decodeMetadata, encodeMetadata } from '#lib/agent/metadata.js';
import { type Agent, DescriptorList, type Registration } from 'weftline/agent';
import { readSettings, WeftlineError } from 'weftline';
import { type Decoder, Fault } from '../decoder.ts';
import { joined } from '../mutate.ts';

const HEAD_BYTES = 4;
const MAX_MESSAGES = 24;
const OWN = 1;
const OTHER = 2;
const { region, offer, arrived, refused, failed } = endpointMessageKinds;
const memory = { kind: 'host', address: 65_536, length: 4096 } as unknown as Registration;

function framed(messages: Iterable<Uint8Array>): Uint8Array {
  return joined(
    ...[...messages].flatMap((message) => {
      const head = new Uint8Array(HEAD_BYTES);
      new DataView(head.buffer).setUint32(0, message.length, true);
      return [head, message];
    }),
  );
}

const list = DescriptorList.of(memory).encode();
const metadata = encodeMetadata({
  name: 'peer',
  incarnation: '0123456789abcdef',
  host: 'h',
  process: 1,
  isWhole: false,
  withdrawn: [],
  connections: new Map(),
  regions: [{ number: 1, name: 'r', kind: 'host', address: 4096, bytes: 64, info: new Map() }],
});

const seeds = (): readonly Uint8Array[] => [
  framed(encodePieces({ kind: offer, connection: OWN, request: 1, bytes: 4096 }, list)),
  framed([encodeMessage({ kind: arrived, connection: OWN, request: 1, bytes: 100 })]),
  framed([
    ...encodePieces({ kind: region, connection: OWN, request: 0, bytes: 0 }, metadata),
    encodeMessage({ kind: refused, connection: OWN, request: 1, bytes: 5000 }),
    encodeMessage({ kind: failed, connection: OWN, request: 2, bytes: 0 }),
  ]),
  // A payload in pieces.
  framed(encodePieces({ kind: offer, connection: OWN, request: 1, bytes: 0 }, new Uint8Array(40_000).fill(7))),
];

/** An agent, as far as a connection asks of one when a message comes. */
const agent = {
  settings: readSettings({ timeoutMs: 1000 }, {}),
  loadRemoteMetadata: async (bytes: Uint8Array) => decodeMetadata(bytes).name,
  remoteMemory: () => [],
  notify: () => Promise.resolve(),
  prepare: () => Promise.reject(new WeftlineError('WL_UNSUPPORTED', 'not in the fuzzer')),
} as unknown as Agent;

function connect(id: number, peer: string): EndpointConnection {
  const parts = {
    agent,
    id,
    remoteId: 7,
    peer,
    ip: '127.0.0.1',
    gpuIndex: 0,
    backend: 'local',
    onClose: () => {},
  } as const;
  const connection = new EndpointConnection(parts);
  // Waits for these hear of the end of the connection.
  for (const operation of [connection.recv({ region: memory }), connection.send({ region: memory })]) {
    operation.wait().catch(() => {});
  }
  return connection;
}

export const endpointMessages: Decoder = {
  name: 'endpoint-messages',
  codes: [],
  fields: Object.values(endpointMessage.offset).map((offset) => HEAD_BYTES + offset),
  weight: 0.2,
  seeds,
  run: async (input) => {
    const own = connect(OWN, 'peer');
    const other = connect(OTHER, 'another peer');
    const router = new MessageRouter(
      new Map([
        [OWN, own],
        [OTHER, other],
      ]),
    );
    const view = new DataView(input.buffer, input.byteOffset, input.byteLength);
    for (let at = 0, count = 0; at + HEAD_BYTES <= input.length && count < MAX_MESSAGES; count++) {
      const end = Math.min(input.length, at + HEAD_BYTES + view.getUint32(at, true));
      const message = input.slice(at + HEAD_BYTES, end);
      // Half of them name a connection of this peer, or of the other.
      if (message.length >= endpointMessage.size && (input[at] as number) % 2 === 0) {
        const head = new Block(endpointMessage, message.buffer, 0);
        head.set('magic', ENDPOINT_MAGIC);
        head.set('connection', (message.at(-1) as number) % 8 === 0 ? OTHER : OWN);
      }
      router.hear({ peer: 'peer', message });
      at = Math.max(end, at + HEAD_BYTES);
    }
    await new Promise((resolve) => setImmediate(resolve));
    if (own.error !== undefined && own.error.code !== 'WL_PROTOCOL') throw own.error;
    if (other.error !== undefined)
      throw new Fault(`messages of one peer ended the connection of another: ${other.error.message}`);
    await Promise.all([own.close(), other.close()]);
  },
};
