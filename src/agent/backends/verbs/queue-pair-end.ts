// One end of a connection: a queue pair of the backend's port, its place for completions, and how the peer is told of it.
import { randomInt } from 'node:crypto';
import { WeftlineError } from '../../../core/errors.ts';
import type { RegionAccess } from '../../../native/verbs/memory-region.ts';
import { QueuePair } from '../../../native/verbs/queue-pair.ts';
import type { CompletionPlace, CompletionTaker } from './completion-pool.ts';
import type { PortAddress, VerbsDevice } from './verbs-device.ts';

/** What a peer must know of a queue pair to connect its own to it. */
export interface EndAddress extends PortAddress {
  readonly queuePair: number;
  /** First packet sequence number that it sends: 24 bits. */
  readonly firstSequence: number;
}

export interface EndOptions {
  readonly maxSends: number;
  readonly maxReceives: number;
  /** What the peer may do. */
  readonly access: RegionAccess;
}

const SEQUENCES = 2 ** 24;
/** 268 ms: seven tries in vain, two seconds on most devices, tell that a peer is gone. Its process is known to be sooner. */
const TIMEOUT = 16;

/** Looks that take in all completions which a queue can hold. */
const MAX_LOOKS = 256;

export class QueuePairEnd {
  readonly queuePair: QueuePair;
  readonly address: EndAddress;
  readonly #device: VerbsDevice;
  readonly #place: CompletionPlace;
  #isClosed = false;

  /** Fails with WL_CAPACITY where a limit of the device is reached. */
  constructor(device: VerbsDevice, { maxSends, maxReceives, access }: EndOptions) {
    this.#device = device;
    this.#place = device.completions.reserve(maxSends + maxReceives);
    const { queue } = this.#place;
    try {
      this.queuePair = new QueuePair(device.domain, {
        service: 'rc',
        sendCompletions: queue,
        receiveCompletions: queue,
        maxSends,
        maxReceives,
      });
    } catch (error) {
      this.#place.giveBack();
      throw error;
    }
    try {
      this.queuePair.initialize(device.rail.port, access);
    } catch (error) {
      this.close();
      throw error;
    }
    const firstSequence = randomInt(SEQUENCES);
    this.address = { ...device.port, queuePair: this.queuePair.number, firstSequence };
  }

  /** From now on. */
  takeCompletions(taker: CompletionTaker): void {
    this.#place.take(this.queuePair.number, taker);
  }

  connect(remote: EndAddress): void {
    const { address } = this;
    const path = this.#device.pathTo(remote);
    const { queuePair: number, firstSequence } = remote;
    this.queuePair.connect(
      { number, firstSequence, path },
      { firstSequence: address.firstSequence, mtu: Math.min(address.mtuBytes, remote.mtuBytes), timeout: TIMEOUT },
    );
  }

  /** Once it has returned, the device touches no memory for this queue pair. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    try {
      // What came before counts, however much it is.
      this.#drain();
      // What is under way then completes as flushed and is taken in, before another queue pair may get this number.
      this.queuePair.fail();
      this.#drain();
    } catch {
      // A device that is gone; closing tells.
    }
    this.#place.giveBack();
    this.queuePair.close();
  }

  /** One look takes a part of what waits; other queue pairs of the queue may go on meanwhile. */
  #drain(): void {
    const { completions } = this.#device;
    for (let look = 0; look < MAX_LOOKS && completions.poll(); look++);
  }
}

/** For errors: "rxe0 port 1 (::ffff:10.77.0.1)". */
export function describePort({ name, gid }: Pick<PortAddress, 'name' | 'gid'>): string {
  const groups = gid.replaceAll(/(....)(?!$)/g, '$1:');
  return `${name} (GID ${groups})`;
}

/** Ports of different kinds of networks have no way to each other. Undefined if they may have. */
export function whyNotPort(own: PortAddress, remote: Pick<PortAddress, 'linkLayer' | 'name'>): string | undefined {
  if (own.linkLayer === remote.linkLayer) return undefined;
  return `${own.name} is of ${own.linkLayer}, and the peer's ${remote.name} of ${remote.linkLayer}`;
}

export function unreachablePort(why: string, peer: string): WeftlineError {
  return new WeftlineError('WL_UNSUPPORTED', `Cannot connect to ${peer} by RDMA: ${why}`, { details: { peer } });
}
