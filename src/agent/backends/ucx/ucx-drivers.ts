// The UCX workers of one backend and the memory that peers reach through them: one worker for all links, or one for each.
import { WeftlineError } from '../../../core/errors.ts';
import type { UcxDriver } from './ucx-driver.ts';
import type { OpenRegion } from './ucx-region.ts';
import { REGIONS } from './ucx-tables.ts';

/**
 * Over shared memory each link has a worker of its own. UCX 1.13 has one queue per worker into which all its peers write:
 * one that is killed while it writes leaves a place that is never filled, and UCX reads no message behind it.
 */
export class UcxDrivers {
  readonly #create: () => UcxDriver;
  readonly #isShared: boolean;
  /** Made already, for the next link. */
  #spare: UcxDriver | undefined;
  readonly #drivers: UcxDriver[] = [];
  readonly #closing = new Set<Promise<void>>();
  /** Closed, but not destroyed: see memory-use.ts. */
  readonly #undestroyed: UcxDriver[] = [];
  readonly #regions = new Map<number, OpenRegion>();
  readonly #releasing = new Set<number>();
  readonly #freeRegions: number[] = [];
  #madeRegions = 0;

  /** Makes one at once, so that a fault of UCX or its settings shows now and not at the first link. */
  constructor(create: () => UcxDriver, isShared: boolean) {
    this.#create = create;
    this.#isShared = isShared;
    this.#spare = this.#open();
  }

  /** For a link that is to be made; then `giveBack`. */
  take(): UcxDriver {
    const driver = this.#spare ?? this.#open();
    if (!this.#isShared) this.#spare = undefined;
    return driver;
  }

  /** The link has ended, or was not made. */
  giveBack(driver: UcxDriver): void {
    if (!this.#isShared) this.#drop(driver);
  }

  #drop(driver: UcxDriver): void {
    const at = this.#drivers.indexOf(driver);
    if (at < 0) return;
    this.#drivers.splice(at, 1);
    const closed = this.#close(driver).catch(() => {});
    this.#closing.add(closed);
    void closed.then(() => this.#closing.delete(closed));
  }

  async #close(driver: UcxDriver): Promise<void> {
    await driver.close();
    if (!driver.isOver) this.#undestroyed.push(driver);
  }

  /** Returns the region's number, and the key of its memory, see UcxContext.pack. Fails with WL_CAPACITY, with WL_NATIVE if UCX refuses the memory. */
  register(region: OpenRegion): { readonly number: number; readonly packed: Uint8Array } {
    const number = this.#freeRegions.pop() ?? this.#madeRegions++;
    if (number >= REGIONS) throw new WeftlineError('WL_CAPACITY', 'Too many registered regions: deregister some first');
    let packed: Uint8Array = new Uint8Array(0);
    try {
      for (const driver of this.#drivers) packed = driver.openRegion(number, region);
    } catch (error) {
      this.#free(number);
      throw error;
    }
    this.#regions.set(number, region);
    return { number, packed };
  }

  /**
   * Resolves when no worker reads or writes the region any more; `onLate` ends links that still do after a while. Fails with
   * WL_TIMEOUT, and may then be called again.
   */
  async release(number: number, onLate: (driver: UcxDriver) => void): Promise<void> {
    if (this.#regions.delete(number)) this.#releasing.add(number);
    const isUnusedBy = (driver: UcxDriver) => (): boolean => {
      driver.withdraw(number);
      return driver.tables.regionUses[number] === 0;
    };
    const ends = this.#drivers.map(async (driver) => {
      const isUnused = isUnusedBy(driver);
      if (await driver.until(isUnused, driver.patienceMs)) return;
      onLate(driver);
      if (await driver.until(isUnused, driver.patienceMs)) return;
      throw new WeftlineError('WL_TIMEOUT', `UCX did not give up region ${number} within ${2 * driver.patienceMs} ms`);
    });
    await Promise.all([...ends, ...this.#closing]);
    await Promise.all(this.#undestroyed.map((driver) => driver.until(isUnusedBy(driver), 0)));
  }

  /** After `release`, when this side does not use the region either. */
  forget(number: number): void {
    if (this.#releasing.delete(number)) this.#free(number);
  }

  #free(number: number): void {
    for (const driver of this.#drivers) driver.closeRegion(number);
    this.#freeRegions.push(number);
  }

  /** Hot path. True if there is something to look at. */
  look(): boolean {
    let hasNews = false;
    for (let at = this.#drivers.length - 1; at >= 0; at--) if ((this.#drivers[at] as UcxDriver).look()) hasNews = true;
    return hasNews;
  }

  get hasLinks(): boolean {
    for (const driver of this.#drivers) if (driver.hasLinks) return true;
    return false;
  }

  /** How long the agent's thread may sleep, in ms. */
  prepareSleep(): number {
    let pause = Number.POSITIVE_INFINITY;
    for (const driver of this.#drivers) pause = Math.min(pause, driver.prepareSleep());
    return pause;
  }

  /** After all links were closed. */
  async close(): Promise<void> {
    this.#spare = undefined;
    await Promise.all([...this.#drivers.splice(0).map((driver) => this.#close(driver)), ...this.#closing]);
    this.#regions.clear();
  }

  #open(): UcxDriver {
    const driver = this.#create();
    this.#drivers.push(driver);
    try {
      for (const [number, region] of this.#regions) driver.openRegion(number, region);
    } catch (error) {
      this.#drop(driver);
      throw error;
    }
    return driver;
  }
}
