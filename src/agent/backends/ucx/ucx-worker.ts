// A UCX worker as any thread of the process uses it, one at a time: messages by tag, progress. Hot path: no allocation.
import { ucpMasks, ucpRequestParam, ucpTagInfo, ucsStatus } from '../../../abi/ucx-structs.ts';
import { Block } from '../../../abi/layout.ts';
import { UCX_WHOLE_MASK } from '../../../abi/ucx-message.ts';
import { putWide } from '../../../abi/wide-words.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import { openUcx, type Ucx } from '../../../native/ucx.ts';

/** Memory of a message. `memory`: what `UcxContext.map` has returned for it, or 0. */
export interface MappedPlace {
  address: number;
  bytes: number;
  memory: number;
}

export class UcxWorker {
  readonly #handle: number;
  readonly #calls: Ucx['calls'];
  readonly #plain: NativeBlock = requestParam(0);
  readonly #mapped: NativeBlock = requestParam(ucpMasks.request.memory);
  readonly #memoryWord: number = ucpRequestParam.offset.memory / 4;
  readonly #requested: NativeBlock = requestParam(ucpMasks.request.noImmediate);
  readonly #info = new NativeBlock(ucpTagInfo.size);
  readonly #bytesWord: number = ucpTagInfo.offset.bytes / 4;

  constructor(handle: number) {
    this.#handle = handle;
    this.#calls = openUcx().calls;
  }

  /** Lets UCX work; how much happened. */
  progress(): number {
    return this.#calls.ucp_worker_progress(this.#handle);
  }

  /** To be called before sleeping on the worker's descriptor; false if there is something to progress now. */
  arm(): boolean {
    return this.#calls.ucp_worker_arm(this.#handle) === ucsStatus.ok;
  }

  /** Returns 0 if the memory may be used again, a request, or a negative status. */
  send(endpoint: number, address: number, bytes: number, tag: number): number {
    return this.#calls.ucp_tag_send_nbx(endpoint, address, bytes, tag, this.#plain.address);
  }

  /** The same from mapped memory. */
  sendFrom({ address, bytes, memory }: MappedPlace, endpoint: number, tag: number): number {
    return this.#calls.ucp_tag_send_nbx(endpoint, address, bytes, tag, this.#paramsOf(memory));
  }

  /** Writes mapped memory to an address of the peer, whose handle `key` is. Returns as `send` does. */
  put({ address, bytes, memory }: MappedPlace, endpoint: number, remote: number, key: number): number {
    return this.#calls.ucp_put_nbx(endpoint, address, bytes, remote, key, this.#paramsOf(memory));
  }

  /** Reads in the same way. */
  get({ address, bytes, memory }: MappedPlace, endpoint: number, remote: number, key: number): number {
    return this.#calls.ucp_get_nbx(endpoint, address, bytes, remote, key, this.#paramsOf(memory));
  }

  /** Ends when all earlier puts are visible at the peer. Returns as `send` does. */
  flush(endpoint: number): number {
    return this.#calls.ucp_ep_flush_nbx(endpoint, this.#plain.address);
  }

  /** Receives the one message with this tag, into mapped memory. Returns 0 if it is here, a request, or a negative status. */
  receive({ address, bytes, memory }: MappedPlace, tag: number): number {
    return this.#calls.ucp_tag_recv_nbx(this.#handle, address, bytes, tag, UCX_WHOLE_MASK, this.#paramsOf(memory));
  }

  /** The same for a message of unknown length, always with a request, for `test`. */
  expect(address: number, bytes: number, tag: number, mask: number): number {
    return this.#calls.ucp_tag_recv_nbx(this.#handle, address, bytes, tag, mask, this.#requested.address);
  }

  /** The status of what `expect` returned; once it has ended it is freed, and `received` is what came. */
  test(request: number): number {
    const status = this.#calls.ucp_tag_recv_request_test(request, this.#info.address);
    if (status !== ucsStatus.inProgress) this.#calls.ucp_request_free(request);
    return status;
  }

  /** Bytes of the message. */
  get received(): number {
    return this.#info.words[this.#bytesWord]!;
  }

  /** The status of a request: `ucsStatus.inProgress` or its end, with which it is freed. */
  check(request: number): number {
    const status = this.#calls.ucp_request_check_status(request);
    if (status !== ucsStatus.inProgress) this.#calls.ucp_request_free(request);
    return status;
  }

  #paramsOf(memory: number): number {
    if (memory === 0) return this.#plain.address;
    putWide(this.#mapped.words, this.#memoryWord, memory);
    return this.#mapped.address;
  }

  /** A receive that no message has met ends with UCS_ERR_CANCELED. */
  cancel(request: number): void {
    this.#calls.ucp_request_cancel(this.#handle, request);
  }
}

function requestParam(attributes: number): NativeBlock {
  const memory = new NativeBlock(ucpRequestParam.size);
  new Block(ucpRequestParam, memory.bytes.buffer, memory.bytes.byteOffset).set('attributes', attributes);
  return memory;
}
