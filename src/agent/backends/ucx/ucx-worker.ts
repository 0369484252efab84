// One UCX context and worker on one thread: active messages in and out, endpoints, progress. Nothing of weftline's protocol.
import { ucpErrorModes, ucpHandlerParam, ucpEndpointParams, ucpMasks, ucpParams } from '../../../abi/ucx-structs.ts';
import { ucpReceiveParam, ucpRequestParam, ucpWorkerParams, ucsStatus } from '../../../abi/ucx-structs.ts';
import { Block, type Layout } from '../../../abi/layout.ts';
import { copyMemory } from '../../../native/libc.ts';
import { type NativeCallback, nativeCallback, viewAt } from '../../../native/library.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import { openUcx, type Ucx } from '../../../native/ucx.ts';
import { isErrorPointer, ucxError } from '../../../native/ucx-status.ts';

/** A message as it arrives; valid during the callback. */
export interface ArrivingMessage {
  readonly header: number;
  readonly headerBytes: number;
  /** Where the bytes are, or, of a rendezvous, what `receive` takes to fetch them. */
  readonly data: number;
  readonly bytes: number;
  readonly isRendezvous: boolean;
}

export interface UcxWorkerOptions {
  /** True if the thread is to sleep on `fd`. */
  readonly canSleep: boolean;
  /** True: the bytes of a rendezvous are fetched by `receive`. False: they are not wanted. Must not throw. */
  readonly onMessage: (message: ArrivingMessage) => boolean;
  /** Must not throw. */
  readonly onEndpointError: (endpoint: number, status: number) => void;
}

type Writable<T> = { -readonly [Key in keyof T]: T[Key] };

const MESSAGE_ID = 1;
const RENDEZVOUS = ucpMasks.receiveAttributes.rendezvous;

export class UcxWorker implements Disposable {
  /** What peers connect to. */
  readonly address: Uint8Array;
  /** Readable when there is something to progress and `arm` was true; -1 if the worker cannot sleep. */
  readonly fd: number;
  readonly #ucx: Ucx;
  readonly #out = new NativeBlock(16);
  readonly #plain: StructBlock = struct(ucpRequestParam);
  readonly #eager: StructBlock = struct(ucpRequestParam);
  readonly #force: StructBlock = struct(ucpRequestParam);
  readonly #receiveParam: StructBlock = struct(ucpReceiveParam);
  readonly #message: Writable<ArrivingMessage> = { header: 0, headerBytes: 0, data: 0, bytes: 0, isRendezvous: false };
  readonly #callbacks: NativeCallback[] = [];
  readonly #errorCallback: number;
  readonly #context: number;
  readonly #worker: number;
  /** UCX copies what it needs of them during the call, but an address may be read until the endpoint is connected. */
  readonly #addresses: NativeBlock[] = [];
  #isAbandoned = false;
  #isDisposed = false;

