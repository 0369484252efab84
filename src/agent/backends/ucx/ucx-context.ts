// The UCX context and worker of one backend: made, connected and destroyed by the agent's thread.
import {
  UCP_ERR_HANDLING_MODE_PEER,
  ucpEndpointParams,
  ucpMasks,
  ucpMemoryParams,
  ucpParams,
} from '../../../abi/ucx-structs.ts';
import { ucpRequestParam, ucpWorkerParams, UCS_THREAD_MODE_SERIALIZED, ucsStatus } from '../../../abi/ucx-structs.ts';
import { Block, type Layout } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { withoutInheritance } from '../../../native/descriptor-inheritance.ts';
import { symbolAddress, viewAt } from '../../../native/library.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import { openUcx, type Ucx } from '../../../native/ucx.ts';
import { isErrorPointer, ucxError, ucxStatusName } from '../../../native/ucx-status.ts';
import type { UcxTransports } from './ucx-transports.ts';

export interface UcxEndpointOptions {
  /** Of the peer's worker. */
  readonly address: Uint8Array;
  /** For errors. */
  readonly peer: string;
  /** Of a word of 64 bits that is not 0 any more once the peer is lost. */
  readonly lostWord: number;
}

export interface UcxContextOptions {
  readonly canSleep: boolean;
  readonly transports: UcxTransports;
}

export class UcxContext implements Disposable {
  /** Of the worker, for UcxWorker. */
  readonly handle: number;
  /** What peers connect to. */
  readonly address: Uint8Array;
  /** Readable when there is something to progress and the worker was armed; -1 if nobody is to sleep. */
  readonly fd: number;
  readonly #ucx: Ucx;
  readonly #out = new NativeBlock(16);
  readonly #force: StructBlock = struct(ucpRequestParam);
  readonly #context: number;
  readonly #transports: UcxTransports;
  /** UCX copies what it needs of them during the call, but an address may be read until the endpoint is connected. */
  readonly #addresses = new Map<number, NativeBlock>();
  /** What `map` has returned. */
  readonly #mapped = new Set<number>();
  #isAbandoned = false;
  #isDisposed = false;

  /** Fails with WL_UNSUPPORTED without libucp, with WL_NATIVE if UCX refuses. */
  constructor({ canSleep, transports }: UcxContextOptions) {
    this.#ucx = openUcx();
    this.#transports = transports;
    this.#force.block.set('attributes', ucpMasks.request.flags);
    this.#force.block.set('flags', ucpMasks.closeFlags.force);
    const [context, handle] = withoutInheritance(() =>
      this.#create(canSleep, { ...transports.config, ...transports.tuning }),
    );
    this.#context = context;
    this.handle = handle;
    this.address = this.#ownAddress();
    this.fd = canSleep ? withoutInheritance(() => this.#descriptor()) : -1;
  }

  /** The endpoint to a peer's worker. Fails with WL_UNSUPPORTED if both have no transport in common, with WL_NATIVE. */
  connect({ address, peer, lostWord }: UcxEndpointOptions): number {
    const own = new NativeBlock(address.length);
    own.bytes.set(address);
    const { block, address: params } = struct(ucpEndpointParams);
    const { endpoint } = ucpMasks;
    block.set('fieldMask', endpoint.address + endpoint.errorMode + endpoint.errorHandler);
    block.set('address', own.address);
    block.set('errorMode', UCP_ERR_HANDLING_MODE_PEER);
    // UCX calls it as handler(argument, endpoint, status) on whichever thread makes progress, where no function of
    // TypeScript may run. time(2) fits: it writes where its first argument points, and ignores the others.
    block.set('errorCallback', symbolAddress('time'));
    block.set('errorArgument', lostWord);
    const status = this.#ucx.calls.ucp_ep_create(this.handle, params, this.#out.address);
    if (status === ucsStatus.unreachable || status === ucsStatus.noSegment) throw this.#noWay(peer, status);
    this.#check('ucp_ep_create', status, `connecting to ${peer}`);
    const created = this.#outNumber(0);
    this.#addresses.set(created, own);
    return created;
  }

  /** Ends an endpoint at once; what is under way fails. Returns a request or 0. */
  disconnect(endpoint: number): number {
    this.#addresses.delete(endpoint);
    const request = this.#ucx.calls.ucp_ep_close_nbx(endpoint, this.#force.address);
    return isErrorPointer(request) ? 0 : request;
  }

  /**
   * UCX's handle of memory, for sends and receives; 0 of no memory. Without one, UCX registers the memory of each large
   * message anew (there is no cache, see native/ucx.ts), and versions 1.14 to 1.20 crash when such a message is broken off
   * (openucx/ucx issue 11467). Fails with WL_NATIVE.
   */
  map(address: number, bytes: number): number {
    if (bytes === 0) return 0;
    const { block, address: params } = struct(ucpMemoryParams);
    block.set('fieldMask', ucpMasks.memory.address + ucpMasks.memory.bytes);
    block.set('address', address);
    block.set('bytes', bytes);
    const status = this.#ucx.calls.ucp_mem_map(this.#context, params, this.#out.address);
    this.#check(
      'ucp_mem_map',
      status,
      `registering ${bytes} bytes: over RDMA, the limit of locked memory (ulimit -l) must admit them`,
    );
    const memory = this.#outNumber(0);
    this.#mapped.add(memory);
    return memory;
  }

