// The devices of a staging thread: host memory, and GPUs from their first memory on.
import { WeftlineError } from '../../core/errors.ts';
import type { Settings } from '../../settings/settings.ts';
import type { CopyWay, DeviceCopies } from './device-copies.ts';
import { PlainCopies } from './plain-copies.ts';
import { type MakeStorage, plainStorage, type RingShape } from './ring-memory.ts';

/** A GPU as this thread uses it. */
export interface StagingGpu {
  readonly copies: DeviceCopies;
  /** Host memory that it copies from and to at full speed. */
  readonly makeStorage: MakeStorage;
  close(): Promise<void>;
}

/** `shape`: of this side's own rings. */
export type OpenGpu = (ordinal: number, settings: Settings, shape: RingShape) => Promise<StagingGpu>;

/** What was under way on a device at some moment. */
interface Fence {
  readonly copies: DeviceCopies;
  readonly out: number;
  readonly in: number;
}

export class DeviceTable {
  readonly #openGpu: (ordinal: number) => Promise<StagingGpu>;
  readonly #plain = new PlainCopies();
  readonly #opening = new Map<number, Promise<StagingGpu>>();
  readonly #gpus: StagingGpu[] = [];

  constructor(openGpu: (ordinal: number) => Promise<StagingGpu>) {
    this.#openGpu = openGpu;
  }

  /** `ordinal`: of a GPU; undefined for the host. */
  async copiesOf(ordinal: number | undefined): Promise<DeviceCopies> {
    if (ordinal === undefined) return this.#plain;
    let opening = this.#opening.get(ordinal);
    if (opening === undefined) {
      opening = this.#openGpu(ordinal);
      this.#opening.set(ordinal, opening);
      opening.then(
        (gpu) => this.#gpus.push(gpu),
        () => this.#opening.delete(ordinal),
      );
    }
    return (await opening).copies;
  }

  /** For rings: memory that GPUs copy from and to, once there are some. */
  get makeStorage(): MakeStorage {
    return this.#gpus[0]?.makeStorage ?? plainStorage;
  }

  /** Nobody rings when its work ends. */
  get isBusy(): boolean {
    for (const { copies } of this.#gpus) if (copies.isBusy) return true;
    return false;
  }

  /** Tells whether everything is done that devices have under way now. A device that has failed does nothing more. */
  fence(): () => boolean {
    const fences: Fence[] = this.#gpus.map(({ copies }) => ({
      copies,
      out: copies.latest('out'),
      in: copies.latest('in'),
    }));
    return () => fences.every((fence) => isDone(fence, 'out') && isDone(fence, 'in'));
  }

  async close(): Promise<void> {
    // Nobody asks a GPU that is being closed whether it is busy.
    const gpus = this.#gpus.splice(0);
    for (const gpu of gpus) await gpu.close();
  }
}

function isDone(fence: Fence, way: CopyWay): boolean {
  try {
    return fence.copies.isDone(way, fence[way]);
  } catch (error) {
    if (error instanceof WeftlineError) return true;
    throw error;
  }
}
