// Queue pairs: reliable and unreliable connections (RC, UC) and datagrams (UD), with their requests.
import { Block } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import { localFiles } from '../file-probe.ts';
import { NativeBlock, nativeError, viewAt } from '../library.ts';
import {
  accessFlag,
  ibvAhAttributes,
  ibvQp,
  ibvQpAttributes,
  ibvQpInitAttributes,
  ibvSrqInitAttributes,
  mtuBytes,
  qpMask,
  qpState,
  qpType,
} from './c-structs.ts';
import type { CompletionQueue } from './completion-queue.ts';
import type { ProtectionDomain } from './context.ts';
import { refusalOf, requireWithin } from './facts.ts';
import type { RegionAccess } from './memory-region.ts';
import { ReceiveRing, type RingSize, SendRing } from './request-ring.ts';

// Shared receive queues: receives for the messages of any of several queue pairs.

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
    requireWithin(device, 'elements in a receive of a shared queue', size.elements, [
      'max_srq_sge',
      attributes.maxSrqSge,
    ]);
    const memory = new NativeBlock(ibvSrqInitAttributes.size);
    const block = Block.over(ibvSrqInitAttributes, memory.bytes);
    block.set('maxReceives', size.depth);
    block.set('maxSges', size.elements);
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

  /** Must be closed after its queue pairs. */
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

// The way from a port of this host to one of a peer, as queue pairs and address handles are told it.

