// Serves the agent's backend: owns the UCX worker, its links, regions and transfers; on a thread of its own or the agent's.
import { ucxMessage } from '../../../abi/ucx-message.ts';
import { ucsStatus } from '../../../abi/ucx-structs.ts';
import { decodeError, encodeError, WeftlineError } from '../../../core/errors.ts';
import type { WakeWord } from '../../../core/wake-word.ts';
import { copyMemory } from '../../../native/libc.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import { Doorbell, ReadinessSet } from '../../../native/readiness.ts';
import type { HostedEngine, StopCall } from '../../../transport/host/serve-engine.ts';
import { type Command, emptyCommand, type SharedRequests } from '../../../transport/host/shared-requests.ts';
import { type HostChannel, openHostChannel } from './host-channel.ts';
import type { UcxCall, UcxConnection, UcxEvent, UcxTransferPlan } from './host-calls.ts';
import { ucxCommands } from './host-calls.ts';
import { HostLink, linkWords } from './host-link.ts';
import { type HostRegion, HostRegions } from './host-regions.ts';
import { Job } from './job.ts';
import { headerWord as at } from './message-header.ts';
import { type ArrivingMessage, UcxWorker } from './ucx-worker.ts';

/** Nothing is missed by a longer sleep, but a thread that sleeps cannot be ended from outside. */
const LONGEST_SLEEP_MICROSECONDS = 100_000;
/** How long closing waits for the good order of endpoints. */
const FAREWELL_MS = 200;

export interface UcxHostOptions {
  readonly requests: SharedRequests;
  readonly onEvent: (event: UcxEvent) => void;
  /** Rung after every event and every end. */
  readonly news: readonly WakeWord[];
  /** True if the thread is this host's own. */
  readonly canSleep: boolean;
  /** How long it polls after the last work before it sleeps. */
  readonly spinMicroseconds: number;
}

interface HostTransfer {
  readonly job: Job;
  readonly link: HostLink;
}

export class UcxHost implements HostedEngine<UcxCall> {
  readonly doorbell: Doorbell = Doorbell.create();
  readonly #options: UcxHostOptions;
  readonly #requests: SharedRequests;
  readonly #worker: UcxWorker;
  readonly #readiness = new ReadinessSet();
  readonly #header = new NativeBlock(ucxMessage.size);
  readonly #links = new Map<number, HostLink>();
  readonly #ringOf = new Map<HostLink, { readonly address: number; readonly words: Int32Array }>();
  readonly #regions = new HostRegions();
  readonly #transfers = new Map<number, HostTransfer>();
  readonly #slotOf = new Map<Job, number>();
  readonly #channels = new Map<number, HostChannel>();
  readonly #channelOf = new Map<Job, HostChannel>();
  /** Transfers and regions that their owners have given up, whose memory UCX may still use. */
  readonly #leavingTransfers = new Map<number, HostTransfer>();
  readonly #leavingRegions = new Set<HostRegion>();
  /** Endpoints that are being closed. */
  readonly #closing: number[] = [];
  readonly #command: Command = emptyCommand();
  #isDeferred = false;
  #nextLink = 1;
  #nextOperation = 1;
  #lastWork = 0;