  /** Fails with WL_UNSUPPORTED without libucp, with WL_NATIVE if UCX refuses. */
  constructor({ canSleep, onMessage, onEndpointError }: UcxWorkerOptions) {
    this.#ucx = openUcx();
    this.#eager.block.set('attributes', ucpMasks.request.flags);
    this.#eager.block.set('flags', ucpMasks.sendFlags.eager);
    this.#force.block.set('attributes', ucpMasks.request.flags);
    this.#force.block.set('flags', ucpMasks.closeFlags.force);
    this.#context = this.#createContext(canSleep);
    this.#worker = this.#createWorker();
    this.#errorCallback = this.#callback('void', ['intptr_t', 'intptr_t', 'int8_t'], (_argument, endpoint, status) =>
      onEndpointError(endpoint, status),
    );
    this.#setHandler(onMessage);
    this.address = this.#ownAddress();
    this.fd = canSleep ? this.#descriptor() : -1;
  }

  /** Hot path. Lets UCX work; how much happened. */
  progress(): number {
    return this.#ucx.calls.ucp_worker_progress(this.#worker);
  }

  /** To be called before sleeping on `fd`; false if there is something to progress now. */
  arm(): boolean {
    return this.#ucx.calls.ucp_worker_arm(this.#worker) === ucsStatus.ok;
  }

  /** The endpoint to the worker with this address. `peer` for errors. Fails with WL_NATIVE. */
  connect(address: Uint8Array, mode: keyof typeof ucpErrorModes, peer: string): number {
    const own = new NativeBlock(address.length);
    own.bytes.set(address);
    this.#addresses.push(own);
    const { block, address: params } = struct(ucpEndpointParams);
    const { endpoint } = ucpMasks;
    block.set('fieldMask', endpoint.address + (mode === 'peer' ? endpoint.errorMode + endpoint.errorHandler : 0));
    block.set('address', own.address);
    block.set('errorMode', ucpErrorModes[mode]);
    block.set('errorCallback', this.#errorCallback);
    this.#check('ucp_ep_create', this.#ucx.calls.ucp_ep_create(this.#worker, params, this.#out.address), peer);
    return this.#outNumber(0);
  }

  /** Ends an endpoint at once; what is under way on it fails. Returns a request or 0. Only for mode `peer`. */
  disconnect(endpoint: number): number {
    const request = this.#ucx.calls.ucp_ep_close_nbx(endpoint, this.#force.address);
    return isErrorPointer(request) ? 0 : request;
  }

  /** The same in good order: what is under way ends first. */
  finish(endpoint: number): number {
    const request = this.#ucx.calls.ucp_ep_close_nbx(endpoint, this.#plain.address);
    return isErrorPointer(request) ? 0 : request;
  }

  /** Hot path. Returns 0 if it is sent, a request, or a negative status. Header and data stay until then. */
  send(endpoint: number, header: NativeSpan, data: NativeSpan, isEager: boolean): number {
    const { calls } = this.#ucx;
    const params = isEager ? this.#eager.address : this.#plain.address;
    return calls.ucp_am_send_nbx(
      endpoint,
      MESSAGE_ID,
      header.address,
      header.length,
      data.address,
      data.length,
      params,
    );
  }

  /** Hot path. Fetches the bytes of a rendezvous. Returns 0, a request, or a negative status. */
  receive(descriptor: number, address: number, bytes: number): number {
    return this.#ucx.calls.ucp_am_recv_data_nbx(this.#worker, descriptor, address, bytes, this.#plain.address);
  }

  /** Hot path. The status of a request: `ucsStatus.inProgress` or its end, with which it is freed. */
  check(request: number): number {
    const status = this.#ucx.calls.ucp_request_check_status(request);
    if (status !== ucsStatus.inProgress) this.#ucx.calls.ucp_request_free(request);
    return status;
  }

  /** Something is under way that never ends. UCX aborts the process when such a worker is destroyed, so it will stay. */
  abandon(): void {
    this.#isAbandoned = true;
  }

  [Symbol.dispose](): void {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    if (this.#isAbandoned) return;
    this.#ucx.calls.ucp_worker_destroy(this.#worker);
    this.#ucx.calls.ucp_cleanup(this.#context);
    for (const callback of this.#callbacks) callback[Symbol.dispose]();
  }

  #createContext(canSleep: boolean): number {
    const { block, address } = struct(ucpParams);
    const { features } = ucpMasks;
    block.set('fieldMask', ucpMasks.params.features);
    block.set('features', features.activeMessages + (canSleep ? features.wakeup : 0));
    this.#check('ucp_init', this.#ucx.init(address, this.#out.address), 'starting UCX');
    return this.#outNumber(0);
  }

  #createWorker(): number {
    const { block, address } = struct(ucpWorkerParams);
    const { calls } = this.#ucx;
    block.set('fieldMask', ucpMasks.worker.threadMode + ucpMasks.worker.flags);
    block.set('flags', ucpMasks.workerFlags.ignoreRequestLeak);
    const status = calls.ucp_worker_create(this.#context, address, this.#out.address);
    if (status !== ucsStatus.ok) calls.ucp_cleanup(this.#context);
    this.#check('ucp_worker_create', status, 'making a worker: UCX_TLS and UCX_NET_DEVICES may leave no transport');
    return this.#outNumber(0);
  }

  #setHandler(onMessage: UcxWorkerOptions['onMessage']): void {
    const types = ['intptr_t', 'intptr_t', 'size_t', 'intptr_t', 'size_t', 'intptr_t'];
    const message = this.#message;
    const param = this.#receiveParam;
    const callback = this.#callback('int8_t', types, (...values) => {
      copyMemory(param.address, values[5] as number, ucpReceiveParam.size);
      message.header = values[1] as number;
      message.headerBytes = values[2] as number;
      message.data = values[3] as number;
      message.bytes = values[4] as number;
      message.isRendezvous = (param.block.get('attributes') & RENDEZVOUS) !== 0;
      return onMessage(message) ? ucsStatus.inProgress : ucsStatus.ok;
    });
    const { block, address } = struct(ucpHandlerParam);
    block.set('fieldMask', ucpMasks.handler.id + ucpMasks.handler.flags + ucpMasks.handler.callback);
    block.set('id', MESSAGE_ID);
    block.set('flags', ucpMasks.handlerFlags.wholeMessage);
    block.set('callback', callback);
    const status = this.#ucx.calls.ucp_worker_set_am_recv_handler(this.#worker, address);
    this.#check('ucp_worker_set_am_recv_handler', status, 'receiving active messages');
  }

  #callback(result: string, types: readonly string[], handler: (...values: number[]) => number | void): number {
    const callback = nativeCallback(result, types, handler);
    this.#callbacks.push(callback);
    return callback.address;
  }

  #ownAddress(): Uint8Array {
    const { calls } = this.#ucx;
    const status = calls.ucp_worker_get_address(this.#worker, this.#out.address, this.#out.address + 8);
    this.#check('ucp_worker_get_address', status, 'asking for the address of this worker');
    const at = this.#outNumber(0);
    const address = new Uint8Array(viewAt(at, this.#outNumber(1))).slice();
    calls.ucp_worker_release_address(this.#worker, at);
    return address;
  }

  #descriptor(): number {
    const fd: [number] = [-1];
    const status = this.#ucx.calls.ucp_worker_get_efd(this.#worker, fd);
    this.#check('ucp_worker_get_efd', status, 'asking for what to sleep on');
    return fd[0];
  }

  #outNumber(index: number): number {
    const { words } = this.#out;
    return (words[index * 2] as number) + (words[index * 2 + 1] as number) * 2 ** 32;
  }

  #check(call: string, status: number, what: string): void {
    if (status !== ucsStatus.ok) throw ucxError(call, status, what);
  }
}

/** Native memory that a call takes. */
export interface NativeSpan {
  readonly address: number;
  readonly length: number;
}

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
