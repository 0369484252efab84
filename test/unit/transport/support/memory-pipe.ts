// Two engines back to back in memory, without payload: what the core alone costs.
import { readSettings, type Settings } from 'weftline';
import type { Connection } from '#lib/transport/engine/connection.js';
import { Engine } from '#lib/transport/engine/engine.js';
import { type Burst, createReceivedBatch, type PacketIo, type ReceivedBatch } from '#lib/transport/io/packet-io.js';
import { type EngineHandle, requestStatus } from '#lib/transport/engine/transport-engine.js';

const MESSAGE_BYTES = 1_048_576;
const OUTSTANDING = 4;

/** Headers go over; the place of the payload is left as it is. */
class PipeEnd implements PacketIo {
  readonly arena = new Uint8Array(1_048_576);
  readonly burstSegments: number;
  readonly burstBytes = 65_507;
  readonly batch: ReceivedBatch = createReceivedBatch(new Uint8Array(4_194_304), 256);
  readonly #from = new Int32Array(this.arena.buffer);
  readonly #to = new Int32Array(this.batch.bytes.buffer as ArrayBuffer);
  #used = 0;

  constructor(burstSegments: number) {
    this.burstSegments = burstSegments;
  }

  room(): number {
    return 128 - this.batch.count;
  }

  send(burst: Burst): void {
    const { batch } = this;
    const stride = burst.headerBytes + burst.payloadBytes;
    const length = (burst.count - 1) * stride + burst.headerBytes + burst.lastPayloadBytes;
    for (let packet = 0; packet < burst.count; packet++) {
      const from = (burst.headerOffset + packet * burst.headerBytes) >> 2;
      const to = (this.#used + packet * stride) >> 2;
      for (let word = 0; word < burst.headerBytes >> 2; word++) this.#to[to + word] = this.#from[from + word] as number;
    }
    batch.offset[batch.count] = this.#used;
    batch.length[batch.count] = length;
    batch.segmentBytes[batch.count] = burst.count > 1 ? stride : 0;
    batch.count++;
    this.#used = (this.#used + length + 7) & ~7;
  }

  empty(): void {
    this.batch.count = 0;
    this.#used = 0;
  }

  flush(): void {}
  place(): void {}
}

export interface PipeOptions {
  readonly burstSegments?: number;
  readonly paths?: number;
  readonly settings?: Partial<Settings>;
}

export class MemoryPipe {
  readonly a: PipeEnd;
  readonly b: PipeEnd;
  readonly sender: Connection;
  readonly #engines: readonly [Engine, Engine];
  readonly #receiver: Connection;
  readonly #sends: EngineHandle[] = [];
  readonly #receives: EngineHandle[] = [];
  readonly #source;
  readonly #target;
  #now = 0;

  constructor({ burstSegments = 44, paths = 4, settings = {} }: PipeOptions) {
    this.a = new PipeEnd(burstSegments);
    this.b = new PipeEnd(burstSegments);
    const all = readSettings({ transportChecksum: 'none', ...settings }, {});
    const a = new Engine({ io: this.a, settings: all });
    const b = new Engine({ io: this.b, settings: all });
    this.#engines = [a, b];
    const [idA, idB] = [a.reserveConnectionId(), b.reserveConnectionId()];
    const shared = { secret: 99n, paths, segmentBytes: 1368, peerName: 'peer', peer: 0 };
    this.sender = a.createConnection({ ...shared, localId: idA, remoteId: idB });
    this.#receiver = b.createConnection({ ...shared, localId: idB, remoteId: idA });
    this.#source = a.register({ bytes: new Uint8Array(MESSAGE_BYTES) });
    this.#target = b.register({ bytes: new Uint8Array(MESSAGE_BYTES) });
  }

  /** Rounds of both engines, with messages of 1 MiB always under way. */
  run(rounds: number): void {
    const [a, b] = this.#engines;
    for (let round = 0; round < rounds; round++) {
      for (let index = 0; index < OUTSTANDING; index++) this.#post(index);
      this.#now += 5;
      a.onTimer(this.#now);
      b.onPackets(this.a.batch, this.#now);
      this.a.empty();
      this.#now += 5;
      b.onTimer(this.#now);
      a.onPackets(this.b.batch, this.#now);
      this.b.empty();
    }
  }

  #post(index: number): void {
    const [a, b] = this.#engines;
    const [send, receive] = [this.#sends[index] ?? 0, this.#receives[index] ?? 0];
    if (b.poll(receive) !== requestStatus.pending) {
      b.forget(receive);
      this.#receives[index] = this.#receiver.postReceive({ region: this.#target, offset: 0, bytes: MESSAGE_BYTES });
    }
    if (a.poll(send) !== requestStatus.pending) {
      a.forget(send);
      this.#sends[index] = this.sender.postSend({ region: this.#source, offset: 0, bytes: MESSAGE_BYTES });
    }
  }
}
