// The ring of commands of an engine, as a broken program may write it: two engines on this thread, joined by UDP.
import { addressOf } from '#lib/native/library.js';
import { readSettings } from '#lib/settings/settings.js';
import {
  commandHead,
  commandRecord,
  engineCommandKinds,
  MAX_CHANNELS,
  REQUEST_SLOTS,
  slotStates,
} from '#lib/transport/engine-commands.js';
import { CommandRing, EngineBells, EngineCommand } from '#lib/transport/host/command-ring.js';
import { EngineHost } from '#lib/transport/host/engine-host.js';
import { NOBODY, SharedRequests } from '#lib/transport/host/shared-requests.js';
import { UdpSocket } from '#lib/transport/io/udp/udp-packet-io.js';
import { PartTable } from '#lib/transport/part-table.js';
import { type Decoder, Fault } from '../decoder.ts';
import { GuardedBytes } from '../guarded-bytes.ts';
import { joined } from '../mutate.ts';

const REGION_BYTES = 4096;
const MAX_COMMANDS = 24;
const COMMAND = commandRecord.size;
/** Rows of the tables that both sides share. */
const ROWS = 4;
/** What an honest program uses behind the broken commands. */
const OWN_SLOT = 4000;
const PATIENCE_MS = 10_000;
const settings = readSettings({ transportSpinUs: 0, transportChecksum: 'none' }, {});

/** One engine with guarded memory, and the user's side of its ring. */
class End implements Disposable {
  readonly memory = new GuardedBytes(REGION_BYTES);
  readonly requests = new SharedRequests();
  readonly ring = new CommandRing();
  readonly socket = new UdpSocket({ host: '127.0.0.1', bufferBytes: 65_536 });
  readonly host: EngineHost;
  readonly localId: number;
  readonly name: { readonly id: number; readonly key: number };

  constructor() {
    const ring = new CommandRing(this.ring.buffer);
    this.host = new EngineHost({
      settings,
      engines: 1,
      engine: 0,
      requests: new SharedRequests(this.requests.news, this.requests.buffer),
      ring,
      bells: new EngineBells([ring]),
      onEvent: () => {},
    });
    const { calls } = this.host;
    this.localId = calls.reserve();
    const address = Number(addressOf(this.memory.bytes));
    this.name = calls.register({ address, bytes: REGION_BYTES, remote: { read: true, write: true } });
  }

  connect({ localId: remoteId, socket }: End): void {
    this.socket.connect(socket);
    this.host.calls.connect({
      localId: this.localId,
      remoteId,
      peerName: 'the other end',
      secret: 0x0123_4567_89ab_cdefn,
      packetKeys: undefined,
      receiverCredits: false,
      eagerBytes: settings.transportEagerBytes,
      segmentBytes: 1368,
      keepsPlaces: true,
      endpoint: { ends: [this.socket.fd], rails: 1, segments: 1 },
    });
  }

  put(command: Partial<EngineCommand>): void {
    this.ring.put(Object.assign(new EngineCommand(), command));
  }

  /** Puts bytes that no CommandRing has written. */
  putBytes(bytes: Uint8Array): void {
    const words = new Int32Array(this.ring.buffer, 0, commandHead.size / 4);
    const next = words[commandHead.offset.tail / 4]!;
    new Uint8Array(this.ring.buffer).set(bytes, commandHead.size + (next & (REQUEST_SLOTS - 1)) * COMMAND);
    Atomics.store(words, commandHead.offset.tail / 4, next + 1);
  }

  step(): void {
    this.host.takeCommands();
    this.host.step();
  }

  [Symbol.dispose](): void {
    this.host.calls.stop();
    this.host[Symbol.dispose]();
  }
}

/** What stands in inputs for the key of the other side's region, which nobody knows before. */
const THE_KEY = 1;
/** The first region that an engine registers. */
const REGION = 65_536;
const remote = { remoteRegion: REGION, remoteKey: THE_KEY };
const range = { region: REGION, offset: 8, bytes: 100, flow: 1, ...remote, remoteOffset: 16 };
const { send, receive, write, read, signal, flush, cancel, transfer, ranges } = engineCommandKinds;

