// The messages of each pattern, with sender, receiver and time: pair, incast, permutation and all-to-all.
import { invalidArgument } from '../../core/errors.ts';

export const patternNames = ['pair', 'incast', 'permutation', 'all-to-all'] as const;
export type PatternName = (typeof patternNames)[number];

/** Every pair of hosts has a connection: 128 hosts take 4.6 GB. */
const MAX_ALL_TO_ALL_HOSTS = 128;

export interface TrafficFlow {
  readonly source: number;
  readonly destination: number;
}

export interface TrafficOptions {
  readonly pattern: PatternName;
  readonly hosts: number;
  /** Flows of each pair of a sender and a receiver. */
  readonly flows: number;
  /** Messages of each flow. */
  readonly messages: number;
  /** Messages that a flow offers per microsecond, at random times (Poisson); Infinity offers all at once. */
  readonly messagesPerMicrosecond: number;
  readonly random: () => number;
}

export interface Traffic {
  readonly flows: readonly TrafficFlow[];
  /** When each message is offered, flow-major: message m of flow f is element f * messages + m. Microseconds. */
  readonly offered: Float64Array;
}

export function makeTraffic(options: TrafficOptions): Traffic {
  const { hosts, flows: perHost, messages, messagesPerMicrosecond, random } = options;
  if (hosts < 2) throw invalidArgument('hosts', hosts, 'at least 2');
  if (options.pattern === 'all-to-all' && hosts > MAX_ALL_TO_ALL_HOSTS) {
    throw invalidArgument('hosts of an all-to-all', hosts, `at most ${MAX_ALL_TO_ALL_HOSTS}`);
  }
  const flows = pairsOf(options).flatMap((pair) => Array.from({ length: perHost }, () => pair));
  const offered = new Float64Array(flows.length * messages);
  if (messagesPerMicrosecond === Number.POSITIVE_INFINITY) return { flows, offered };
  for (let flow = 0; flow < flows.length; flow += 1) {
    let time = 0;
    for (let message = 0; message < messages; message += 1) {
      time -= Math.log(1 - random()) / messagesPerMicrosecond;
      offered[flow * messages + message] = time;
    }
  }
  return { flows, offered };
}

function pairsOf({ pattern, hosts, random }: TrafficOptions): TrafficFlow[] {
  switch (pattern) {
    case 'pair':
      return [{ source: 0, destination: 1 }];
    case 'incast':
      return Array.from({ length: hosts - 1 }, (_, source) => ({ source, destination: hosts - 1 }));
    case 'all-to-all':
      // In each turn every host sends to another one.
      return Array.from({ length: hosts - 1 }, (_, turn) => turn + 1).flatMap((step) =>
        Array.from({ length: hosts }, (_, source) => ({ source, destination: (source + step) % hosts })),
      );
    case 'permutation':
    default:
      return cycle(hosts, random).map((destination, source) => ({ source, destination }));
  }
}

/** A random permutation that is one cycle, so that nobody sends to itself (Sattolo's shuffle). */
function cycle(size: number, random: () => number): number[] {
  const order = Array.from({ length: size }, (_, index) => index);
  for (let last = size - 1; last > 0; last -= 1) {
    const other = Math.floor(random() * last);
    const held = order[last]!;
    order[last] = order[other]!;
    order[other] = held;
  }
  return order;
}
