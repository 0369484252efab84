// Registered memory of the transport, here and at the peer, and how it is named in metadata.
import { Block } from '../../../abi/layout.ts';
import { multipathRegionInfo } from '../../../abi/multipath-region.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { MemoryRegion, Transport } from '../../../transport/index.ts';
import type { BackendRegion, BackendRemoteRegion } from '../../backend.ts';

export class MultipathRegion implements BackendRegion {
  readonly info: Uint8Array;
  readonly region: MemoryRegion;
  readonly #transport: Transport;

  constructor(transport: Transport, region: MemoryRegion) {
    this.#transport = transport;
    this.region = region;
    this.info = new Uint8Array(multipathRegionInfo.size);
    const block = new Block(multipathRegionInfo, this.info.buffer, 0);
    block.set('region', region.remote.remoteRegion);
    block.set('key', region.remote.remoteKey);
  }

  release(): Promise<void> {
    return this.#transport.release(this.region);
  }
}

export class MultipathRemoteRegion implements BackendRemoteRegion {
  readonly bytes: number;
  readonly remoteRegion: number;
  readonly remoteKey: number;

  constructor(info: Uint8Array, bytes: number) {
    if (info.length !== multipathRegionInfo.size) {
      throw new WeftlineError(
        'WL_PROTOCOL',
        `A region of multipath is named by ${multipathRegionInfo.size} bytes, not ${info.length}`,
      );
    }
    const block = new Block(multipathRegionInfo, info.buffer, info.byteOffset);
    this.bytes = bytes;
    this.remoteRegion = block.get('region');
    this.remoteKey = block.get('key');
  }
}

/** What came back from the agent must be what this backend made. */
export function own<T>(kind: abstract new (...parameters: never[]) => T, value: unknown): T {
  if (value instanceof kind) return value;
  throw new WeftlineError('WL_INTERNAL', `A ${kind.name} was expected`);
}