const conversations: readonly (readonly Partial<EngineCommand>[])[] = [
  [
    { kind: send, slot: 0, ...range, add: 100 },
    { kind: receive, slot: 1, ...range },
    { kind: write, slot: 2, ...range },
    { kind: read, slot: 3, ...range },
    { kind: signal, slot: 4, ...remote, remoteOffset: 8, add: 7 },
    { kind: flush, slot: 5 },
    { kind: cancel, slot: 3 },
  ],
  [
    { kind: transfer, slot: 6, region: 0, offset: 0, bytes: 24 },
    { kind: transfer, slot: 7, region: 1, offset: 0, bytes: 0 },
    { kind: cancel, slot: 7 },
    { kind: transfer, slot: 8, region: 0, offset: 16, bytes: 900 },
    { kind: transfer, slot: 8, region: 1, offset: 16, bytes: 8 },
  ],
  [
    { kind: write, slot: REQUEST_SLOTS, ...range },
    { kind: signal, slot: REQUEST_SLOTS, ...remote, remoteOffset: 64, add: 1 },
    { kind: ranges, slot: REQUEST_SLOTS, region: 0, offset: 0, bytes: ROWS },
    { kind: ranges, slot: REQUEST_SLOTS + 1, region: 0, offset: 1, bytes: 2 },
    { kind: write, slot: REQUEST_SLOTS + MAX_CHANNELS - 1, ...range, bytes: 4000 },
  ],
];

function encode(commands: readonly Partial<EngineCommand>[]): Uint8Array {
  const ring = new CommandRing();
  for (const command of commands) ring.put(Object.assign(new EngineCommand(), command));
  return new Uint8Array(ring.buffer.slice(commandHead.size, commandHead.size + commands.length * COMMAND));
}

/** Ranges of equal and of other distances; the last row leaves the region on the other side. */
function tableOf(): PartTable {
  const table = PartTable.ofCount(ROWS);
  table.localOffset.set([0, 512, 700, 4000]);
  table.remoteOffset.set([64, 1024, 2000, 4090]);
  table.bytes.set([100, 16, 33, 8]);
  table.localStride.set([0, 32, 0, 0]);
  table.remoteStride.set([0, 64, 0, 0]);
  table.ranges.set([1, 4, 1, 1]);
  return table;
}

function prepare({ host: { calls } }: End, { name: { id, key } }: End): void {
  const line = { connection: 0, flow: 9, region: REGION, remoteRegion: id, remoteKey: key };
  calls.openLine({ ...line, counter: 2048, ring: 2056, ringBytes: 1024 });
  const plan = { connection: 0, flow: 2, regions: [REGION], remoteRegions: [id], remoteKeys: [key], line: 0 };
  for (const operation of ['write', 'read'] as const) {
    calls.prepare({ ...plan, operation, parts: tableOf().buffer, isBySelection: operation === 'read' });
  }
  calls.shareRanges({ connection: 0, parts: tableOf().buffer, region: REGION, remoteRegion: id, remoteKey: key });
}

function run(input: Uint8Array): void {
  using a = new End();
  using b = new End();
  a.connect(b);
  b.connect(a);
  prepare(a, b);
  b.put({ kind: receive, slot: 0, region: REGION, offset: 0, bytes: 500, flow: 1 });
  b.put({ kind: send, slot: 1, region: REGION, offset: 0, bytes: 60, flow: 1, add: 60 });
  let isOwnSlotUsed = false;
  for (let at = 0; at + COMMAND <= Math.min(input.length, MAX_COMMANDS * COMMAND); at += COMMAND) {
    const bytes = input.slice(at, at + COMMAND);
    const view = new DataView(bytes.buffer);
    if (view.getUint32(commandRecord.offset.remoteKey, true) === THE_KEY)
      view.setUint32(commandRecord.offset.remoteKey, b.name.key, true);
    isOwnSlotUsed ||= view.getUint32(commandRecord.offset.slot, true) === OWN_SLOT;
    a.putBytes(bytes);
    a.step();
    b.step();
  }
  if (!isOwnSlotUsed) requireService(a, b);
  a.host.calls.closeChannel(0);
  a.step();
  a.host.calls.end({ connection: 0, error: { code: 'WL_CLOSED', message: 'over', details: {} } });
  for (const end of [a, b]) {
    end.step();
    end.memory.check();
  }
}

/** An engine that took in what made no sense goes on: a request behind it ends. */
function requireService(a: End, b: End): void {
  a.requests.open(OWN_SLOT, 1, NOBODY);
  a.putBytes(encode([{ kind: write, slot: OWN_SLOT, ...range, remoteKey: b.name.key, flow: 5 }]));
  const end = performance.now() + PATIENCE_MS;
  while (a.requests.stateOf(OWN_SLOT) === slotStates.pending) {
    if (performance.now() > end) throw new Fault('an honest request does not end');
    a.step();
    b.step();
  }
  if (a.requests.stateOf(OWN_SLOT) !== slotStates.done) throw new Fault('an honest request failed');
}

export const commandsDecoder: Decoder = {
  name: 'commands-of-an-engine',
  codes: [],
  fields: [0, 1, 2, 3, 4].flatMap((index) =>
    Object.values(commandRecord.offset).map((offset) => index * COMMAND + offset),
  ),
  weight: 0.1,
  seeds: () => [...conversations.map(encode), joined(...conversations.map(encode))],
  run,
};
