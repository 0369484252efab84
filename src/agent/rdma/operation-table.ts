// What is known of each operation of a link, by its number modulo OPERATIONS. Hot path: no allocation.
import type { OperationOwner, RequestParts } from './operation.ts';
import type { RdmaRemoteRegion } from './rdma-region.ts';

/** Operations of a link that are under way. A power of two. */
export const OPERATIONS = 1024;
export const NO_MESSAGE = -1;

export class OperationTable {
  /** One of operationKinds. */
  readonly kind = new Uint8Array(OPERATIONS);
  readonly owner: (OperationOwner | undefined)[] = Array.from({ length: OPERATIONS }, () => undefined);
  readonly post = new Float64Array(OPERATIONS);
  /** Parts of transfers. */
  readonly parts: (RequestParts | undefined)[] = Array.from({ length: OPERATIONS }, () => undefined);
  /** Regions of puts and signals. */
  readonly region: (RdmaRemoteRegion | undefined)[] = Array.from({ length: OPERATIONS }, () => undefined);
  readonly remoteAddress = new Float64Array(OPERATIONS);
  readonly localAddress = new Float64Array(OPERATIONS);
  readonly localKey = new Uint32Array(OPERATIONS);
  readonly bytes = new Float64Array(OPERATIONS);
  readonly low = new Uint32Array(OPERATIONS);
  readonly high = new Uint32Array(OPERATIONS);
  readonly message = new Float64Array(OPERATIONS);
  /** Sequence of its last request. */
  readonly last = new Uint32Array(OPERATIONS);
  /** 1: its owner has heard of its end. */
  readonly isOver = new Uint8Array(OPERATIONS);

  remotesOf(at: number): readonly RdmaRemoteRegion[] {
    const parts = this.parts[at];
    return parts === undefined ? [this.region[at]!] : parts.remotes;
  }
}
