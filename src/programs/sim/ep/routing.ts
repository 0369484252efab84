// Which experts tokens choose: evenly, by Zipf's law, one expert by nearly all, or as a recorded block chose.
import { seededRandom } from '../../../core/seeded-random.ts';

export const routingNames = ['uniform', 'zipf', 'hot', 'recorded'] as const;
export type RoutingName = (typeof routingNames)[number];

/** Choices that a block has made. */
export interface RecordedChoices {
  readonly tokens: number;
  readonly topk: number;
  readonly experts: number;
  /** Of each token, one after the other. */
  readonly chosen: Int32Array;
}

export type Routing =
  | { readonly name: 'uniform' }
  /** The expert of place i, in an order drawn from the seed, is chosen in proportion to (i + 1)^-exponent. */
  | { readonly name: 'zipf'; readonly exponent: number }
  /** This share of the tokens has expert 0 among its choices; the others are even. */
  | { readonly name: 'hot'; readonly share: number }
  | { readonly name: 'recorded'; readonly choices: RecordedChoices };

interface RouterOptions {
  readonly routing: Routing;
  readonly experts: number;
  readonly topk: number;
  readonly seed: number;
}

/** Fills `chosen` with the distinct experts of one token of a rank. */
type Router = (rank: number, token: number, chosen: Int32Array) => void;

/** The same options make the same choices. Tokens must be asked for in order, ranks one after the other. */
export function makeRouter({ routing, experts, topk, seed }: RouterOptions): Router {
  const random = seededRandom(seed ^ 0x2f6e2b1);
  switch (routing.name) {
    case 'recorded':
      return recordedRouter(routing.choices, experts, random);
    case 'hot':
      return (_rank, _token, chosen) => {
        const count = random() < routing.share ? 1 : 0;
        if (count === 1) chosen[0] = 0;
        drawDistinct(chosen, count, topk, () => Math.floor(random() * experts));
      };
    case 'zipf': {
      const draw = zipfDraw(experts, routing.exponent, random);
      return (_rank, _token, chosen) => drawDistinct(chosen, 0, topk, draw);
    }
    case 'uniform':
    default:
      return (_rank, _token, chosen) => drawDistinct(chosen, 0, topk, () => Math.floor(random() * experts));
  }
}

/** Draws again what was drawn before. */
function drawDistinct(chosen: Int32Array, from: number, to: number, draw: () => number): void {
  for (let at = from; at < to;) {
    const expert = draw();
    let isNew = true;
    for (let before = 0; before < at; before += 1) if (chosen[before] === expert) isNew = false;
    if (!isNew) continue;
    chosen[at] = expert;
    at += 1;
  }
}

/** Walker's alias method: two numbers per draw. */
function zipfDraw(experts: number, exponent: number, random: () => number): () => number {
  const order = Int32Array.from({ length: experts }, (_, index) => index);
  for (let last = experts - 1; last > 0; last -= 1) {
    const other = Math.floor(random() * (last + 1));
    const held = order[last]!;
    order[last] = order[other]!;
    order[other] = held;
  }
  const weights = Array.from({ length: experts }, (_, place) => (place + 1) ** -exponent);
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const share = weights.map((weight) => (weight / total) * experts);
  const alias = new Int32Array(experts);
  const small: number[] = [];
  const large: number[] = [];
  for (const [place, value] of share.entries()) (value < 1 ? small : large).push(place);
  while (small.length > 0 && large.length > 0) {
    const [low, high] = [small.pop()!, large.at(-1)!];
    alias[low] = high;
    share[high] = share[high]! - (1 - share[low]!);
    if (share[high] < 1) small.push(large.pop()!);
  }
  for (const place of [...small, ...large]) share[place] = 1;
  return () => {
    const place = Math.floor(random() * experts);
    return order[random() < share[place]! ? place : alias[place]!]!;
  };
}

/**
 * Tokens follow on each other from rank to rank, and begin again at the end. Where there are more experts than the block
 * had, each of its experts stands for as many neighbours, of which one is drawn.
 */
function recordedRouter(recorded: RecordedChoices, experts: number, random: () => number): Router {
  const each = experts / recorded.experts;
  let at = 0;
  return (_rank, _token, chosen) => {
    for (let choice = 0; choice < recorded.topk; choice += 1) {
      const expert = recorded.chosen[at * recorded.topk + choice]!;
      chosen[choice] = expert * each + Math.floor(random() * each);
    }
    at = (at + 1) % recorded.tokens;
  };
}
