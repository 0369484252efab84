// The queue pairs of an engine: made before the peer is known, joined with the peer's, probed, closed.
import { randomInt } from 'node:crypto';
import { Block } from '../../../abi/layout.ts';
import { PROBE_MARK, transportProbe } from '../../../abi/transport-probe.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { CompletionQueue } from '../../../native/verbs/completion-queue.ts';
import { AddressHandle } from '../../../native/verbs/path.ts';
import { QueuePair, type QueuePairService } from '../../../native/verbs/queue-pair.ts';
import type { SharedReceiveQueue } from '../../../native/verbs/shared-receive-queue.ts';
import type { EndMaker, EndsJoin, EndsProbe, MadeEnds } from '../packet-io-kind.ts';
import type { PacketReceiver } from './packet-receiver.ts';
import { NOBODY, PathEnd } from './path-end.ts';
import { MAX_UNDER_WAY, type VerbsPacketIo } from './verbs-packet-io.ts';
import { type EndName, flowLabel, type PortName, QUEUE_KEYS, readOffer, SEQUENCES } from './peer-offer.ts';
import type { VerbsPort } from './verbs-port.ts';

/** Slots of a queue pair without shared receives. */
const OWN_RECEIVES = 128;
/** Header and payload. */
const PIECES = 2;
/** The code of 41 ms: a receiver without memory for so long, six times over, is no longer a receiver. */
const RECEIVER_NOT_READY_TIMER = 24;
/** Of each size, so that a lost packet does not decide. */
const PROBE_COPIES = 3;

export interface EndsParts {
  readonly service: QueuePairService;
  readonly port: VerbsPort;
  readonly io: VerbsPacketIo;
  readonly receiver: PacketReceiver;
  readonly sendCompletions: CompletionQueue;
  readonly receiveCompletions: CompletionQueue;
  readonly shared: SharedReceiveQueue | undefined;
  /** Takes in what has arrived. */
  readonly drain: () => void;
}

export class VerbsEnds implements EndMaker {
  readonly #parts: EndsParts;
  readonly #ends: (PathEnd | undefined)[] = [];

  constructor(parts: EndsParts) {
    this.#parts = parts;
  }

  open(count: number): MadeEnds {
    const ends: PathEnd[] = [];
    try {
      while (ends.length < count) ends.push(this.#make());
    } catch (error) {
      for (const end of ends) this.#remove(end);
      throw error;
    }
    const named = ends.map(({ queuePair, queueKey, firstSequence }) => ({
      number: queuePair.number,
      queueKey,
      firstSequence,
    }));
    return { ends: ends.map(({ number }) => number), offer: { ...this.#parts.port.name, ends: named } };
  }

  connect({ ends, offer }: EndsJoin): void {
    const { port, ends: remotes } = readOffer(offer, ends.length);
    for (const [path, number] of ends.entries()) this.#join(this.get(number), port, remotes[path] as EndName);
  }

  probe({ ends, secret }: EndsProbe): number {
    const { io } = this.#parts;
    const { packetBytes } = io.memory;
    const end = this.get(ends[0] as number);
    const sizes = [packetBytes, ...[2048, 1024].filter((bytes) => bytes < packetBytes)];
    for (const bytes of sizes) {
      const packet = new Uint8Array(bytes);
      const block = Block.over(transportProbe, packet);
      block.set('mark', PROBE_MARK);
      block.set('bytes', bytes);
      block.set('secretLow', Number(secret & 0xffff_ffffn));
      block.set('secretHigh', Number(secret >> 32n));
      for (let copy = 0; copy < PROBE_COPIES; copy += 1) io.sendBytes(end, packet);
    }
    io.flush();
    return packetBytes;
  }

  probed({ ends, secret }: EndsProbe): number {
    this.#parts.drain();
    const end = this.get(ends[0] as number);
    return end.probedSecret === secret ? end.probed : 0;
  }

  close(ends: readonly number[]): void {
    for (const number of ends) {
      const end = this.#ends[number];
      if (end !== undefined && end.peer === NOBODY) this.#remove(end);
    }
  }

  /** Those that a peer of the engine is given. */
  take(ends: readonly number[], peer: number): readonly PathEnd[] {
    const taken = ends.map((number) => this.get(number));
    for (const end of taken) end.peer = peer;
    return taken;
  }

  /** Closes ends that `take` gave. */
  remove(ends: readonly PathEnd[]): void {
    for (const end of ends) this.#remove(end);
  }

  /** A packet that came before the end had a peer: a probe, or nothing. */
  noteProbe(end: PathEnd, at: number, bytes: number): void {
    if (bytes < transportProbe.size) return;
    const { received } = this.#parts.io.memory;
    const probe = Block.over(transportProbe, received.slice(at, at + transportProbe.size));
    if (probe.get('mark') !== PROBE_MARK || probe.get('bytes') !== bytes || bytes < end.probed) return;
    end.probed = bytes;
    end.probedSecret = (BigInt(probe.get('secretHigh')) << 32n) | BigInt(probe.get('secretLow'));
  }

  get(number: number): PathEnd {
    const end = this.#ends[number];
    if (end !== undefined) return end;
    throw new WeftlineError('WL_INTERNAL', `The engine has made no end of a path with the number ${number}`);
  }

  #make(): PathEnd {
    const { service, port, io, receiver, shared, sendCompletions, receiveCompletions } = this.#parts;
    const queuePair = new QueuePair(port.domain, {
      service,
      sendCompletions,
      receiveCompletions,
      maxSends: MAX_UNDER_WAY,
      pieces: PIECES,
      ...(shared === undefined ? { maxReceives: OWN_RECEIVES } : { sharedReceives: shared }),
    });
    const free = this.#ends.indexOf(undefined);
    const number = free === -1 ? this.#ends.length : free;
    const end = new PathEnd(number, queuePair, randomInt(1, QUEUE_KEYS), randomInt(SEQUENCES));
    try {
      queuePair.initialize(port.rail.port, {}, end.queueKey);
      if (!receiver.equip(end, OWN_RECEIVES)) {
        throw new WeftlineError(
          'WL_CAPACITY',
          `The memory of an engine for packets has no room for another queue pair (${service}, ${port.rail.name}), which needs receives of its own: use fewer paths (WEFTLINE_TRANSPORT_PATHS) or connections, or WEFTLINE_RDMA_SERVICE=ud`,
        );
      }
    } catch (error) {
      queuePair.close();
      throw error;
    }
    this.#ends[number] = end;
    io.addEnd(end);
    return end;
  }

  #join(end: PathEnd, peer: PortName, remote: EndName): void {
    const { port, service } = this.#parts;
    const { queuePair, firstSequence } = end;
    const path = port.pathTo(peer, flowLabel(queuePair.number, remote.number));
    end.remoteNumber = remote.number;
    end.remoteQueueKey = remote.queueKey;
    if (service === 'ud') {
      end.handle = new AddressHandle(port.domain, path);
      queuePair.open(firstSequence);
      return;
    }
    const mtu = Math.min(port.rail.mtuBytes, peer.mtu);
    queuePair.connect(
      { number: remote.number, firstSequence: remote.firstSequence, path },
      { mtu, firstSequence, receiverNotReadyTimer: RECEIVER_NOT_READY_TIMER },
    );
  }

  #remove(end: PathEnd): void {
    this.#ends[end.number] = undefined;
    this.#parts.io.removeEnd(end);
    this.#parts.receiver.strip(end);
  }
}
