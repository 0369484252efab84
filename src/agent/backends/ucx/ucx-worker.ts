// A UCX worker: its endpoints, what they post, and words that arrive by tag. The agent's thread only.
import {
  isErrorPointer,
  openUcx,
  UCP_ATOMIC_OP_ADD,
  UCP_ERR_HANDLING_MODE_PEER,
  UCP_WORD_TYPE,
  ucpEndpointParams,
  ucpMasks,
  ucpRequestParam,
  ucpTagInfo,
  ucpWorkerParams,
  ucsStatus,
  type Ucx,
  ucxError,
  ucxStatusName,
  withoutInheritance,
} from '../../../native/ucx.ts';
import { putWide, wideAt } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { NativeBlock, symbolAddress, viewAt } from '../../../native/library.ts';
import type { RemoteKeys } from '../../rdma/rdma-device.ts';
import { check, KEY_NAME_BYTES, struct, type StructBlock, type UcxContext } from './ucx-context.ts';

/** UCX reads keys of a length that their first bytes tell: behind one that lies, it finds zeros. */
const KEY_MARGIN = 64 * 1024;
const WORD_BYTES = 8;
const MEMORY_WORD = ucpRequestParam.offset.memory / 4;
/** Receives that are posted: what comes beyond waits in UCX. A power of two. */
const RECEIVES = 256;

/** The taker of words. Hot path. */
type TakeWord = (tag: number, word: number) => void;

export class UcxWorker implements Disposable {
  /** What peers connect to. */
  readonly address: Uint8Array;
  /** Readable when there is something to progress and the worker was armed. */
  readonly fd: number;
  readonly #handle: number;
  readonly #calls: Ucx['calls'];
  readonly #out = new NativeBlock(16);
  readonly #plain: StructBlock = struct(ucpRequestParam);
  readonly #mapped: StructBlock = struct(ucpRequestParam);
  readonly #word: StructBlock = struct(ucpRequestParam);
  readonly #force: StructBlock = struct(ucpRequestParam);
  readonly #requested: StructBlock = struct(ucpRequestParam);
  readonly #info = new NativeBlock(ucpTagInfo.size);
  readonly #words = new NativeBlock(RECEIVES * WORD_BYTES);
  /** Requests of receives, in the order of their posts, which is that of the words' arrival. */
  readonly #receives = new Float64Array(RECEIVES);
  #oldest = 0;
  /** UCX reads an address until the endpoint is connected. */
  readonly #addresses = new Map<number, NativeBlock>();

  /** Fails with WL_NATIVE if UCX refuses. */
  constructor(context: UcxContext) {
    this.#calls = openUcx().calls;
    const { request, closeFlags } = ucpMasks;
    this.#mapped.block.set('attributes', request.memory);
    this.#word.block.set('attributes', request.dataType);
    this.#word.block.set('dataType', UCP_WORD_TYPE);
    this.#force.block.set('attributes', request.flags);
    this.#force.block.set('flags', closeFlags.force);
    this.#requested.block.set('attributes', request.noImmediate);
    const { block, address } = struct(ucpWorkerParams);
    block.set('fieldMask', ucpMasks.worker.flags);
    block.set('flags', ucpMasks.workerFlags.ignoreRequestLeak);
    const create = (): number => this.#calls.ucp_worker_create(context.handle, address, this.#out.address);
    const what = 'making a worker: UCX_TLS and UCX_NET_DEVICES may leave no transport';
    check('ucp_worker_create', withoutInheritance(create), what);
    this.#handle = this.#outNumber(0);
    this.address = this.#ownAddress();
    const fd: [number] = [-1];
    const describe = (): number => this.#calls.ucp_worker_get_efd(this.#handle, fd);
    check('ucp_worker_get_efd', withoutInheritance(describe), 'asking for what to sleep on');
    this.fd = fd[0];
  }

  /** Begins to receive words. */
  receive(): void {
    for (let index = 0; index < RECEIVES; index++) this.#expect(index);
  }

  /** Lets UCX work; how much happened. */
  progress(): number {
    return this.#calls.ucp_worker_progress(this.#handle);
  }

  /** Called before sleeping on the descriptor; false if there is something to progress now. */
  arm(): boolean {
    return this.#calls.ucp_worker_arm(this.#handle) === ucsStatus.ok;
  }

