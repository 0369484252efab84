// One engine over UDP sockets on one thread: takes packets in, lets the engine send, sleeps when nothing happens.
import { Doorbell, ReadinessSet } from '../../../native/readiness.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import { closeDescriptor } from '../../../native/udp.ts';
import { EngineTurns, microseconds } from '../engine-turns.ts';
import type { PacketLoop, PacketLoopOptions, PathEndpoint } from '../packet-io-kind.ts';
import type { TransportEngine } from '../../engine/transport-engine.ts';
import { DatagramReceiver, RECEIVE_ARENA_BYTES } from './datagram-receiver.ts';
import { type PathSocket, type SendFailures, UdpPacketIo } from './udp-packet-io.ts';

/** Batches taken from one socket before the engine may answer: acks must not wait for a full socket to run dry. */
const BATCHES_PER_ROUND = 4;
/** In place of a socket's number. */
const DOORBELL = -1;
const NO_SOCKET = -1;
/** After so many looks at one socket, whatever they found, all are looked at. */
const LOOKS_AT_ONE = 2;
/** After a pause as long as this, an empty socket is no reason to go: who looks seldom would find the others late. */
const PAUSE_MICROSECONDS = 50;

export interface UdpLoopOptions extends Pick<PacketLoopOptions, 'engine'> {
  /** How long the loop polls after the last packet before it sleeps. */
  readonly spinUs: number;
}

export class UdpLoop implements PacketLoop {
  readonly engine: TransportEngine;
  /** Rung by other threads to end a sleep. */
  readonly doorbell: Doorbell = Doorbell.create();
  /** Peers whose ports the kernel says are closed, for the owner to take out. */
  readonly refused: number[] = [];
  readonly refusal = 'its UDP ports are closed';
  readonly #io: UdpPacketIo;
  readonly #receiver: DatagramReceiver;
  readonly #readiness = new ReadinessSet();
  readonly #turns: EngineTurns;
  /** By socket number; -1 for a number that is free. */
  readonly #descriptors: number[] = [];
  readonly #peers: number[] = [];
  readonly #paths = new Map<number, readonly PathSocket[]>();
  #sockets = 0;
  /** The one that packets come from one by one: to look at it first saves asking which socket has any. */
  #likely = NO_SOCKET;
  #looks = 0;
  #lastLook = 0;

  constructor({ engine, spinUs }: UdpLoopOptions) {
    const arena = new NativeBlock(RECEIVE_ARENA_BYTES);
    this.#io = new UdpPacketIo(arena, (peer) => this.refused.push(peer));
    this.#readiness.add(this.doorbell.fd, DOORBELL);
    this.engine = engine(this.#io);
    this.#turns = new EngineTurns(this.engine, spinUs);
    this.#receiver = new DatagramReceiver(arena, this.engine);
  }

  get failures(): Readonly<Record<keyof SendFailures, number>> {
    return this.#io.failures;
  }

  addPeer(peer: number, { ends, segments }: PathEndpoint): void {
    const paths = ends.map((fd) => ({ fd, peer, segments }));
    this.#paths.set(peer, paths);
    this.#io.setPeer(peer, paths);
    for (const fd of ends) {
      const free = this.#descriptors.indexOf(-1);
      const number = free === -1 ? this.#descriptors.length : free;
      this.#descriptors[number] = fd;
      this.#peers[number] = peer;
      this.#sockets += 1;
      this.#readiness.add(fd, number);
    }
  }

  removePeer(peer: number): void {
    this.#io.removePeer(peer);
    this.#likely = NO_SOCKET;
    for (const { fd } of this.#paths.get(peer) ?? []) {
      this.#readiness.remove(fd);
      closeDescriptor(fd);
      const number = this.#descriptors.indexOf(fd);
      if (number === -1) continue;
      this.#descriptors[number] = -1;
      this.#sockets -= 1;
    }
    this.#paths.delete(peer);
    // The number may soon be another peer's.
    for (let at = this.refused.length - 1; at >= 0; at--) if (this.refused[at] === peer) this.refused.splice(at, 1);
  }

  /** Hot path. Takes in what has arrived, sends what is due. False if there was nothing to do. */
  step(): boolean {
    const isBusy = this.#sockets === 1 && this.#descriptors.length === 1 ? this.#drain(0) : this.#drainReady();
    const now = microseconds();
    this.#lastLook = now;
    return this.#turns.take(now, isBusy);
  }

  /** True once so little happens that the thread had better sleep. */
  get isIdle(): boolean {
    return this.#turns.isIdle;
  }

  /** Sleeps until a packet comes, the engine's next deadline, the doorbell, or `most` is over. */
  sleep(most?: number): void {
    const time = this.#turns.sleepTime(most);
    if (time <= 0) return;
    this.#readiness.sleep(time);
    // Any socket may have ended it.
    this.#lastLook = 0;
    // A doorbell that stays rung would end every later sleep at once; a loop with one socket never looks at it.
    this.doorbell.silence();
  }

  /** To be called before requests are posted: the engine then knows what time it is, and the loop polls for a while. */
  touch(): void {
    this.#turns.touch();
  }

  [Symbol.dispose](): void {
    for (const peer of this.#paths.keys()) this.removePeer(peer);
    this.#readiness[Symbol.dispose]();
    this.doorbell[Symbol.dispose]();
  }

  #drainReady(): boolean {
    if (this.#likely !== NO_SOCKET && this.#looks < LOOKS_AT_ONE) {
      this.#looks += 1;
      if (this.#drain(this.#likely)) return true;
      if (microseconds() - this.#lastLook < PAUSE_MICROSECONDS) return false;
    }
    this.#looks = 0;
    const ready = this.#readiness.poll();
    let isBusy = false;
    let last = NO_SOCKET;
    let sockets = 0;
    for (let index = 0; index < ready; index += 1) {
      const number = this.#readiness.numberAt(index);
      if (number === DOORBELL) continue;
      last = number;
      sockets += 1;
      if (this.#drain(number)) isBusy = true;
    }
    // Under load all sockets have packets, and one question finds many of them.
    if (last !== NO_SOCKET) this.#likely = sockets === 1 && this.#receiver.batch.count === 1 ? last : NO_SOCKET;
    return isBusy;
  }

  #drain(number: number): boolean {
    const fd = this.#descriptors[number]!;
    const peer = this.#peers[number]!;
    const { batch } = this.#receiver;
    for (let round = 0; round < BATCHES_PER_ROUND; round += 1) {
      const hasMore = this.#receiver.receive(fd, peer);
      if (this.#receiver.isRefused) this.refused.push(peer);
      if (batch.count === 0) return round > 0;
      this.engine.onPackets(batch, microseconds());
      if (!hasMore) break;
    }
    return true;
  }
}
