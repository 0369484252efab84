// Keys of one peer's memory, which UCX has to unpack for each endpoint anew.
import type { RemoteKeys } from '../../rdma/rdma-device.ts';
import type { UcxWorker } from './ucx-worker.ts';

/** The name of a region, by which its owner tells whether it is still registered, then UCX's key. */
export const KEY_NAME_BYTES = 8;
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

  /** From now on they are for this endpoint. */
  attach(worker: UcxWorker, endpoint: number): void {
    // Those of an endpoint that UCX has not ended stay with it.
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
