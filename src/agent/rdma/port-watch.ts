// What the device says of itself between requests: a port that went down, a device that failed.
import { log } from '../../core/log.ts';
import type { RdmaDevice } from './rdma-device.ts';

/** A port that is up again by then loses no link: requests are repeated for about as long. */
const GRACE_MS = 3000;

export class PortWatch {
  readonly #device: RdmaDevice;
  #downSince: number | undefined;
  #why = '';
  #hasFailed = false;

  constructor(device: RdmaDevice) {
    this.#device = device;
  }

  /** Takes all events. */
  take(): void {
    const { events, portNumber } = this.#device;
    for (let event = events.take(); event !== undefined; event = events.take()) {
      const { name, meaning, port } = event;
      if (port !== undefined && port !== portNumber) continue;
      if (name === 'IBV_EVENT_PORT_ERR') {
        this.#downSince ??= performance.now();
        this.#why = `${meaning} (${name})`;
        log('agent', 'warn', this.#why);
      } else if (name === 'IBV_EVENT_PORT_ACTIVE') {
        this.#downSince = undefined;
        log('agent', 'info', meaning);
      } else if (name === 'IBV_EVENT_DEVICE_FATAL') {
        this.#hasFailed = true;
        this.#why = `${meaning} (${name})`;
        log('agent', 'warn', this.#why);
      } else log('agent', 'debug', `${meaning} (${name})`);
    }
  }

  /** Hot path. */
  get isDown(): boolean {
    return this.#hasFailed || this.#downSince !== undefined;
  }

  /** Milliseconds until the next look is due; infinite if there is nothing to wait for. */
  get pauseMs(): number {
    if (this.#downSince === undefined) return Number.POSITIVE_INFINITY;
    // Once the time is over there is nothing to look for.
    const left = this.#downSince + GRACE_MS - performance.now();
    return left > 0 ? left : Number.POSITIVE_INFINITY;
  }

  /** Why links are of no use any more; undefined while they may be. */
  get failure(): string | undefined {
    if (this.#hasFailed) return this.#why;
    return this.#downSince !== undefined && this.pauseMs === Number.POSITIVE_INFINITY ? this.#why : undefined;
  }
}
