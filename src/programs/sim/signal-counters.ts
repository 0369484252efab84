// The counters of a scenario's signals: what they must show, and which writes must lie in their places by then.
import type { ScenarioOperation } from './scenario.ts';
import { type BufferRange, bytesOf, firstWrongByte, type ScenarioBuffers } from './scenario-buffers.ts';
import { counterValue, nameOf, type RunningOperation } from './running-operation.ts';

interface Counter {
  readonly range: BufferRange;
  /** Its signals in order, and what it shows when each has been added. */
  readonly signals: RunningOperation[];
  readonly sums: number[];
  /** How many of them have been seen. */
  seen: number;
}

/** One counter for all signals of a connection's end and flow. */
export class SignalCounters {
  readonly #counters = new Map<string, Counter>();
  readonly #problems: string[];

  constructor(problems: string[]) {
    this.#problems = problems;
  }

  take(operation: ScenarioOperation, buffers: ScenarioBuffers): BufferRange {
    const key = keyOf(operation);
    const known = this.#counters.get(key);
    if (known !== undefined) return known.range;
    const range = buffers.take(8, true);
    bytesOf(range).fill(0);
    this.#counters.set(key, { range, signals: [], sums: [], seen: 0 });
    return range;
  }

  /** Signals must be given in the order of posting. */
  expect(signal: RunningOperation): void {
    const counter = this.#counters.get(keyOf(signal.operation)) as Counter;
    const add = signal.operation.kind === 'signal' ? signal.operation.add : 0;
    counter.sums.push((counter.sums.at(-1) ?? 0) + add);
    counter.signals.push(signal);
  }

  /** A host's counters may have grown: all writes before the signals that they show must be there. */
  look(host: number, operations: readonly RunningOperation[]): void {
    for (const counter of this.#counters.values()) {
      if (counter.signals[0]?.far !== host) continue;
      const value = counterValue(counter.range);
      if (value === (counter.sums[counter.seen - 1] ?? 0)) continue;
      while (counter.seen < counter.signals.length && counter.sums[counter.seen]! <= value) {
        const signal = counter.signals[counter.seen] as RunningOperation;
        counter.seen += 1;
        signal.arrived = true;
        this.#checkWrites(signal, operations);
      }
      const sum = counter.sums[counter.seen - 1] ?? 0;
      if (sum === value) continue;
      this.#problems.push(`host ${host}: a counter shows ${value}, its first ${counter.seen} signals add up to ${sum}`);
    }
  }

  #checkWrites(signal: RunningOperation, operations: readonly RunningOperation[]): void {
    for (const earlier of operations.slice(0, signal.index)) {
      const { operation } = earlier;
      if (operation.kind !== 'write' || operation.badKey || earlier.arrived || earlier.cancelled) continue;
      if (keyOf(operation) !== keyOf(signal.operation)) continue;
      const wrong = firstWrongByte(earlier.target as BufferRange, earlier.index);
      if (wrong === -1) continue;
      this.#problems.push(`${nameOf(signal)}: visible before byte ${wrong} of ${nameOf(earlier)}`);
    }
  }
}

/** Names the end and the flow of an operation. */
export function keyOf({ connection, from, flow }: ScenarioOperation): string {
  return `${connection} ${from} ${flow}`;
}
