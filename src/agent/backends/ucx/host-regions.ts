// Memory of this side that peers may reach, by number and key.
import { randomBytes } from 'node:crypto';
import type { Job } from './job.ts';

export interface HostRegion {
  readonly number: number;
  readonly key: number;
  readonly address: number;
  readonly bytes: number;
  /** Rendezvous that are writing to it. */
  writes: number;
  /** Answers that may be sending from it. */
  answers: Job[];
  isReleased: boolean;
}

export class HostRegions {
  readonly #regions = new Map<number, HostRegion>();
  #next = 1;

  add(address: number, bytes: number): HostRegion {
    const number = this.#next++;
    const key = randomBytes(4).readUInt32LE();
    const region: HostRegion = { number, key, address, bytes, writes: 0, answers: [], isReleased: false };
    this.#regions.set(number, region);
    return region;
  }

  /** Hot path. undefined if there is none or the key is another. */
  find(number: number, key: number): HostRegion | undefined {
    const region = this.#regions.get(number);
    return region !== undefined && region.key === key && !region.isReleased ? region : undefined;
  }

  /** Of this side's own number. */
  get(number: number): HostRegion | undefined {
    return this.#regions.get(number);
  }

  delete(number: number): void {
    this.#regions.delete(number);
  }
}
