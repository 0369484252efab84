// Asynchronous events of a device: ports that come and go, queues that fail, the device itself.
import { Block } from '../../abi/layout.ts';
import { ibvAsyncEvent, ibvQp } from './c-structs.ts';
import { asyncEvents } from './c-numbers.ts';
import { viewAt } from '../library.ts';
import { NativeBlock } from '../native-block.ts';
import { doNotBlock } from '../readiness.ts';
import type { VerbsContext } from './context.ts';

export interface VerbsEvent {
  /** IBV_EVENT_PORT_ERR and so on. */
  readonly name: string;
  /** What it means, with the port or queue pair that it is about. */
  readonly meaning: string;
  /** The port, of events about a port. */
  readonly port?: number;
  /** The number of the queue pair, of events about one. */
  readonly queuePair?: number;
}

export class AsyncEvents {
  /** Readable when there is an event. */
  readonly descriptor: number;
  readonly #context: VerbsContext;
  readonly #memory = new NativeBlock(ibvAsyncEvent.size);
  readonly #block = Block.over(ibvAsyncEvent, this.#memory.bytes);

  /** One per context: an event is told once. */
  constructor(context: VerbsContext) {
    context.requireOpen();
    this.#context = context;
    this.descriptor = context.asyncDescriptor;
    doNotBlock(this.descriptor);
  }

  /** The next event, or undefined if there is none now. Does not wait. */
  take(): VerbsEvent | undefined {
    const { calls, address, device } = this.#context;
    this.#context.requireOpen();
    if (calls.ibv_get_async_event(address, this.#memory.address) !== 0) return undefined;
    try {
      return eventOf(device, this.#block.get('type'), this.#block.get('element'));
    } finally {
      // Queues cannot be closed before their events were acknowledged.
      calls.ibv_ack_async_event(this.#memory.address);
    }
  }
}

/** `element`: a port, or the address of an object that exists until the event is acknowledged. */
function eventOf(device: string, type: number, element: number): VerbsEvent {
  const [name, words, about] = asyncEvents[type] ?? [
    `ibv_event_type ${type}`,
    'an event that weftline does not know',
    '',
  ];
  if (about === 'port') {
    // The cell is as wide as an address, of which the port fills the low half.
    const port = element % 2 ** 32;
    return { name, meaning: `${device} port ${port}: ${words}`, port };
  }
  if (about !== 'qp') return { name, meaning: `${device}: ${words}` };
  const queuePair = new Block(ibvQp, viewAt(element, ibvQp.size), 0).get('number');
  return { name, meaning: `${device} queue pair ${queuePair}: ${words}`, queuePair };
}
