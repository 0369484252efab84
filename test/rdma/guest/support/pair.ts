// Two ends of a wire between two RDMA devices, in one process of the guest.
import assert from 'node:assert/strict';
import { NativeBlock } from '#lib/native/library.js';
import { CompletionQueue } from '#lib/native/verbs/completion-queue.js';
import { ProtectionDomain, VerbsContext } from '#lib/native/verbs/context.js';
import { MemoryRegion, type RegionAccess } from '#lib/native/verbs/memory-region.js';
import {
  type ConnectionOptions,
  QueuePair,
  type QueuePairOptions,
  type QueuePairService,
  type VerbsPath,
} from '#lib/native/verbs/queue-pair.js';
import { sendFlag, sendOpcode } from '#lib/native/verbs/c-structs.js';

const MEMORY_BYTES = 1 << 20;
const WAIT_MS = 120_000;
export const QUEUE_KEY = 0x1ee7;
/** Fast enough that a test of a lost peer does not wait long: 7 times 8 ms. */
const CONNECTION: ConnectionOptions = { mtu: 1024, timeout: 11, retries: 6 };

export class Side implements Disposable {
  readonly context: VerbsContext;
  readonly domain: ProtectionDomain;
  readonly completions: CompletionQueue;
  readonly receiveCompletions: CompletionQueue;
  readonly memory: NativeBlock = new NativeBlock(MEMORY_BYTES);
  readonly region: MemoryRegion;
  /** Address of its port 1 in IPv6 form. */
  readonly gid: Uint8Array;
  readonly gidIndex: number;

  constructor(device: string, access: RegionAccess = { remoteWrite: true, remoteRead: true, remoteAtomic: true }) {
    this.context = VerbsContext.open(device);
    this.domain = new ProtectionDomain(this.context);
    this.completions = new CompletionQueue(this.context, 256);
    this.receiveCompletions = new CompletionQueue(this.context, 256);
    this.region = MemoryRegion.host(this.domain, this.memory.address, MEMORY_BYTES, access);
    const entry = this.context.queryGids().find(({ gid }) => gid.startsWith('0000:0000:0000:0000:0000:ffff:'));
    assert.ok(entry, `${device} has no GID of an IPv4 address`);
    this.gid = Buffer.from(entry.gid.replaceAll(':', ''), 'hex');
    this.gidIndex = entry.index;
  }

  queuePair(service: QueuePairService, options: Partial<QueuePairOptions> = {}): QueuePair {
    const made = new QueuePair(this.domain, {
      service,
      sendCompletions: this.completions,
      receiveCompletions: this.receiveCompletions,
      maxSends: 64,
      maxReceives: 64,
      ...options,
    });
    made.initialize(1, { remoteWrite: true, remoteRead: service === 'rc', remoteAtomic: service === 'rc' }, QUEUE_KEY);
    return made;
  }

  pathTo(peer: Side): VerbsPath {
    return { port: 1, gidIndex: this.gidIndex, remoteGid: peer.gid };
  }

  /** Posts a receive into this side's memory. */
  receive(queuePair: QueuePair, offset: number, bytes: number, tag: number): void {
    assert.ok(queuePair.receives.start(tag));
    queuePair.receives.add(this.memory.address + offset, bytes, this.region.localKey);
    queuePair.receives.post();
  }

  [Symbol.dispose](): void {
    this.context.close();
  }
}

/** A queue pair of each side, connected. */
export function connectPair(
  service: 'rc' | 'uc',
  sides: readonly [Side, Side],
  options: Partial<QueuePairOptions> = {},
): readonly [QueuePair, QueuePair] {
  const [a, b] = sides;
  const [one, other] = [a.queuePair(service, options), b.queuePair(service, options)];
  connect(one, a, other, b);
  connect(other, b, one, a);
  return [one, other];
}

export function connect(one: QueuePair, side: Side, peer: QueuePair, peerSide: Side): void {
  one.connect(
    { number: peer.number, firstSequence: 7, path: side.pathTo(peerSide) },
    { ...CONNECTION, firstSequence: 7 },
  );
}

/** Waits for the next completions: the number of them, to be read by index. */
export function nextCompletions(queue: CompletionQueue): number {
  const until = Date.now() + WAIT_MS;
  for (;;) {
    const count = queue.poll();
    if (count > 0) return count;
    assert.ok(Date.now() < until, 'no completion came');
  }
}

/** One request with its completion; returns the status. */
export function doOne(queuePair: QueuePair, side: Side, request: OneRequest): number {
  const { opcode = sendOpcode.write, flags = sendFlag.signaled, bytes, from = 0, remoteAddress, remoteKey } = request;
  assert.ok(queuePair.sends.start(opcode, flags, 1));
  queuePair.sends.add(side.memory.address + from, bytes, side.region.localKey);
  if (remoteAddress !== undefined) queuePair.sends.target(remoteAddress, remoteKey ?? 0);
  if (request.immediate !== undefined) queuePair.sends.immediate(request.immediate);
  queuePair.sends.post();
  assert.equal(nextCompletions(side.completions), 1);
  queuePair.sends.doneUntil(side.completions.sequenceAt(0));
  return side.completions.statusAt(0);
}

export interface OneRequest {
  readonly opcode?: number;
  readonly flags?: number;
  readonly bytes: number;
  readonly from?: number;
  readonly remoteAddress?: number;
  readonly remoteKey?: number;
  readonly immediate?: number;
}

/** Bytes that tell where they came from. */
export function fill(bytes: Uint8Array, seed: number): void {
  for (let index = 0; index < bytes.length; index += 1) bytes[index] = (index * 31 + seed) & 0xff;
}
