// The two calls of a rank that has peers on other hosts, as they go over the network; what the rows are is the caller's.
import type { CountExchange } from '../../group/exchange.ts';
import type { CallWait } from '../../core/deadline.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { HostExchange } from './host-exchange.ts';
import { SumReceiver, SumSender, type SumShape, type SumTokens } from './host-sums.ts';
import type { RoutedTokens } from './routed-tokens.ts';
import { type ForwardedCall, RowForwarder } from './row-forwarder.ts';
import { hasMetadata, type OutgoingRows, queueRows } from './send-rows.ts';

/** Tokens whose rows a rank moves within its host before it looks at the network again. */
const SLICE_TOKENS = 64;

interface HostDispatch extends Pick<ForwardedCall, 'rowBases' | 'spread'> {
  readonly routed: RoutedTokens;
  readonly rows: OutgoingRows;
  readonly numTokens: number;
  /** Moves the rows of these tokens to the ranks of this host. */
  readonly moveLocal: (first: number, count: number) => void;
}

interface HostCombine extends SumShape {
  readonly routed: RoutedTokens;
  readonly numTokens: number;
  /** The exchange that the call was announced with. */
  readonly counts: CountExchange;
  /** Of this host's rows of tokens that came through this rank. */
  readonly sumRows: SumTokens;
  readonly sumWeights: SumTokens;
  /** Adds up this rank's own tokens [first, first + count): all rows of them are here. */
  readonly addUp: (first: number, count: number) => void;
}

export class HostCalls {
  readonly #device: CpuDevice;
  readonly #exchange: HostExchange;
  readonly #forwarders: readonly RowForwarder[];
  readonly #senders: readonly SumSender[];
  readonly #receivers: readonly SumReceiver[];

  constructor(device: CpuDevice, exchange: HostExchange) {
    this.#device = device;
    this.#exchange = exchange;
    this.#forwarders = exchange.served.map((_, slot) => new RowForwarder(device, exchange, slot));
    this.#senders = exchange.served.map((_, slot) => new SumSender(exchange, slot));
    this.#receivers = exchange.ways.map((_, way) => new SumReceiver(exchange, way));
  }

  /**
   * Sends the rows that go to other hosts, moves those of this one slice by slice, and forwards what comes from others.
   * Returns when nothing of the call is under way to or from this rank.
   */
  async dispatch(
    { routed, rows, rowBases, spread, numTokens, moveLocal }: HostDispatch,
    wait: CallWait,
  ): Promise<void> {
    const exchange = this.#exchange;
    const forwarders = this.#forwarders;
    const { network, served } = exchange;
    if (!network.hasMemory(this.#device.memory.buffer.byteLength)) await this.#useMemory(wait);
    const { rowBytes, withPlaces } = rows;
    for (const [slot, forwarder] of forwarders.entries()) {
      const list = routed.served[slot]!;
      const choices = routed.choices?.served[slot];
      const about = { rowBytes, withPlaces, rowBases, spread, hasMetadata: hasMetadata(rows, list, choices) };
      forwarder.begin({ ...about, list, choices });
    }
    traceBegin('ep.dispatch.network');
    traceBegin('ep.dispatch.queue');
    queueRows(this.#device, exchange, routed, rows);
    traceEnd('ep.dispatch.queue');
    for (let first = 0; first < numTokens; first += SLICE_TOKENS) {
      network.advance();
      traceBegin('ep.dispatch.local');
      moveLocal(first, Math.min(SLICE_TOKENS, numTokens - first));
      traceEnd('ep.dispatch.local');
      for (const forwarder of forwarders) forwarder.step();
    }
    const isDone = (): boolean => {
      let all = true;
      for (const forwarder of forwarders) {
        forwarder.step();
        all &&= forwarder.isDone;
      }
      return all && network.isDelivered;
    };
    const awaits = (peer: number): boolean =>
      served.some(({ rank }, slot) => rank === peer && !forwarders[slot]!.isDone);
    await network.until({ isDone, awaits, describe: () => this.#describe(forwarders) }, wait);
    traceEnd('ep.dispatch.network');
  }

  /**
   * Behind the barrier that makes the rows of this host's ranks readable: sums those of tokens of other hosts and sends
   * them back, and has this rank's own tokens added up. Returns when nothing is under way to or from this rank.
   */
  async combine(call: HostCombine, wait: CallWait): Promise<void> {
    const exchange = this.#exchange;
    const receivers = this.#receivers;
    const { network, served, ways } = exchange;
    const { routed, numTokens, counts, rowBytes, weightBytes, sumRows, sumWeights } = call;
    if (!network.hasMemory(this.#device.memory.buffer.byteLength)) await this.#useMemory(wait);
    traceBegin('ep.combine.network');
    for (const [slot, sender] of this.#senders.entries()) {
      const hasEntered = (): boolean => exchange.hasEntered(counts, slot);
      sender.begin({ rowBytes, weightBytes, list: routed.served[slot]!, hasEntered, sumRows, sumWeights });
    }
    for (const [way, receiver] of receivers.entries()) receiver.begin(routed.sent[way]!);
    let added = 0;
    const isDone = (): boolean => {
      let all = true;
      for (const sender of this.#senders) {
        while (sender.step()) network.advance();
        all &&= sender.isDone;
      }
      let ready = numTokens;
      for (const receiver of receivers) ready = Math.min(ready, receiver.step(numTokens));
      if (ready > added) {
        traceBegin('ep.combine.own-sums');
        call.addUp(added, ready - added);
        traceEnd('ep.combine.own-sums');
      }
      added = Math.max(added, ready);
      for (const receiver of receivers) {
        receiver.free(added);
        all &&= receiver.isDone;
      }
      return all && network.isDelivered;
    };
    const senders = this.#senders;
    const awaits = (peer: number): boolean =>
      served.some(({ rank }, slot) => rank === peer && !senders[slot]!.isDone) ||
      ways.some(({ forwarder }, way) => forwarder === peer && !receivers[way]!.isDone);
    await network.until({ isDone, awaits, describe: () => this.#describe([...receivers, ...senders]) }, wait);
    traceEnd('ep.combine.network');
  }

  /** The record of this call was put from the memory as it was registered before. */
  async #useMemory(wait: CallWait): Promise<void> {
    await this.#exchange.settle(wait);
    await this.#exchange.network.useMemory();
  }

  #describe(parts: readonly { describe(): string | undefined }[]): string {
    const missing = parts.flatMap((part) => part.describe() ?? []);
    if (missing.length === 0) return this.#exchange.describeUndelivered();
    return `Rank ${this.#exchange.network.group.worldRank} did not get ${missing.join('; ')} from other hosts`;
  }
}
