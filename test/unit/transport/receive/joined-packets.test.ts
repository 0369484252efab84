// Joined packets with wrong headers, in a wrong order, cut short, or of several bursts: what is intact is placed, nothing else.
import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../../../support/fast-check.ts';
import {
  DATA_HEADER_BYTES,
  dataHeader,
  packetFlags,
  packetKinds,
  packetPrefix,
} from '#lib/transport/wire/packet-layout.js';
import type { Region } from '#lib/transport/engine/region.js';
import { requestStatus } from '#lib/transport/engine/transport-engine.js';
import { type Flying, isEnded, Loopback, pattern } from '../support/loopback.js';

const SEGMENT_BYTES = 512;
const REGION_BYTES = 80_000;
const { offset: AT } = dataHeader;

interface Damage {
  readonly kind: 'bit' | 'swap' | 'repeat' | 'remove' | 'cut' | 'flag';
  readonly where: number;
  readonly other: number;
}

const damages = fc.array(
  fc.record<Damage>({
    kind: fc.constantFrom('bit', 'bit', 'bit', 'swap', 'repeat', 'remove', 'cut', 'flag'),
    where: fc.nat(),
    other: fc.nat(),
  }),
  { maxLength: 4 },
);

/** A header without the bits that say nothing of the segment: a joined one need not have them right. */
function essence(packet: Uint8Array): string {
  const header = packet.slice(0, DATA_HEADER_BYTES);
  header.fill(0, packetPrefix.offset.checksum, packetPrefix.offset.checksum + 4);
  header[AT.flags] = (header[AT.flags] as number) & ~packetFlags.ackNow;
  return Buffer.from(header).toString('latin1');
}

function exactly(packet: Uint8Array): string {
  return Buffer.from(packet).toString('latin1');
}

function cutUp(trains: readonly Uint8Array[]): Uint8Array<ArrayBuffer>[] {
  const packets: Uint8Array<ArrayBuffer>[] = [];
  for (const train of trains)
    for (let at = 0; at < train.length; at += SEGMENT_BYTES)
      packets.push(Uint8Array.from(train.subarray(at, at + SEGMENT_BYTES)));
  return packets;
}

/** Changes the packets of a train; only headers are damaged, as nothing but UDP's checksum covers the rest. */
function damage(packets: readonly Uint8Array[], steps: readonly Damage[]): Uint8Array<ArrayBuffer>[] {
  const changed = packets.map((packet) => Uint8Array.from(packet));
  for (const { kind, where, other } of steps) {
    const index = where % changed.length;
    const second = other % changed.length;
    const packet = changed[index] as Uint8Array<ArrayBuffer>;
    const bit = other % (8 * DATA_HEADER_BYTES);
    if (kind === 'bit') packet[bit >> 3] = (packet[bit >> 3] as number) ^ (1 << (bit & 7));
    else if (kind === 'flag') packet[AT.flags] = (packet[AT.flags] as number) ^ (1 << (bit & 7));
    else if (kind === 'remove' && changed.length > 1) changed.splice(index, 1);
    else if (kind === 'cut')
      changed[changed.length - 1] = (changed.at(-1) as Uint8Array<ArrayBuffer>).slice(0, 1 + (where % 511));
    else if (kind === 'repeat') changed[index] = (changed[second] as Uint8Array<ArrayBuffer>).slice();
    else if (kind === 'swap') [changed[index], changed[second]] = [changed[second] as Uint8Array<ArrayBuffer>, packet];
  }
  return changed;
}

function join(packets: readonly Uint8Array[]): Buffer {
  return Buffer.concat(packets);
}

interface Sent {
  readonly net: Loopback;
  readonly handles: readonly number[];
  readonly from: Region;
  readonly to: Region;
  /** Datagrams of the first round, joined by the burst; none has arrived. */
  readonly trains: Uint8Array[];
}

