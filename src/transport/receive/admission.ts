// Receiver-driven admission: which receives of an engine may be sent to, and how much, so that all senders together
// have at most the set number of bytes on their way. Grants go round the connections; receives that nobody has claimed
// hold at most half, so that they never starve the others. What a peer was granted that has fallen silent does not count
// until it speaks again: others need not wait until it is given up.
import type { Request } from '../engine/request.ts';
import type { TransportSettings } from '../engine/transport-settings.ts';
import type { ReceiveSide } from './receive-side.ts';

/** Shortest retransmission timeouts of silence after which a peer's grants do not count. */
const TIMEOUTS_OF_SILENCE = 10;

export class Admission {
  /** Bytes that were granted and have not come: to claimed receives, and to those that nobody has claimed yet. */
  claimedBytes = 0;
  unclaimedBytes = 0;
  readonly #limit: number;
  readonly #chunk: number;
  /** Connections with claimed receives that want more; each stands here once. */
  readonly #waiting: ReceiveSide[] = [];
  /** Connections that may have claimed bytes, and those of them that are silent. */
  readonly #holders = new Set<ReceiveSide>();
  readonly #silent: ReceiveSide[] = [];
  readonly #patience: number;
  /** When to look for silent peers, if somebody waits for what they hold; Infinity if nobody does. */
  deadline = Number.POSITIVE_INFINITY;

  constructor(settings: TransportSettings) {
    this.#limit = settings.ctsBytes;
    this.#chunk = settings.ctsChunkBytes;
    this.#patience = TIMEOUTS_OF_SILENCE * settings.minRto;
  }

  /** What a new receive may be sent at once. */
  firstGrant(request: Request): number {
    const bytes = Math.min(request.bytes, this.#chunk);
    const fits =
      this.unclaimedBytes + bytes <= this.#limit / 2 && this.claimedBytes + this.unclaimedBytes + bytes <= this.#limit;
    if (!fits) return 0;
    this.unclaimedBytes += bytes;
    return bytes;
  }

  /** A sender has a message of `messageBytes` for the receive. */
  claim(receive: ReceiveSide, request: Request, messageBytes: number): void {
    if (request.claimed) return;
    receive.noteClaimed(request);
    request.claimed = true;
    request.messageBytes = messageBytes;
    this.unclaimedBytes -= request.granted;
    request.granted = Math.min(request.granted, messageBytes);
    this.#holders.add(receive);
    this.#hold(receive, request.granted);
    if (request.granted === messageBytes) return;
    receive.grantQueue.push(request);
    if (!receive.waitsForGrant) {
      receive.waitsForGrant = true;
      this.#waiting.push(receive);
    }
  }

  /** `bytes` of a receive have come. */
  arrived(receive: ReceiveSide, request: Request, bytes: number): void {
    // A wrong sender that repeats bytes under new numbers is ahead of the count.
    const expected = Math.min(bytes, Math.max(0, request.granted - request.received));
    if (request.claimed) this.#hold(receive, -expected);
    else this.unclaimedBytes -= expected;
  }

  /** The receive has ended; what was granted and did not come is free again. */
  end(receive: ReceiveSide, request: Request): void {
    if (!request.announced) return;
    if (!request.claimed) receive.noteClaimed(request);
    const open = Math.max(0, request.granted - request.received);
    if (request.claimed) this.#hold(receive, -open);
    else this.unclaimedBytes -= open;
  }

  /** Hands out what is free, a chunk at a time, to the connections in turn. */
  run(now: number): void {
    const waiting = this.#waiting;
    let refused = 0;
    if (this.#silent.length > 0) this.#restore();
    if (waiting.length === 0) this.deadline = Number.POSITIVE_INFINITY;
    else if (now >= this.deadline) this.#suspend(now);
    while (waiting.length > refused) {
      const receive = waiting[0] as ReceiveSide;
      const request = receive.grantQueue.head;
      if (request === undefined || !request.isPending || request.granted >= request.messageBytes) {
        receive.grantQueue.shift();
        if (receive.grantQueue.head !== undefined) continue;
        receive.waitsForGrant = false;
        waiting.shift();
        continue;
      }
      if (receive.silentSince !== Number.POSITIVE_INFINITY) {
        waiting.push(waiting.shift() as ReceiveSide);
        refused++;
        continue;
      }
      const bytes = Math.min(this.#chunk, request.messageBytes - request.granted);
      const free = this.#limit - this.claimedBytes - this.unclaimedBytes;
      // If nothing is claimed, half of the limit is free, and a chunk fits.
      if (bytes > free) {
        if (this.deadline === Number.POSITIVE_INFINITY) this.deadline = now + this.#patience;
        return;
      }
      waiting.shift();
      waiting.push(receive);
      if (!receive.grant(request, request.granted + bytes)) {
        refused++;
        continue;
      }
      refused = 0;
      this.#hold(receive, bytes);
    }
  }

  /** A connection has ended. */
  remove(receive: ReceiveSide): void {
    const at = this.#waiting.indexOf(receive);
    if (at !== -1) this.#waiting.splice(at, 1);
    this.#holders.delete(receive);
    const silentAt = this.#silent.indexOf(receive);
    if (silentAt === -1) return;
    // The connection's receives end one by one, and give back what they hold.
    this.claimedBytes += receive.claimedBytes;
    receive.silentSince = Number.POSITIVE_INFINITY;
    this.#silent.splice(silentAt, 1);
  }

  #hold(receive: ReceiveSide, bytes: number): void {
    receive.claimedBytes += bytes;
    if (receive.silentSince === Number.POSITIVE_INFINITY) this.claimedBytes += bytes;
  }

  /** Somebody waits: what is held by peers from which nothing comes does not count. */
  #suspend(now: number): void {
    this.deadline = Number.POSITIVE_INFINITY;
    for (const receive of this.#holders) {
      if (receive.claimedBytes === 0) this.#holders.delete(receive);
      else if (receive.silentSince === Number.POSITIVE_INFINITY && now - receive.heardAt >= this.#patience) {
        receive.silentSince = now;
        this.claimedBytes -= receive.claimedBytes;
        this.#silent.push(receive);
      }
    }
  }

  /** Peers that were silent and have spoken count again. */
  #restore(): void {
    for (let at = this.#silent.length - 1; at >= 0; at--) {
      const receive = this.#silent[at] as ReceiveSide;
      if (receive.heardAt <= receive.silentSince) continue;
      receive.silentSince = Number.POSITIVE_INFINITY;
      this.claimedBytes += receive.claimedBytes;
      this.#silent.splice(at, 1);
    }
  }
}
