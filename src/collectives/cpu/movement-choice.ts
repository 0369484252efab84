// Which movement carries out a call: by the table of algorithms, and by what is possible among these hosts.
import type { Hosts } from '../../group/network/host-routes.ts';
import { type AlgorithmTable, algorithmFor } from '../algorithm-table.ts';
import type { CollectiveCall } from '../collective-call.ts';
import { canChain, ChainMovement, isChainable } from './chain-movement.ts';
import { atOnce, type FixedKind, inShares, type Movement } from './movements.ts';

export class MovementChoice {
  readonly #table: AlgorithmTable;
  readonly #chain: ChainMovement | undefined;

  constructor(table: AlgorithmTable, hosts: Hosts, me: number) {
    this.#table = table;
    if (canChain(hosts)) this.#chain = new ChainMovement(hosts, me);
  }

  /** Hot path. Of a call of a fixed kind. */
  of(call: CollectiveCall, unitBytes: number): Movement {
    const kind = call.kind as FixedKind;
    if (kind !== 'allReduce' && kind !== 'reduce') return atOnce[kind];
    const algorithm = algorithmFor(this.#table[kind], unitBytes);
    if (algorithm === 'oneStep') return atOnce[kind];
    if (algorithm === 'chain' && kind === 'allReduce' && this.#chain !== undefined && isChainable(call))
      return this.#chain;
    return inShares[kind];
  }
}
