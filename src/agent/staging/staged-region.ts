// Registered memory of this side and of a peer as a backend with staging has it.
import { Block, defineLayout } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { AgentMemory, BackendRegion, BackendRemoteRegion, MemoryKind } from '../backend.ts';
import { giveUp, type StagedName, type StagingThread } from './staging-thread.ts';

/** Begins the description of a staged region, which no description of host memory does with this length. */
const STAGED_REGION_MAGIC = 0x5354_4731;
/** Goes up with every change of what staging threads tell each other, pieces and their rings among it; a reader refuses other versions. */
export const STAGING_VERSION = 2;

/** The description of a region in metadata; behind it stands how the owner's staging thread is reached. */
export const stagedRegionInfo = defineLayout('StagedRegionInfo', {
  magic: 'u32',
  number: 'u32',
  key: 'u64',
  connectionBytes: 'u32',
  version: 'u32',
});

interface StagedRegionName extends StagedName {
  readonly connectionInfo: Uint8Array;
}

export function encodeStagedRegion({ number, key, connectionInfo }: StagedRegionName): Uint8Array {
  const bytes = new Uint8Array(stagedRegionInfo.size + connectionInfo.length);
  const block = Block.over(stagedRegionInfo, bytes);
  block.set('magic', STAGED_REGION_MAGIC);
  block.set('version', STAGING_VERSION);
  block.set('number', number);
  block.set('key', key);
  block.set('connectionBytes', connectionInfo.length);
  bytes.set(connectionInfo, stagedRegionInfo.size);
  return bytes;
}

/** True if the bytes name memory that its owner stages, by whatever version. */
export function namesStagedMemory(info: Uint8Array): boolean {
  if (info.length <= stagedRegionInfo.size) return false;
  const block = Block.over(stagedRegionInfo, info);
  return (
    block.get('magic') === STAGED_REGION_MAGIC && block.get('connectionBytes') === info.length - stagedRegionInfo.size
  );
}

/** undefined if the bytes name memory that is not staged. Fails with WL_PROTOCOL for memory that another version stages. */
export function decodeStagedRegion(info: Uint8Array): StagedRegionName | undefined {
  if (!namesStagedMemory(info)) return undefined;
  const block = Block.over(stagedRegionInfo, info);
  const version = block.get('version');
  if (version !== STAGING_VERSION) {
    throw new WeftlineError(
      'WL_PROTOCOL',
      `The peer stages this memory by version ${version}, this side by ${STAGING_VERSION}: use the same weftline on both sides`,
      { details: { version, expected: STAGING_VERSION } },
    );
  }
  return {
    number: block.get('number'),
    key: block.get('key'),
    connectionInfo: info.slice(stagedRegionInfo.size),
  };
}

export interface StagedRegionParts {
  readonly memory: AgentMemory;
  /** What the backend itself made of the memory; undefined if it is staged. */
  readonly host: BackendRegion | undefined;
  /** Why it is staged, if a backend says so. */
  readonly why?: string | undefined;
  readonly info: Uint8Array;
  readonly thread: () => Promise<StagingThread>;
  /** The staging thread's number of the memory, if it is staged. */
  readonly number: number | undefined;
  /** The GPU that owns it. */
  readonly ordinal: number | undefined;
}

export class StagedRegion implements BackendRegion {
  readonly info: Uint8Array;
  readonly host: BackendRegion | undefined;
  /** The number by which the staging thread knows the memory; -1 if it does not. */
  #known: number;
  readonly #parts: StagedRegionParts;
  #knowing: Promise<number> | undefined;
  #releasing: Promise<void> | undefined;
  #isReleased = false;

  constructor(parts: StagedRegionParts) {
    this.info = parts.info;
    this.host = parts.host;
    this.#known = parts.number ?? -1;
    this.#parts = parts;
  }

  /** The staging thread's number; -1 until it knows the memory, and from its release on: the thread uses numbers again. */
  get number(): number {
    return this.#isReleased ? -1 : this.#known;
  }

  get kind(): MemoryKind {
    return this.#parts.memory.kind;
  }

  /** Why it is staged, if a backend says so. */
  get why(): string | undefined {
    return this.#parts.why;
  }

  /** Memory of a GPU goes through it. */
  get isPinned(): boolean {
    return this.#parts.ordinal !== undefined;
  }

  /** The number of the memory; what is not staged here is told to the staging thread when it is first moved by it. Fails with WL_CLOSED. */
  async staged(): Promise<number> {
    if (this.#isReleased) throw new WeftlineError('WL_CLOSED', 'The registration of the memory was closed');
    if (this.number >= 0) return this.number;
    this.#knowing ??= this.#tell().catch((error: unknown) => {
      this.#knowing = undefined;
      throw error;
    });
    return this.#knowing;
  }

  release(): Promise<void> {
    this.#isReleased = true;
    this.#releasing ??= this.#release().catch((error: unknown) => {
      this.#releasing = undefined;
      throw error;
    });
    return this.#releasing;
  }

  async #tell(): Promise<number> {
    const { memory, ordinal } = this.#parts;
    const { address, bytes } = memory;
    const thread = await this.#parts.thread();
    const options = { address, bytes, ordinal, isOffered: false };
    this.#known = (await thread.call('register', options)).number;
    return this.#known;
  }

  async #release(): Promise<void> {
    await this.host?.release();
    if (this.#knowing !== undefined) await this.#knowing.catch(() => {});
    if (this.#known < 0) return;
    await giveUp(await this.#parts.thread(), 'release', this.#known);
  }
}

/** Memory that the peer stages. Other memory of it is what the backend itself imported. */
export class StagedRemoteRegion implements BackendRemoteRegion {
  readonly bytes: number;
  readonly name: StagedRegionName;

  constructor(bytes: number, name: StagedRegionName) {
    this.bytes = bytes;
    this.name = name;
  }
}
