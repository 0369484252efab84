// Shared receive queues: receives for the messages of any of several queue pairs.
import { Block } from '../../abi/layout.ts';
import { ibvSrqInitAttributes } from './c-structs.ts';
import { localFiles } from '../file-probe.ts';
import { NativeBlock } from '../native-block.ts';
import { nativeError } from '../native-error.ts';
import { refusalOf, requireWithin } from './limits.ts';
import type { ProtectionDomain } from './protection-domain.ts';
import { ReceiveRing, type RingSize } from './request-ring.ts';

export class SharedReceiveQueue implements Disposable {
  readonly domain: ProtectionDomain;
  readonly address: number;
  readonly receives: ReceiveRing;
  #isClosed = false;

  constructor(domain: ProtectionDomain, size: RingSize) {
    const { context } = domain;
    const { attributes, counts, device } = context;
    context.requireOpen();
    requireWithin(device, 'receives in a shared queue', size.depth, ['max_srq_wr', attributes.maxSrqWr]);
    requireWithin(device, 'pieces in a receive of a shared queue', size.pieces, ['max_srq_sge', attributes.maxSrqSge]);
    const memory = new NativeBlock(ibvSrqInitAttributes.size);
    const block = Block.over(ibvSrqInitAttributes, memory.bytes);
    block.set('maxReceives', size.depth);
    block.set('maxSges', size.pieces);
    this.domain = domain;
    this.address = context.calls.ibv_create_srq(domain.address, memory.address);
    if (this.address < 0) {
      const request = { device, attributes, limit: 'maxSrq', held: counts.sharedQueues, bytes: 0 } as const;
      const what = `making a shared receive queue of ${size.depth} receives`;
      throw refusalOf({ call: 'ibv_create_srq', what, ...request }, this.address, localFiles());
    }
    this.receives = new ReceiveRing(size, this.address, context.operations.postSharedReceive);
    counts.sharedQueues += 1;
    context.adopt(this);
  }

  /** After its queue pairs. */
  close(): void {
    if (this.#isClosed) return;
    const { context } = this.domain;
    const status = context.calls.ibv_destroy_srq(this.address);
    if (status !== 0) throw nativeError('ibv_destroy_srq', 'closing a shared receive queue', -status);
    this.#isClosed = true;
    context.counts.sharedQueues -= 1;
    context.release(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
