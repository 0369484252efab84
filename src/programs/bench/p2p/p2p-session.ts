// The two sides of a P2P bench: words between them, and the memory that is moved.
import { DescriptorList, type Endpoint, type EndpointConnection, type RemoteMemory } from '../../../agent/index.ts';
import { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { ControlChannel } from '../../../meeting/control-channel.ts';

type Memory = Awaited<ReturnType<Endpoint['allocate']>>;

export class P2pSession {
  readonly endpoint: Endpoint;
  /** For what is measured. */
  readonly connection: EndpointConnection;
  readonly #words: ControlChannel;
  #memory: Memory | undefined;
  #hostMemory: Memory | undefined;
  #device: CudaDevice | undefined;
  #tensor: Tensor | undefined;

  /** `words`: for what the sides tell each other, apart from what is measured. */
  constructor(endpoint: Endpoint, connection: EndpointConnection, words: ControlChannel) {
    this.endpoint = endpoint;
    this.connection = connection;
    this.#words = words;
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

  /** Host memory beside that of a GPU, to compare with. */
  async openHostMemory(bytes: number, name: string): Promise<void> {
    this.#hostMemory = await this.endpoint.allocate(bytes, name);
    this.#hostMemory.bytes.fill(0xa5);
  }

  /** See openHostMemory. */
  get hostMemory(): Memory {
    return this.#hostMemory as Memory;
  }

  remote(name: string): Promise<RemoteMemory> {
    return this.connection.memory(name);
  }

  /** Slot `index` of messages of that size, here or there. */
  slot(memory: Memory | RemoteMemory, index: number, bytes: number): DescriptorList {
    return DescriptorList.of(memory, index * bytes, bytes);
  }

  /** Tells the other side something that JSON can express. */
  say(value: unknown): void {
    sayWord(this.#words, value);
  }

  /** What the other side says next. Fails with the error that it ended with, if it did. */
  hear<T>(): Promise<T> {
    return hearWord(this.#words, this.endpoint.agent.settings.timeoutMs);
  }

  /** Gives the GPU back, after the endpoint was closed. */
  async close(): Promise<void> {
    this.#tensor?.[Symbol.dispose]();
    await this.#device?.[Symbol.asyncDispose]();
  }
}

/** For words before there is a session. */
export function sayWord(words: ControlChannel, value: unknown): void {
  words.send({ word: value });
}

/** See P2pSession.hear. */
export async function hearWord<T>(words: ControlChannel, timeoutMs: number): Promise<T> {
  words.deadline = performance.now() + timeoutMs;
  const { word } = await words.receive('next word');
  return word as T;
}
