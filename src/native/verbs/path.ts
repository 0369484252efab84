// The way from a port of this host to one of a peer, as queue pairs and address handles are told it.
import { Block } from '../../abi/layout.ts';
import { ibvAhAttributes } from './c-structs.ts';
import { localFiles } from '../file-probe.ts';
import { NativeBlock } from '../native-block.ts';
import { nativeError } from '../native-error.ts';
import { refusalOf } from './limits.ts';
import type { ProtectionDomain } from './protection-domain.ts';

/** Over Ethernet, and between InfiniBand subnets, a peer is named by its GID; within a subnet its LID is enough. */
export interface VerbsPath {
  /** Of this host, from 1. */
  readonly port: number;
  readonly gidIndex: number;
  /** 16 bytes; missing for a peer that its LID names. */
  readonly remoteGid?: Uint8Array;
  readonly remoteLid?: number;
  /** 0 to 255: with Ethernet, the byte of IP headers by which switches tell classes (DSCP and ECN). */
  readonly trafficClass?: number;
  readonly serviceLevel?: number;
  /** 20 bits; devices derive the UDP source port from it, by which switches choose among paths. */
  readonly flowLabel?: number;
  readonly hopLimit?: number;
}

const DEFAULT_HOP_LIMIT = 64;

type PathFields = Extract<keyof typeof ibvAhAttributes.offset, string>;

export function writePath(block: Pick<Block<PathFields>, 'set'>, path: VerbsPath): void {
  const { remoteGid } = path;
  if (remoteGid !== undefined) for (const [index, byte] of remoteGid.entries()) block.set('remoteGid', byte, index);
  block.set('isGlobal', remoteGid === undefined ? 0 : 1);
  block.set('gidIndex', path.gidIndex);
  block.set('flowLabel', path.flowLabel ?? 0);
  block.set('hopLimit', path.hopLimit ?? DEFAULT_HOP_LIMIT);
  block.set('trafficClass', path.trafficClass ?? 0);
  block.set('remoteLid', path.remoteLid ?? 0);
  block.set('serviceLevel', path.serviceLevel ?? 0);
  block.set('pathPort', path.port);
}

/** Where datagrams go. */
export class AddressHandle implements Disposable {
  readonly address: number;
  readonly #domain: ProtectionDomain;
  #isClosed = false;

  constructor(domain: ProtectionDomain, path: VerbsPath) {
    const { context } = domain;
    context.requireOpen();
    const memory = new NativeBlock(ibvAhAttributes.size);
    writePath(Block.over(ibvAhAttributes, memory.bytes), path);
    this.#domain = domain;
    this.address = context.calls.ibv_create_ah(domain.address, memory.address);
    if (this.address < 0) {
      const { device, attributes } = context;
      const request = { device, attributes, limit: 'maxAh', held: 0, bytes: 0 } as const;
      throw refusalOf(
        { call: 'ibv_create_ah', what: 'making an address handle', ...request },
        this.address,
        localFiles(),
      );
    }
    context.adopt(this);
  }

  /** Requests that use it must be done. */
  close(): void {
    if (this.#isClosed) return;
    const { context } = this.#domain;
    const status = context.calls.ibv_destroy_ah(this.address);
    if (status !== 0) throw nativeError('ibv_destroy_ah', 'closing an address handle', -status);
    this.#isClosed = true;
    context.release(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
