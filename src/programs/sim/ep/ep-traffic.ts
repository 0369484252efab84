// How much each simulated rank sends to each host, counted from the choices of its tokens.
import type { EpShape } from './ep-options.ts';
import { makeRouter, type Routing } from './routing.ts';

export interface EpTraffic {
  readonly hosts: number;
  /** Of simulated rank r and host h, at r * hosts + h: tokens that chose an expert there. */
  readonly rows: Int32Array;
  /** Likewise: pairs of such a token and a rank of the host that it needs. */
  readonly places: Int32Array;
  /** Likewise: choices of experts. */
  readonly choices: Int32Array;
}

interface EpTrafficOptions {
  readonly shape: EpShape;
  readonly routing: Routing;
  readonly simulatedRanks: number;
  readonly seed: number;
}

/** Expert e is on rank floor(e / experts per rank). */
export function countTraffic({ shape, routing, simulatedRanks, seed }: EpTrafficOptions): EpTraffic {
  const { hosts, ranksPerHost, tokens, topk, experts } = shape;
  const perRank = experts / (hosts * ranksPerHost);
  const counts = hosts * simulatedRanks * hosts;
  const traffic = {
    hosts,
    rows: new Int32Array(counts),
    places: new Int32Array(counts),
    choices: new Int32Array(counts),
  };
  const { rows, places, choices } = traffic;
  const chosen = new Int32Array(topk);
  const route = makeRouter({ routing, experts, topk, seed });
  // The last token that was counted for a host, or for a rank.
  const hostSeen = new Float64Array(hosts).fill(-1);
  const rankSeen = new Float64Array(hosts * ranksPerHost).fill(-1);
  for (let source = 0; source < hosts * simulatedRanks; source += 1) {
    for (let token = 0; token < tokens; token += 1) {
      route(source, token, chosen);
      const mark = source * tokens + token;
      for (const expert of chosen) {
        const rank = Math.floor(expert / perRank);
        const host = Math.floor(rank / ranksPerHost);
        const at = source * hosts + host;
        choices[at] = choices[at]! + 1;
        if (rankSeen[rank] !== mark) {
          rankSeen[rank] = mark;
          places[at] = places[at]! + 1;
        }
        if (hostSeen[host] !== mark) {
          hostSeen[host] = mark;
          rows[at] = rows[at]! + 1;
        }
      }
    }
  }
  return traffic;
}