  /**
   * What peers need to put into mapped memory and to get from it; empty where no device checks what they do, see
   * UcxTransports.
   */
  pack(memory: number): Uint8Array {
    if (memory === 0 || !this.#transports.putsAreNative) return new Uint8Array(0);
    const { calls } = this.#ucx;
    const status = calls.ucp_rkey_pack(this.#context, memory, this.#out.address, this.#out.address + 8);
    this.#check('ucp_rkey_pack', status, 'asking for the key of memory');
    const buffer = this.#outNumber(0);
    const key = new Uint8Array(viewAt(buffer, this.#outNumber(1))).slice();
    calls.ucp_rkey_buffer_release(buffer);
    return key;
  }

  /** UCX's handle of what the peer has packed, for one endpoint; 0 if it cannot use that. To be given to `forgetKey`. */
  unpack(endpoint: number, packed: Uint8Array): number {
    // UCX is not told how long it is.
    const own = new NativeBlock(packed.length + KEY_MARGIN);
    own.bytes.set(packed);
    const status = this.#ucx.calls.ucp_ep_rkey_unpack(endpoint, own.address, this.#out.address);
    return status === ucsStatus.ok ? this.#outNumber(0) : 0;
  }

  forgetKey(key: number): void {
    if (!this.#isDisposed) this.#ucx.calls.ucp_rkey_destroy(key);
  }

  /** When no request names it any more. */
  unmap(memory: number): void {
    if (!this.#isDisposed && this.#mapped.delete(memory)) this.#ucx.calls.ucp_mem_unmap(this.#context, memory);
  }

  /** Something is under way that never ends. UCX aborts the process when such a worker is destroyed, so it will stay. */
  abandon(): void {
    this.#isAbandoned = true;
  }

  [Symbol.dispose](): void {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    if (this.#isAbandoned) return;
    this.#ucx.calls.ucp_worker_destroy(this.handle);
    for (const memory of this.#mapped) this.#ucx.calls.ucp_mem_unmap(this.#context, memory);
    this.#ucx.calls.ucp_cleanup(this.#context);
  }

  #noWay(peer: string, status: number): WeftlineError {
    const transports = this.#transports.config['TLS'];
    return new WeftlineError(
      'WL_UNSUPPORTED',
      `UCX cannot reach ${peer} by the transports ${transports}: shared memory needs the same user, host and process numbers, and both sides must use the same kind of transport; give both agents a host that is not loopback, or set UCX_TLS alike`,
      { details: { peer, transports, status: ucxStatusName(status) } },
    );
  }

  #create(canSleep: boolean, settings: UcxTransports['config']): [context: number, worker: number] {
    const { calls } = this.#ucx;
    this.#check('ucp_config_read', calls.ucp_config_read(0, 0, this.#out.address), 'reading its variables UCX_*');
    const config = this.#outNumber(0);
    try {
      for (const [name, value] of Object.entries(settings)) {
        this.#check('ucp_config_modify', calls.ucp_config_modify(config, name, value), `setting ${name} to ${value}`);
      }
      const context = this.#createContext(canSleep, config);
      return [context, this.#createWorker(context)];
    } finally {
      calls.ucp_config_release(config);
    }
  }

  #createContext(canSleep: boolean, config: number): number {
    const { block, address } = struct(ucpParams);
    const { features } = ucpMasks;
    block.set('fieldMask', ucpMasks.params.features);
    const { putsAreNative } = this.#transports;
    const remoteMemory = putsAreNative ? features.remoteMemory : 0;
    block.set('features', features.tags + remoteMemory + (canSleep ? features.wakeup : 0));
    this.#check('ucp_init', this.#ucx.init(address, config, this.#out.address), 'starting UCX');
    return this.#outNumber(0);
  }

  #createWorker(context: number): number {
    const { block, address } = struct(ucpWorkerParams);
    const { calls } = this.#ucx;
    block.set('fieldMask', ucpMasks.worker.threadMode + ucpMasks.worker.flags);
    block.set('threadMode', UCS_THREAD_MODE_SERIALIZED);
    block.set('flags', ucpMasks.workerFlags.ignoreRequestLeak);
    const status = calls.ucp_worker_create(context, address, this.#out.address);
    if (status !== ucsStatus.ok) calls.ucp_cleanup(context);
    this.#check('ucp_worker_create', status, 'making a worker: UCX_TLS and UCX_NET_DEVICES may leave no transport');
    return this.#outNumber(0);
  }

  #ownAddress(): Uint8Array {
    const { calls } = this.#ucx;
    const status = calls.ucp_worker_get_address(this.handle, this.#out.address, this.#out.address + 8);
    this.#check('ucp_worker_get_address', status, 'asking for the address of this worker');
    const at = this.#outNumber(0);
    const address = new Uint8Array(viewAt(at, this.#outNumber(1))).slice();
    calls.ucp_worker_release_address(this.handle, at);
    return address;
  }

  #descriptor(): number {
    const fd: [number] = [-1];
    const status = this.#ucx.calls.ucp_worker_get_efd(this.handle, fd);
    this.#check('ucp_worker_get_efd', status, 'asking for what to sleep on');
    return fd[0];
  }

  #outNumber(index: number): number {
    const { words } = this.#out;
    return words[index * 2]! + words[index * 2 + 1]! * 2 ** 32;
  }

  #check(call: string, status: number, what: string): void {
    if (status !== ucsStatus.ok) throw ucxError(call, status, what);
  }
}

/** UCX reads keys of a length that their first bytes tell: behind one that lies, it finds zeros. */
const KEY_MARGIN = 64 * 1024;

interface StructBlock<Name extends string = string> {
  readonly block: Block<Name>;
  readonly address: number;
  /** So that the memory lives as long. */
  readonly memory: NativeBlock;
}

function struct<Name extends string>(layout: Layout<Name>): StructBlock<Name> {
  const memory = new NativeBlock(layout.size);
  const { buffer, byteOffset } = memory.bytes;
  return { block: new Block(layout, buffer, byteOffset), address: memory.address, memory };
}