/** Writes and a message, side by side in both regions, all of whose first packets are held back. */
function send(sizes: readonly number[], isAuthentic: boolean, seed: number): Sent {
  const trains: Uint8Array[] = [];
  let isHeld = true;
  const lose = ({ bytes }: Flying): boolean => {
    if (!isHeld || bytes[packetPrefix.offset.kind] !== packetKinds.data) return false;
    trains.push(bytes);
    return true;
  };
  const settings = { transportMinRtoUs: 500, transportAuthentication: isAuthentic, transportEagerBytes: 0 };
  const net = new Loopback({ seed, join: true, segmentBytes: SEGMENT_BYTES, lose, settings });
  const from = net.a.region(REGION_BYTES);
  const to = net.b.region(REGION_BYTES);
  pattern(from.bytes, seed).forEach((byte, at, bytes) => (bytes[at] = byte === 0 ? 1 : byte));
  let offset = 0;
  const handles = sizes.map((bytes, index) => {
    const place = { region: from, offset, bytes };
    offset += bytes;
    if (index > 0) {
      const remote = { remoteRegion: to.id, remoteKey: to.key, remoteOffset: place.offset };
      return net.a.connection.write({ ...place, ...remote });
    }
    net.b.connection.postReceive({ region: to, offset: place.offset, bytes });
    return net.a.connection.postSend(place);
  });
  net.run(() => trains.length >= sizes.length, 300);
  isHeld = false;
  return { net, handles, from, to, trains };
}

/** Where the payload of a packet belongs, by its own header. */
function placeOf(packet: Uint8Array): { readonly from: number; readonly to: number } {
  const view = new DataView(packet.buffer, packet.byteOffset, packet.byteLength);
  const from = view.getUint32(AT.offset, true) + view.getUint32(AT.base, true);
  return { from, to: from + view.getUint16(AT.length, true) };
}

/** 0: nowhere, 1: it may be placed, 2: it must be. */
function marksOf(packets: readonly Uint8Array[], originals: readonly Uint8Array[], isAuthentic: boolean): Uint8Array {
  const marks = new Uint8Array(REGION_BYTES);
  const known = new Set(originals.map(exactly));
  const lengths = new Map(originals.map((packet) => [essence(packet), packet.length]));
  for (const packet of packets) {
    const isIntact = known.has(exactly(packet));
    const isAlike = !isAuthentic && lengths.get(essence(packet)) === packet.length;
    if (!isIntact && !isAlike) continue;
    const { from, to } = placeOf(packet);
    for (let at = from; at < to; at++) marks[at] = Math.max(marks[at] as number, isIntact ? 2 : 1);
  }
  return marks;
}

for (const isAuthentic of [false, true]) {
  const what = isAuthentic ? 'authenticated ' : '';
  test(`of ${what}packets that were joined and damaged, those that are intact are placed, and nothing else is`, () => {
    const size = fc.integer({ min: 1, max: 16_000 });
    const sizes = fc.array(size, { minLength: 1, maxLength: 4 });
    fc.assert(
      fc.property(sizes, fc.nat(), damages, fc.boolean(), (bytes, seed, steps, areOneTrain) => {
        const { net, handles, from, to, trains } = send(bytes, isAuthentic, 1 + (seed % 1000));
        assert.ok(trains.length > 0);
        const originals = cutUp(trains);
        const groups = areOneTrain ? [damage(originals, steps)] : trains.map((train) => damage(cutUp([train]), steps));
        const delivered: Uint8Array[] = [];
        for (const group of groups) {
          // What the kernel joins is at most 64 KiB.
          const train = join(group).subarray(0, 65_024);
          delivered.push(...cutUp([train]));
          net.receive(net.b, train, SEGMENT_BYTES);
        }
        const marks = marksOf(delivered, originals, isAuthentic);
        for (let at = 0; at < REGION_BYTES; at++) {
          const byte = to.bytes[at];
          const isRight = byte === 0 ? marks[at] !== 2 : marks[at] !== 0 && byte === from.bytes[at];
          assert.ok(isRight, `byte ${at} is ${byte}, its mark ${marks[at]}, the source has ${from.bytes[at]}`);
        }
        assert.ok(net.run(() => handles.every((handle) => isEnded(net.a, handle))));
        for (const handle of handles) assert.equal(net.a.engine.poll(handle), requestStatus.done);
        const end = bytes.reduce((sum, part) => sum + part, 0);
        assert.deepEqual(to.bytes.subarray(0, end), from.bytes.subarray(0, end));
        assert.ok(to.bytes.subarray(end).every((byte) => byte === 0));
      }),
      { numRuns: 100 },
    );
  });
}
