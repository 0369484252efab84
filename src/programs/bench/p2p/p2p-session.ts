// The two sides of a P2P bench: words between them, and the memory that is moved.
import {
  DescriptorList,
  type Endpoint,
  type EndpointConnection,
  type Operation,
  type RemoteMemory,
} from '../../../agent/index.ts';
import { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../../device/tensor.ts';

type Memory = Awaited<ReturnType<Endpoint['allocate']>>;

const WORD_BYTES = 65_536;

export class P2pSession {
  readonly endpoint: Endpoint;
  /** For what is measured. */
  readonly connection: EndpointConnection;
  /** For words: they must not meet receives of messages. */
  readonly #words: EndpointConnection;
  readonly #in: Memory;
  readonly #out: Memory;
  #pending: Operation;
  #memory: Memory | undefined;
  #device: CudaDevice | undefined;
  #tensor: Tensor | undefined;

  static async open(
    endpoint: Endpoint,
    connection: EndpointConnection,
    words: EndpointConnection,
  ): Promise<P2pSession> {
    return new P2pSession(endpoint, connection, {
      connection: words,
      incoming: await endpoint.allocate(WORD_BYTES),
      outgoing: await endpoint.allocate(WORD_BYTES),
    });
  }

  private constructor(
    endpoint: Endpoint,
    connection: EndpointConnection,
    words: { readonly connection: EndpointConnection; readonly incoming: Memory; readonly outgoing: Memory },
  ) {
    this.endpoint = endpoint;
    this.connection = connection;
    this.#words = words.connection;
    this.#in = words.incoming;
    this.#out = words.outgoing;
    this.#pending = this.#words.recv({ region: this.#in });
  }

  /** What this side moves. */
  get memory(): Memory {
    return this.#memory as Memory;
  }

  /** `name` is how the peer finds it. */
  async openMemory(bytes: number, name: string, device: 'cpu' | 'gpu'): Promise<void> {
    if (device === 'gpu') {
      this.#device = await CudaDevice.create({ ordinal: this.endpoint.localGpuIndex });
      this.#tensor = this.#device.empty('u8', [bytes]);
      this.#device.setBytes(this.#tensor, 0xa5);
      await this.#device.stream.idle();
      this.#memory = await this.endpoint.reg(this.#tensor, name);
      return;
    }
    this.#memory = await this.endpoint.allocate(bytes, name);
    // Pages that were never written are quicker to read than memory.
    this.#memory.bytes.fill(0xa5);
  }

  remote(name: string): Promise<RemoteMemory> {
    return this.connection.memory(name);
  }

  /** Slot `index` of messages of that size, here or there. */
  slot(memory: Memory | RemoteMemory, index: number, bytes: number): DescriptorList {
    return DescriptorList.of(memory, index * bytes, bytes);
  }

  /** Tells the other side something that JSON can express; resolves when it has arrived. */
  async say(value: unknown): Promise<void> {
    const text = Buffer.from(JSON.stringify(value));
    this.#out.bytes.set(text);
    await this.#words.send({ region: this.#out, bytes: text.length }).wait();
  }

  /** What the other side says next. */
  async hear<T>(timeoutMs?: number): Promise<T> {
    const bytes = await this.#pending.wait(timeoutMs === undefined ? {} : { timeoutMs });
    const value = JSON.parse(Buffer.from(this.#in.bytes.subarray(0, bytes)).toString()) as T;
    this.#pending = this.#words.recv({ region: this.#in });
    return value;
  }

  /** Gives the GPU back, after the endpoint was closed. */
  async close(): Promise<void> {
    this.#tensor?.[Symbol.dispose]();
    await this.#device?.[Symbol.asyncDispose]();
  }
}