  constructor(options: UcxHostOptions) {
    this.#options = options;
    this.#requests = options.requests;
    this.#worker = new UcxWorker({
      canSleep: options.canSleep,
      onMessage: (message) => this.#arrived(message),
      onEndpointError: (endpoint, status) => this.#broken(endpoint, status),
    });
    this.#readiness.add(this.doorbell.fd, 0);
    if (options.canSleep) this.#readiness.add(this.#worker.fd, 1);
  }

  takeCommands(): boolean {
    let hasTaken = false;
    while (this.#isDeferred || this.#requests.take(this.#command)) {
      // A transfer that is not known yet is in a call that has not been read.
      this.#isDeferred = !this.#carryOut(this.#command);
      if (this.#isDeferred) break;
      hasTaken = true;
    }
    return hasTaken;
  }

  step(): boolean {
    let isBusy = this.#worker.progress() > 0;
    for (const link of this.#links.values()) if (link.step()) isBusy = true;
    if (this.#leavingTransfers.size > 0 || this.#leavingRegions.size > 0) this.#drain();
    if (isBusy) this.#lastWork = performance.now();
    // What arrives in one piece with its answer needs no message of its own.
    else for (const link of this.#links.values()) if (link.error === undefined) link.outgoing.acknowledgeArrivals();
    return isBusy;
  }

  get isIdle(): boolean {
    return (performance.now() - this.#lastWork) * 1000 >= this.#options.spinMicroseconds;
  }

  sleep(most: number = LONGEST_SLEEP_MICROSECONDS): void {
    if (!this.#worker.arm()) return;
    this.#readiness.sleep(Math.min(most, LONGEST_SLEEP_MICROSECONDS));
    this.doorbell.silence();
  }

  call(call: UcxCall | StopCall): unknown {
    this.#lastWork = performance.now();
    switch (call.name) {
      case 'address':
        return this.#worker.address;
      case 'reserve':
        return this.#nextLink++;
      case 'connect':
        return this.#connect(call.options);
      case 'disconnect':
        return this.#disconnect(call.link, decodeError(call.error));
      case 'register': {
        const { number, key } = this.#regions.add(call.address, call.bytes);
        return { number, key };
      }
      case 'release':
        return this.#release(call.region);
      case 'prepare':
        return this.#prepare(call.transfer);
      case 'forget':
        return this.#forget(call.slot);
      case 'openChannel': {
        const { channel, link, words } = call.channel;
        const operation = this.#operation();
        this.#channels.set(channel, openHostChannel({ channel, link: this.#link(link), words, operation }));
        return undefined;
      }
      case 'closeChannel':
        return this.#closeChannel(call.channel);
      case 'stop':
        return this.#stop();
      default:
        return call satisfies never;
    }
  }

  [Symbol.dispose](): void {
    // Without errors from UCX, an endpoint to a process that was killed does not close.
    if (this.#links.size > 0 || this.#closing.length > 0) this.#worker.abandon();
    this.#worker[Symbol.dispose]();
    this.#readiness[Symbol.dispose]();
    this.doorbell[Symbol.dispose]();
  }

  #link(number: number): HostLink {
    const link = this.#links.get(number);
    if (link === undefined) throw new WeftlineError('WL_CLOSED', 'The link was closed');
    return link;
  }

  #operation(): number {
    const operation = this.#nextOperation;
    this.#nextOperation = (operation % 0xffff_ffff) + 1;
    return operation;
  }

  #connect(options: UcxConnection): undefined {
    const { link: number, peer, mode, secretLow, secretHigh, remoteLink } = options;
    const endpoint = this.#worker.connect(options.address, mode, peer);
    const words = new Int32Array(options.words);
    const link = new HostLink({
      facts: { worker: this.#worker, endpoint, peer, remoteLink, secretLow, secretHigh },
      mode,
      words,
      regions: this.#regions,
      onJobEnd: (job) => this.#jobEnded(job),
      onNotification: (message) => this.#tell({ what: 'notification', link: number, message }),
      onEnd: (error) => this.#tell({ what: 'ended', link: number, error }),
    });
    this.#links.set(number, link);
    this.#ringOf.set(link, { address: options.ring, words });
    return undefined;
  }

  #disconnect(number: number, error: WeftlineError): void {
    const link = this.#links.get(number);
    if (link === undefined) return;
    link.end(error);
    this.#links.delete(number);
    this.#ringOf.delete(link);
    const { endpoint } = link.facts;
    const request = link.mode === 'peer' ? this.#worker.disconnect(endpoint) : this.#worker.finish(endpoint);
    if (request !== 0) this.#closing.push(request);
  }

  #broken(endpoint: number, status: number): void {
    for (const link of this.#links.values()) if (link.facts.endpoint === endpoint) link.break(status);
  }

  #arrived(message: ArrivingMessage): boolean {
    if (message.headerBytes !== ucxMessage.size) return false;
    copyMemory(this.#header.address, message.header, ucxMessage.size);
    const { words } = this.#header;
    const link = this.#links.get(words[at.link] as number);
    if (link === undefined) return false;
    try {
      return link.take(words, message);
    } catch (error) {
      // An exception must not pass through UCX.
      link.end(
        error instanceof WeftlineError
          ? error
          : new WeftlineError('WL_INTERNAL', 'A message broke the link', { cause: error }),
      );
      return false;
    }
  }

  #prepare({ slot, link, operation, parts }: UcxTransferPlan): undefined {
    const job = new Job(operation, parts);
    this.#transfers.set(slot, { job, link: this.#link(link) });
    this.#slotOf.set(job, slot);
    return undefined;
  }

  /** False if the command must wait for a call. */
  #carryOut(command: Command): boolean {
    const { kind, slot, connection } = command;
    if (kind === ucxCommands.post || kind === ucxCommands.cancel) {
      const transfer = this.#transfers.get(slot);
      if (transfer === undefined) return false;
      if (kind === ucxCommands.post) this.#post(transfer, command);
      else transfer.job.stop(new WeftlineError('WL_CLOSED', 'The transfer was cancelled'));
      return true;
    }
    if (kind === ucxCommands.notify) {
      const link = this.#links.get(connection);
      if (link !== undefined) this.#startJob(link, new Job('notify', []), command);
      return true;
    }
    const channel = this.#channels.get(connection);
    if (channel === undefined) return false;
    const job = channel.take(command);
    if (job === undefined) return true;
    this.#channelOf.set(job, channel);
    this.#give(channel.link, job);
    return true;
  }

  #post({ job, link }: HostTransfer, command: Command): void {
    this.#startJob(link, job, command);
  }

  #startJob(link: HostLink, job: Job, { offset, bytes }: Command): void {
    const ring = this.#ringOf.get(link);
    job.start(this.#operation(), (ring?.address ?? 0) + offset, ring === undefined ? 0 : bytes);
    // What lies before the message's end may be written again.
    if (ring !== undefined && bytes > 0) Atomics.store(ring.words, linkWords.ringFree, this.#command.add | 0);
    this.#give(link, job);
  }

  #give(link: HostLink, job: Job): void {
    if (link.error !== undefined) {
      job.stop(link.error);
      job.isPending = false;
      this.#jobEnded(job);
      return;
    }
    link.outgoing.push(job);
  }

  #jobEnded(job: Job): void {
    const channel = this.#channelOf.get(job);
    if (channel !== undefined) {
      this.#channelOf.delete(job);
      const error = channel.ended(job);
      if (error !== undefined)
        this.#tell({ what: 'channelFailed', channel: channel.channel, error: encodeError(error) });
      this.#ring();
      return;
    }
    const slot = this.#slotOf.get(job);
    if (slot === undefined) return;
    const { failure } = job;
    // ORDER: the reason first, so that whoever sees the failure finds it.
    if (failure !== undefined) this.#options.onEvent({ what: 'failed', slot, error: encodeError(failure) });
    this.#requests.finish(slot, failure === undefined, 0);
    this.#ring();
  }

  #closeChannel(number: number): void {
    const channel = this.#channels.get(number);
    channel?.close(new WeftlineError('WL_CLOSED', 'The channel was closed'));
    this.#channels.delete(number);
  }

  #forget(slot: number): boolean {
    const transfer = this.#transfers.get(slot);
    if (transfer === undefined) return true;
    this.#transfers.delete(slot);
    transfer.job.stop(new WeftlineError('WL_CLOSED', 'The transfer was released'));
    if (this.#isDoneWith(transfer)) {
      this.#slotOf.delete(transfer.job);
      return true;
    }
    this.#leavingTransfers.set(slot, transfer);
    return false;
  }

  #release(number: number): boolean {
    const region = this.#regions.get(number);
    if (region === undefined) return true;
    region.isReleased = true;
    if (isUnused(region)) {
      this.#regions.delete(number);
      return true;
    }
    this.#leavingRegions.add(region);
    return false;
  }

  #isDoneWith({ job, link }: HostTransfer): boolean {
    if (job.isPending) return false;
    // A dead process takes no more of what UCX was to hand it through shared memory.
    if (link.error !== undefined && link.mode === 'none') return true;
    return !job.hasSent || (link.outgoing.hasSent(job.sendsAfter) && link.incoming.isDoneWith(job));
  }

  #drain(): void {
    for (const [slot, transfer] of this.#leavingTransfers) {
      // A link that was closed is not stepped any more.
      if (transfer.link.error !== undefined) transfer.link.step();
      if (!this.#isDoneWith(transfer)) continue;
      this.#leavingTransfers.delete(slot);
      this.#slotOf.delete(transfer.job);
      this.#tell({ what: 'drained', kind: 'transfer', number: slot });
    }
    for (const region of this.#leavingRegions) {
      if (!isUnused(region)) continue;
      this.#leavingRegions.delete(region);
      this.#regions.delete(region.number);
      this.#tell({ what: 'drained', kind: 'region', number: region.number });
    }
  }

  #stop(): void {
    const error = new WeftlineError('WL_CLOSED', 'The agent was closed');
    for (const number of this.#links.keys()) this.#disconnect(number, error);
    const end = performance.now() + FAREWELL_MS;
    while (this.#closing.length > 0 && performance.now() < end) {
      this.#worker.progress();
      for (const [index, request] of this.#closing.entries()) {
        if (this.#worker.check(request) !== ucsStatus.inProgress) {
          this.#closing.splice(index, 1);
          break;
        }
      }
    }
  }

  #tell(event: UcxEvent): void {
    this.#options.onEvent(event);
    this.#ring();
  }

  #ring(): void {
    for (const word of this.#options.news) word.ring();
  }
}

function isUnused(region: HostRegion): boolean {
  return region.writes === 0 && region.answers.every((job) => !job.isPending);
}