/** Present over Ethernet, and between InfiniBand subnets, where a peer is named by its GID; within a subnet its LID is enough. */
export interface VerbsPath {
  /** Port of this host, from 1. */
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

function writePath(block: Pick<Block<PathFields>, 'set'>, path: VerbsPath): void {
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

/** Destination of datagrams. */
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

/** rc: acknowledged and repeated by the device; uc: neither, messages may be lost; ud: single packets to any peer. */
export type QueuePairService = keyof typeof qpType;

export interface QueuePairOptions {
  readonly service: QueuePairService;
  readonly sendCompletions: CompletionQueue;
  readonly receiveCompletions: CompletionQueue;
  /** Requests under way; powers of two. */
  readonly maxSends: number;
  /** Absent with sharedReceives; 1 by default. */
  readonly maxReceives?: number;
  /** Ranges of memory per request (scatter-gather elements); 1 by default. */
  readonly elements?: number;
  /** Bytes that a request may carry itself; 0 by default. Devices may offer more than was asked for. */
  readonly maxInlineBytes?: number;
  readonly sharedReceives?: SharedReceiveQueue;
}

/** The other end of a connection, as its owner tells it. */
interface RemoteQueuePair {
  readonly number: number;
  /** First packet sequence number that it sends: 24 bits. */
  readonly firstSequence: number;
  readonly path: VerbsPath;
}

export interface ConnectionOptions {
  /** First packet sequence number of this end; 0 by default. */
  readonly firstSequence?: number;
  /** Bytes of a packet: 256, 512, 1024, 2048 or 4096; at most the active MTU of both ports. */
  readonly mtu: number;
  /** Reads and atomics of each side that may be under way; 16 by default, at most what the device offers. */
  readonly maxReads?: number;
  /** A peer that does not acknowledge for 4.096 µs * 2^timeout is asked again, `retries` times: 6 at most, as rxe takes 7 for without end. */
  readonly timeout?: number;
  readonly retries?: number;
  /** How often a request is repeated that found no receive posted: 6 at most, as 7 is without end. */
  readonly receiverNotReadyRetries?: number;
  /** How long the peer then waits, as a code of the InfiniBand specification: 12, which is 0.64 ms, by default. */
  readonly receiverNotReadyTimer?: number;
}

/** 67 ms. */
const DEFAULT_TIMEOUT = 14;
const DEFAULT_READS = 16;
const MAX_RETRIES = 6;
/** The code of 0.64 ms. */
const RECEIVER_NOT_READY_TIMER = 12;
const EINVAL = 22;

export class QueuePair implements Disposable {
  readonly domain: ProtectionDomain;
  readonly service: QueuePairService;
  readonly address: number;
  /** Number by which its peer names it: 24 bits. */
  readonly number: number;
  readonly sends: SendRing;
  /** Unused with shared receives. */
  readonly receives: ReceiveRing;
  readonly maxInlineBytes: number;
  readonly #memory = new NativeBlock(ibvQpAttributes.size);
  readonly #attributes = Block.over(ibvQpAttributes, this.#memory.bytes);
  #isClosed = false;

  constructor(domain: ProtectionDomain, options: QueuePairOptions) {
    const { context } = domain;
    context.requireOpen();
    requireSizes(domain, options);
    const { service, sendCompletions, receiveCompletions, sharedReceives, maxReceives = 1, elements = 1 } = options;
    const memory = new NativeBlock(ibvQpInitAttributes.size);
    const block = Block.over(ibvQpInitAttributes, memory.bytes);
    block.set('sendCq', sendCompletions.address);
    block.set('receiveCq', receiveCompletions.address);
    block.set('srq', sharedReceives?.address ?? 0);
    block.set('maxSends', options.maxSends);
    block.set('maxReceives', sharedReceives === undefined ? maxReceives : 0);
    block.set('maxSendSges', elements);
    block.set('maxReceiveSges', elements);
    block.set('maxInlineBytes', options.maxInlineBytes ?? 0);
    block.set('type', qpType[service]);
    this.domain = domain;
    this.service = service;
    this.address = context.calls.ibv_create_qp(domain.address, memory.address);
    if (this.address < 0) throw refused(domain, options, this.address);
    this.maxInlineBytes = block.get('maxInlineBytes');
    this.number = new Block(ibvQp, viewAt(this.address, ibvQp.size), 0).get('number');
    const { postSend, postReceive } = context.operations;
    this.sends = new SendRing({ depth: options.maxSends, elements }, this.address, postSend);
    this.receives = new ReceiveRing({ depth: maxReceives, elements }, this.address, postReceive);
    context.counts.queuePairs += 1;
    context.adopt(this);
  }

  /** First step: receives may be posted. `queueKey` for ud: datagrams with another one are dropped. */
  initialize(port: number, access: RegionAccess = {}, queueKey = 0): void {
    const block = this.#fresh();
    const flags =
      (access.remoteWrite === true ? accessFlag.remoteWrite : 0) |
      (access.remoteRead === true ? accessFlag.remoteRead : 0) |
      (access.remoteAtomic === true ? accessFlag.remoteAtomic : 0);
    block.set('state', qpState.init);
    block.set('port', port);
    block.set('access', flags | accessFlag.localWrite);
    block.set('queueKey', queueKey);
    const own = this.service === 'ud' ? qpMask.queueKey : qpMask.access;
    this.#modify(qpMask.state | qpMask.pkeyIndex | qpMask.port | own, 'initializing');
  }

  /** Second and third step of rc and uc: messages come in, and requests may be posted. */
  connect(remote: RemoteQueuePair, options: ConnectionOptions): void {
    const { attributes } = this.domain.context;
    const mtu = mtuBytes.indexOf(options.mtu as (typeof mtuBytes)[number]);
    if (mtu < 1) throw wrongMtu(options.mtu);
    const reads = Math.min(options.maxReads ?? DEFAULT_READS, attributes.maxQpRdAtom, attributes.maxQpInitRdAtom);
    const isReliable = this.service === 'rc';
    const block = this.#fresh();
    block.set('state', qpState.readyToReceive);
    writePath(block, remote.path);
    block.set('pathMtu', mtu);
    block.set('remoteQueuePair', remote.number);
    block.set('receiveSequence', remote.firstSequence);
    block.set('maxRemoteReads', reads);
    block.set('minReceiverNotReadyTimer', options.receiverNotReadyTimer ?? RECEIVER_NOT_READY_TIMER);
    const connection = qpMask.path | qpMask.pathMtu | qpMask.remoteQueuePair | qpMask.receiveSequence;
    const reliable = qpMask.maxRemoteReads | qpMask.minReceiverNotReadyTimer;
    this.#modify(qpMask.state | connection | (isReliable ? reliable : 0), 'connecting');
    this.#send(options, reads);
  }

  /** Second and third step of ud. */
  open(firstSequence = 0): void {
    this.#fresh().set('state', qpState.readyToReceive);
    this.#modify(qpMask.state, 'opening');
    this.#send({ mtu: 0, firstSequence }, 0);
  }

  /** Ends the connection: requests under way, and all later ones, complete as flushed. */
  fail(): void {
    this.#fresh().set('state', qpState.error);
    this.#modify(qpMask.state, 'ending the connection of');
  }

  /** Back to the begin, before the first step: all completions must have been taken. */
  reset(): void {
    this.#fresh().set('state', qpState.reset);
    this.#modify(qpMask.state, 'resetting');
  }

  /** One of qpState, as the device has it now. */
  queryState(): number {
    this.#attributes.set('state', 0);
    const init = new NativeBlock(ibvQpInitAttributes.size);
    const { calls } = this.domain.context;
    const status = calls.ibv_query_qp(this.address, this.#memory.address, qpMask.state, init.address);
    if (status !== 0) throw nativeError('ibv_query_qp', 'reading the state of a queue pair', -Math.abs(status));
    return this.#attributes.get('state');
  }

  /** Requests under way end without a completion. */
  close(): void {
    if (this.#isClosed) return;
    const { context } = this.domain;
    const status = context.calls.ibv_destroy_qp(this.address);
    if (status !== 0) throw nativeError('ibv_destroy_qp', 'closing a queue pair', -status);
    this.#isClosed = true;
    context.counts.queuePairs -= 1;
    context.release(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #send({ firstSequence = 0, timeout, retries, receiverNotReadyRetries }: ConnectionOptions, reads: number): void {
    const block = this.#fresh();
    block.set('state', qpState.readyToSend);
    block.set('sendSequence', firstSequence);
    block.set('timeout', timeout ?? DEFAULT_TIMEOUT);
    block.set('retries', Math.min(retries ?? MAX_RETRIES, MAX_RETRIES));
    block.set('receiverNotReadyRetries', Math.min(receiverNotReadyRetries ?? MAX_RETRIES, MAX_RETRIES));
    block.set('maxReads', reads);
    const reliable = qpMask.timeout | qpMask.retries | qpMask.receiverNotReadyRetries | qpMask.maxReads;
    this.#modify(qpMask.state | qpMask.sendSequence | (this.service === 'rc' ? reliable : 0), 'opening the sends of');
  }

  #fresh(): Block<Extract<keyof typeof ibvQpAttributes.offset, string>> {
    if (this.#isClosed) throw new WeftlineError('WL_CLOSED', 'The queue pair was closed');
    this.#memory.bytes.fill(0);
    return this.#attributes;
  }

  #modify(mask: number, what: string): void {
    const status = this.domain.context.calls.ibv_modify_qp(this.address, this.#memory.address, mask);
    if (status === 0) return;
    const { device } = this.domain.context;
    throw nativeError('ibv_modify_qp', `${what} a queue pair (${this.service}) of ${device}`, -Math.abs(status));
  }
}

function requireSizes({ context }: ProtectionDomain, options: QueuePairOptions): void {
  const { device, attributes } = context;
  const { maxSends, maxReceives = 1, elements = 1 } = options;
  for (const [name, value] of [
    ['maxSends', maxSends],
    ['maxReceives', maxReceives],
  ] as const) {
    if (!(value >= 1 && Number.isInteger(Math.log2(value)))) {
      throw new WeftlineError('WL_INVALID_ARGUMENT', `Invalid ${name}: expected a power of two, got ${value}`);
    }
  }
  requireWithin(device, 'sends under way per queue pair', maxSends, ['max_qp_wr', attributes.maxQpWr]);
  requireWithin(device, 'receives under way per queue pair', maxReceives, ['max_qp_wr', attributes.maxQpWr]);
  requireWithin(device, 'scatter-gather elements per request', elements, ['max_sge', attributes.maxSge]);
}

function wrongMtu(mtu: number): WeftlineError {
  return new WeftlineError('WL_INVALID_ARGUMENT', `Invalid mtu: expected 256, 512, 1024, 2048 or 4096, got ${mtu}`);
}

function refused({ context }: ProtectionDomain, options: QueuePairOptions, result: number): WeftlineError {
  const { device, attributes, counts } = context;
  const { service, maxSends, maxReceives = 1, maxInlineBytes = 0 } = options;
  const isInvalid = result === -EINVAL;
  const hint =
    isInvalid && maxInlineBytes > 0 ? `; may it be that the device cannot inline ${maxInlineBytes} bytes?` : '';
  const what = `making a queue pair (${service}) of ${maxSends} sends and ${maxReceives} receives${hint}`;
  const request = { call: 'ibv_create_qp', what, device, attributes, limit: 'maxQp', held: counts.queuePairs } as const;
  return refusalOf({ ...request, bytes: (maxSends + maxReceives) * 128 }, result, localFiles());
}
