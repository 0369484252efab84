// One of two transports that send each other messages, write and read back, until one of them is gone.
import { setTimeout as sleep } from 'node:timers/promises';
import { type Connection, type MemoryRegion, Transport } from 'weftline/transport';
import { Random } from '../fuzz/random.ts';
import { chaosSettings, START_MS } from './chaos-settings.ts';
import { type Round, say, WrongBytes } from './driver-link.ts';
import { fillPattern, wrongAt } from './pattern.ts';

const AREA_BYTES = 1 << 20;
/** Messages out, messages in, what is written from and read back to, what the peer writes. */
const areas = { out: 0, in: AREA_BYTES, own: 2 * AREA_BYTES, theirs: 3 * AREA_BYTES } as const;
/** In front of each message, in bytes. */
const HEAD_BYTES = 8;

export class TransportSide implements AsyncDisposable {
  operations = 0;
  readonly #transport: Transport;
  readonly #region: MemoryRegion;
  readonly #random: Random;
  #connection: Connection | undefined;
  #remote: MemoryRegion['remote'] | undefined;
  #number = 0;

  static async open(name: string, seed: number): Promise<TransportSide> {
    const transport = await Transport.create({ name, token: 'chaos', settings: chaosSettings });
    const memory = new Uint8Array(new SharedArrayBuffer(4 * AREA_BYTES));
    const region = await transport.register(memory, { read: true, write: true });
    return new TransportSide(transport, region, new Random(seed));
  }

  private constructor(transport: Transport, region: MemoryRegion, random: Random) {
    this.#transport = transport;
    this.#region = region;
    this.#random = random;
  }

  /** The survivor listens. */
  async meet(round: Round, isListener: boolean): Promise<void> {
    if (isListener) {
      using listener = await this.#transport.listen({ host: '127.0.0.1', port: 0 });
      round.tell({ port: listener.port, remote: this.#region.remote });
      this.#connection = await listener.accept({ timeoutMs: START_MS });
      this.#remote = await round.next();
    } else {
      const { port, remote } = await round.next<{ port: number; remote: MemoryRegion['remote'] }>();
      this.#remote = remote;
      round.tell(this.#region.remote);
      this.#connection = await this.#transport.connect({ host: '127.0.0.1', port }, { timeoutMs: START_MS });
    }
  }

  async run(round: Round): Promise<void> {
    for (let first = true; ; first = false) {
      const [isLast] = await Promise.all([this.#message(round.isToFinish), this.#oneSided()]);
      if (isLast) return;
      if (first) say({ tell: 'running' });
      await sleep(this.#random.below(2));
    }
  }

  get told(): number {
    return 0;
  }

  async checkArrived(): Promise<void> {}

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#transport.close();
  }

  get #link(): Connection {
    return this.#connection as Connection;
  }

  /** Both sides send one and take one, and stop after the same one. */
  async #message(isLast: boolean): Promise<boolean> {
    const number = ++this.#number;
    const bytes = HEAD_BYTES + this.#size();
    const region = this.#region;
    const message = region.bytes.subarray(areas.out, areas.out + bytes);
    const head = new DataView(message.buffer, message.byteOffset);
    head.setUint32(0, number, true);
    head.setUint32(4, Number(isLast), true);
    fillPattern(message.subarray(HEAD_BYTES), number);
    const transport = this.#transport;
    const receive = this.#link.receive({ region, offset: areas.in, bytes: AREA_BYTES });
    const send = this.#link.send({ region, offset: areas.out, bytes });
    const [came] = await Promise.all([transport.wait(receive), transport.wait(send)]);
    const arrived = region.bytes.subarray(areas.in, areas.in + came);
    const theirs = new DataView(arrived.buffer, arrived.byteOffset);
    this.#check(arrived.subarray(HEAD_BYTES), theirs.getUint32(0, true), 'message');
    this.operations++;
    return isLast || theirs.getUint32(4, true) === 1;
  }

  async #oneSided(): Promise<void> {
    const number = 1_000_000 + this.#number;
    const bytes = this.#size();
    const region = this.#region;
    const own = region.bytes.subarray(areas.own, areas.own + bytes);
    const remote = { ...(this.#remote as MemoryRegion['remote']), remoteOffset: areas.theirs };
    fillPattern(own, number);
    await this.#transport.wait(this.#link.write({ region, offset: areas.own, bytes, ...remote }));
    own.fill(0);
    await this.#transport.wait(this.#link.read({ region, offset: areas.own, bytes, ...remote }));
    this.#check(own, number, 'read');
    this.operations++;
  }

  #size(): number {
    return 1 + Math.floor(this.#random.next() ** 3 * (AREA_BYTES / 2));
  }

  #check(bytes: Uint8Array, number: number, what: string): void {
    const at = wrongAt(bytes, number);
    if (at >= 0) throw new WrongBytes(`byte ${at} of a ${what} of ${bytes.length} bytes, number ${number}, is wrong`);
  }
}
