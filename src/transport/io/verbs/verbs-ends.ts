// The queue pairs of an engine: made before the peer is known, joined with the peer's, probed, closed.
import { randomInt } from 'node:crypto';
import { Block } from '../../../abi/layout.ts';
import { PROBE_MARK, transportProbe } from '../../../abi/transport-probe.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { AddressHandle } from '../../../native/verbs/path.ts';
import { QueuePair } from '../../../native/verbs/queue-pair.ts';
import type { EndMaker, EndsJoin, EndsPlan, EndsProbe, MadeEnds } from '../packet-io-kind.ts';
import { microseconds } from '../engine-turns.ts';
import { LeavingEnds } from './leaving-ends.ts';
import { GONE, NOBODY, PathEnd } from './path-end.ts';
import { type EndName, flowLabel, type PortName, QUEUE_KEYS, readOffer, SEQUENCES } from './peer-offer.ts';
import type { VerbsPacketIo } from './verbs-packet-io.ts';
import { MAX_UNDER_WAY, type RailEnd, type VerbsRail } from './verbs-rail.ts';

/** Slots of a queue pair without shared receives. */
const OWN_RECEIVES = 128;
/** Header and payload. */
const PIECES = 2;
/** The code of 41 ms: a receiver without memory for so long, six times over, is no longer a receiver. */
const RECEIVER_NOT_READY_TIMER = 24;
/** Of each size, so that a lost packet does not decide. */
const PROBE_COPIES = 3;

interface EndsParts {
  /** The engine's ports; path p goes by rail p modulo as many of them as a connection uses. */
  readonly rails: readonly VerbsRail[];
  readonly io: VerbsPacketIo;
  /** Takes in what has arrived at all ports, as far as the engine may be kept busy by that. */
  readonly take: () => void;
  /** Takes in all that has arrived at one. */
  readonly drain: (rail: VerbsRail) => void;
}

export class VerbsEnds implements EndMaker {
  readonly #parts: EndsParts;
  readonly #ends: (RailEnd | undefined)[] = [];
  readonly #leaving: LeavingEnds;

  constructor(parts: EndsParts) {
    this.#parts = parts;
    this.#leaving = new LeavingEnds(parts.drain, ({ number }) => {
      this.#ends[number] = undefined;
    });
  }

  open({ count, rails }: EndsPlan): MadeEnds {
    const used = this.#railsOf(rails);
    const ends: RailEnd[] = [];
    try {
      while (ends.length < count) ends.push(this.#make(used[ends.length % rails] as VerbsRail));
    } catch (error) {
      this.remove(ends);
      throw error;
    }
    const named = ends.map(({ queuePair, queueKey, firstSequence }) => ({
      number: queuePair.number,
      queueKey,
      firstSequence,
    }));
    const offer = { rails: used.map(({ port }) => port.name), ends: named };
    return { ends: ends.map(({ number }) => number), offer };
  }

  connect({ ends, offer }: EndsJoin): void {
    const { rails, ends: remotes } = readOffer(offer, ends.length);
    for (const [path, number] of ends.entries()) {
      this.#join(this.get(number), rails[path % rails.length] as PortName, remotes[path] as EndName);
    }
  }

  probe({ ends, secret }: EndsProbe): number {
    const { io } = this.#parts;
    const end = this.get(ends[0] as number);
    const { packetBytes } = end.rail.memory;
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
    this.#parts.take();
    const end = this.get(ends[0] as number);
    return end.probedSecret === secret ? end.probed : 0;
  }

  close(ends: readonly number[]): void {
    const made = ends.map((number) => this.#ends[number]);
    this.remove(made.filter((end): end is RailEnd => end !== undefined && end.peer === NOBODY));
  }

  /** Those that a peer of the engine is given. */
  take(ends: readonly number[], peer: number): readonly RailEnd[] {
    const taken = ends.map((number) => this.get(number));
    for (const end of taken) end.peer = peer;
    return taken;
  }

  /** Closes ends: what they have to send leaves, and the loop goes on meanwhile. */
  remove(ends: readonly RailEnd[]): void {
    const now = microseconds();
    for (const end of ends) {
      if (end.peer === GONE) continue;
      end.peer = GONE;
      this.#leaving.add(end, now);
    }
  }

  /** Some are not closed yet: `advance` is to be called now and then. */
  get areLeaving(): boolean {
    return this.#leaving.count > 0;
  }

  advance(now: number): void {
    this.#leaving.advance(now);
  }

  /** Closes those that are leaving, without the engine. */
  finish(): void {
    this.#leaving.finish(microseconds);
  }

  /** A packet that came before the end had a peer: a probe, or nothing. */
  noteProbe(end: PathEnd, at: number, bytes: number): void {
    if (bytes < transportProbe.size) return;
    const { received } = end.rail.memory;
    const probe = Block.over(transportProbe, received.slice(at, at + transportProbe.size));
    if (probe.get('mark') !== PROBE_MARK || probe.get('bytes') !== bytes || bytes < end.probed) return;
    end.probed = bytes;
    end.probedSecret = (BigInt(probe.get('secretHigh')) << 32n) | BigInt(probe.get('secretLow'));
  }

  get(number: number): RailEnd {
    const end = this.#ends[number];
    if (end !== undefined) return end;
    throw new WeftlineError('WL_INTERNAL', `The engine has made no end of a path with the number ${number}`);
  }

  #railsOf(count: number): readonly VerbsRail[] {
    const { rails } = this.#parts;
    if (count >= 1 && count <= rails.length) return rails.slice(0, count);
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      `A connection needs ${count} RDMA ports, but this engine has opened ${rails.length} (${rails.map(({ port }) => port.rail.name).join(', ')}): the others have gone down meanwhile`,
    );
  }

  #make(rail: VerbsRail): RailEnd {
    const { port, service, receiver, shared, sends, receives } = rail;
    const queuePair = new QueuePair(port.domain, {
      service,
      sendCompletions: sends,
      receiveCompletions: receives,
      maxSends: MAX_UNDER_WAY,
      pieces: PIECES,
      ...(shared === undefined ? { maxReceives: OWN_RECEIVES } : { sharedReceives: shared }),
    });
    const free = this.#ends.indexOf(undefined);
    const number = free === -1 ? this.#ends.length : free;
    const names = { number, queueKey: randomInt(1, QUEUE_KEYS), firstSequence: randomInt(SEQUENCES) };
    const end = new PathEnd(rail, queuePair, names);
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
    rail.addEnd(end);
    return end;
  }

  #join(end: RailEnd, peer: PortName, remote: EndName): void {
    const { queuePair, firstSequence } = end;
    const { port, service } = end.rail;
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
}
