// Receiver-driven admission: which receives of an engine may be sent to, and how much, so that all senders together
// have at most the set number of bytes on their way. Grants go round the connections; receives that nobody has claimed
// hold at most half, so that they never starve the others.
import type { Connection } from './connection.ts';
import type { Request } from './request.ts';
import type { TransportSettings } from './transport-settings.ts';

export class Admission {
  /** Bytes that were granted and have not come: to claimed receives, and to those that nobody has claimed yet. */
  claimedBytes = 0;
  unclaimedBytes = 0;
  readonly #limit: number;
  readonly #chunk: number;
  /** Connections with claimed receives that want more; each stands here once. */
  readonly #waiting: Connection[] = [];

  constructor(settings: TransportSettings) {
    this.#limit = settings.ctsBytes;
    this.#chunk = settings.ctsChunkBytes;
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
  claim(request: Request, messageBytes: number): void {
    if (request.claimed) return;
    request.claimed = true;
    request.messageBytes = messageBytes;
    this.unclaimedBytes -= request.granted;
    request.granted = Math.min(request.granted, messageBytes);
    this.claimedBytes += request.granted;
    if (request.granted === messageBytes) return;
    const connection = request.connection as Connection;
    connection.grantQueue.push(request);
    if (!connection.waitsForGrant) {
      connection.waitsForGrant = true;
      this.#waiting.push(connection);
    }
  }

  /** `bytes` of a receive have come. */
  arrived(request: Request, bytes: number): void {
    // A sender that goes beyond its grant is ahead of the count; what it gets later makes up for it.
    const expected = Math.min(bytes, Math.max(0, request.granted - request.received));
    if (request.claimed) this.claimedBytes -= expected;
    else this.unclaimedBytes -= expected;
  }

  /** The receive has ended; what was granted and did not come is free again. */
  end(request: Request): void {
    if (!request.announced) return;
    const open = Math.max(0, request.granted - request.received);
    if (request.claimed) this.claimedBytes -= open;
    else this.unclaimedBytes -= open;
  }

  /** Hands out what is free, a chunk at a time, to the connections in turn. */
  run(): void {
    const waiting = this.#waiting;
    let refused = 0;
    while (waiting.length > refused) {
      const connection = waiting[0] as Connection;
      const request = connection.grantQueue.head;
      if (request === undefined || !request.isPending || request.granted >= request.messageBytes) {
        connection.grantQueue.shift();
        if (connection.grantQueue.head !== undefined) continue;
        connection.waitsForGrant = false;
        waiting.shift();
        continue;
      }
      const bytes = Math.min(this.#chunk, request.messageBytes - request.granted);
      const free = this.#limit - this.claimedBytes - this.unclaimedBytes;
      // If nothing is claimed, half of the limit is free, and a chunk fits.
      if (bytes > free) return;
      waiting.shift();
      waiting.push(connection);
      if (!connection.grant(request, request.granted + bytes)) {
        refused++;
        continue;
      }
      refused = 0;
      this.claimedBytes += bytes;
    }
  }

  /** A connection has ended. */
  remove(connection: Connection): void {
    const at = this.#waiting.indexOf(connection);
    if (at !== -1) this.#waiting.splice(at, 1);
  }
}
