// The numbers by which commands name the requests of a host.
import { MAX_DEVICE_REQUESTS } from '../../abi/device-api.ts';
import { WeftlineError } from '../../core/errors.ts';

export class RequestNumbers {
  readonly #isTaken = new Uint8Array(MAX_DEVICE_REQUESTS);
  #next = 0;

  /**
   * The one that was given back longest ago: a command of a request that was released too early then names none, instead of
   * another. Fails with WL_CAPACITY; `owner` is for the error.
   */
  take(owner: string): number {
    for (let looks = 0; looks < MAX_DEVICE_REQUESTS; looks += 1) {
      const number = this.#next;
      this.#next = (number + 1) % MAX_DEVICE_REQUESTS;
      if (this.#isTaken[number] === 1) continue;
      this.#isTaken[number] = 1;
      return number;
    }
    throw new WeftlineError(
      'WL_CAPACITY',
      `${owner} has ${MAX_DEVICE_REQUESTS} requests, which is the most: release some first`,
    );
  }

  giveBack(number: number): void {
    this.#isTaken[number] = 0;
  }
}