  /** Hot path. Takes what has come. True if anything has. */
  takeWords(take: TakeWord): boolean {
    let count = 0;
    for (; count < RECEIVES; count++) {
      const index = this.#oldest;
      const request = this.#receives[index]!;
      const status = this.#calls.ucp_tag_recv_request_test(request, this.#info.address);
      if (status === ucsStatus.inProgress) break;
      this.#calls.ucp_request_free(request);
      const word = this.#words.words[index * 2]!;
      this.#oldest = (index + 1) % RECEIVES;
      this.#expect(index);
      if (status === ucsStatus.ok) take(wideAt(this.#info.words, 0), word);
    }
    return count > 0;
  }

  /**
   * The endpoint to a peer's worker. `lost`: address of 8 bytes that are not 0 any more once UCX has lost it. Fails with
   * WL_UNSUPPORTED if both have no transport in common, with WL_NATIVE.
   */
  connect(address: Uint8Array, lost: number, peer: string): number {
    const own = new NativeBlock(address.length + KEY_MARGIN);
    own.bytes.set(address);
    const { block, address: params } = struct(ucpEndpointParams);
    const { endpoint } = ucpMasks;
    block.set('fieldMask', endpoint.address + endpoint.errorMode + endpoint.errorHandler);
    block.set('address', own.address);
    block.set('errorMode', UCP_ERR_HANDLING_MODE_PEER);
    // UCX calls it as handler(argument, endpoint, status), within its progress, where no function of TypeScript may run.
    // time(2) fits: it writes where its first argument points, and ignores the others.
    block.set('errorCallback', symbolAddress('time'));
    block.set('errorArgument', lost);
    const status = this.#calls.ucp_ep_create(this.#handle, params, this.#out.address);
    if (status === ucsStatus.unreachable) throw noWay(peer, status);
    check('ucp_ep_create', status, `connecting to ${peer}`);
    const created = this.#outNumber(0);
    this.#addresses.set(created, own);
    return created;
  }

  /** Ends an endpoint at once; what is under way fails. Returns a request, or 0. */
  disconnect(endpoint: number): number {
    this.#addresses.delete(endpoint);
    const request = this.#calls.ucp_ep_close_nbx(endpoint, this.#force.address);
    return isErrorPointer(request) ? 0 : request;
  }

  /** UCX's handle of what the peer has packed, for one endpoint. Fails with WL_NATIVE. */
  unpack(endpoint: number, packed: Uint8Array): number {
    const own = new NativeBlock(packed.length + KEY_MARGIN);
    own.bytes.set(packed);
    const status = this.#calls.ucp_ep_rkey_unpack(endpoint, own.address, this.#out.address);
    check('ucp_ep_rkey_unpack', status, 'reading the key of memory of a peer');
    return this.#outNumber(0);
  }

  forgetKey(key: number): void {
    this.#calls.ucp_rkey_destroy(key);
  }

  // What posts returns 0 once done, a request, or a negative status.

  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per post
  put(endpoint: number, address: number, bytes: number, memory: number, remote: number, key: number): number {
    putWide(this.#mapped.memory.words, MEMORY_WORD, memory);
    return this.#calls.ucp_put_nbx(endpoint, address, bytes, remote, key, this.#mapped.address);
  }

  // oxlint-disable-next-line max-params -- the same
  get(endpoint: number, address: number, bytes: number, memory: number, remote: number, key: number): number {
    putWide(this.#mapped.memory.words, MEMORY_WORD, memory);
    return this.#calls.ucp_get_nbx(endpoint, address, bytes, remote, key, this.#mapped.address);
  }

  /** Writes 8 bytes of any memory of this process, which UCX takes by the call or until the request ends. */
  putWord(endpoint: number, address: number, remote: number, key: number): number {
    return this.#calls.ucp_put_nbx(endpoint, address, WORD_BYTES, remote, key, this.#plain.address);
  }

  /** Adds the 8 bytes there. */
  addWord(endpoint: number, address: number, remote: number, key: number): number {
    return this.#calls.ucp_atomic_op_nbx(endpoint, UCP_ATOMIC_OP_ADD, address, 1, remote, key, this.#word.address);
  }

  sendWord(endpoint: number, address: number, tag: number): number {
    return this.#calls.ucp_tag_send_nbx(endpoint, address, WORD_BYTES, tag, this.#plain.address);
  }

  /** What is posted next is visible behind all puts, gets and additions before it. Fails with WL_NATIVE. */
  fence(): void {
    check('ucp_worker_fence', this.#calls.ucp_worker_fence(this.#handle), 'ordering puts');
  }

  /** Ends when all before it is visible at the peer. */
  flush(endpoint: number): number {
    return this.#calls.ucp_ep_flush_nbx(endpoint, this.#plain.address);
  }

  /** The status of a request: `ucsStatus.inProgress`, or its end, with which it is freed. */
  check(request: number): number {
    const status = this.#calls.ucp_request_check_status(request);
    if (status !== ucsStatus.inProgress) this.#calls.ucp_request_free(request);
    return status;
  }

  /** Nobody asks for its end. */
  forget(request: number): void {
    this.#calls.ucp_request_free(request);
  }

  /** Called after its endpoints are disconnected. */
  [Symbol.dispose](): void {
    for (const request of this.#receives) if (request !== 0) this.#calls.ucp_request_cancel(this.#handle, request);
    this.progress();
    for (const request of this.#receives) if (request !== 0) this.#calls.ucp_request_free(request);
    this.#calls.ucp_worker_destroy(this.#handle);
  }

  #expect(index: number): void {
    const to = this.#words.address + index * WORD_BYTES;
    const request = this.#calls.ucp_tag_recv_nbx(this.#handle, to, WORD_BYTES, 0, 0, this.#requested.address);
    if (isErrorPointer(request)) throw ucxError('ucp_tag_recv_nbx', request, 'receiving words of peers');
    this.#receives[index] = request;
  }

  #ownAddress(): Uint8Array {
    const status = this.#calls.ucp_worker_get_address(this.#handle, this.#out.address, this.#out.address + 8);
    check('ucp_worker_get_address', status, 'asking for the address of this worker');
    const at = this.#outNumber(0);
    const address = new Uint8Array(viewAt(at, this.#outNumber(1))).slice();
    this.#calls.ucp_worker_release_address(this.#handle, at);
    return address;
  }

  #outNumber(index: number): number {
    return wideAt(this.#out.words, index * 2);
  }
}

function noWay(peer: string, status: number): WeftlineError {
  return new WeftlineError(
    'WL_UNSUPPORTED',
    `UCX cannot reach ${peer}: both sides must have RDMA devices of the same kind on one network, and the same UCX_TLS`,
    { details: { peer, status: ucxStatusName(status) } },
  );
}

// Keys of one peer's memory, which UCX has to unpack for each endpoint anew.

const MAX_KEY_BYTES = 1000;

export class UcxKeys implements RemoteKeys {
  readonly #packed: (Uint8Array | undefined)[] = [];
  readonly #names: string[] = [];
  /** UCX's handles for the endpoint; 0 until they are needed. */
  readonly #handles: number[] = [];
  readonly #unused: number[] = [];
  #worker: UcxWorker | undefined;
  #endpoint = 0;

  add(key: Uint8Array): number | undefined {
    if (key.length <= KEY_NAME_BYTES || key.length > MAX_KEY_BYTES) return undefined;
    const number = this.#unused.pop() ?? this.#packed.length;
    this.#packed[number] = key.slice(KEY_NAME_BYTES);
    this.#names[number] = Buffer.from(key.subarray(0, KEY_NAME_BYTES)).toString('hex');
    this.#handles[number] = 0;
    return number;
  }

  remove(number: number): void {
    this.#forget(number);
    this.#packed[number] = undefined;
    this.#unused.push(number);
  }

  namesOf(numbers: Iterable<number>): ReadonlyMap<number, string> {
    return new Map([...numbers].map((number) => [number, this.#names[number]!]));
  }

  /** Makes the keys those of this endpoint from now on. */
  attach(worker: UcxWorker, endpoint: number): void {
    // Handles of an endpoint that UCX has not ended stay with it.
    this.#handles.fill(0);
    this.#worker = worker;
    this.#endpoint = endpoint;
  }

  /** The endpoint is over. */
  detach(endpoint: number): void {
    if (endpoint !== this.#endpoint) return;
    for (let number = 0; number < this.#handles.length; number++) this.#forget(number);
    this.#endpoint = 0;
  }

  /** Hot path. Fails with WL_NATIVE if UCX does not understand the key. */
  handleOf(number: number): number {
    const handle = this.#handles[number]!;
    if (handle !== 0) return handle;
    const made = this.#worker!.unpack(this.#endpoint, this.#packed[number]!);
    this.#handles[number] = made;
    return made;
  }

  #forget(number: number): void {
    const handle = this.#handles[number]!;
    if (handle !== 0) this.#worker!.forgetKey(handle);
    this.#handles[number] = 0;
  }
}
