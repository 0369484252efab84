// The rules of congestion control by name. A new one is a file of its own and a line here: settings, commands, simulator
// and the tests that all rules pass take their names from this table.
import type { CongestionRule } from './congestion.ts';
import { cubic } from './cubic.ts';
import { eqds, fixed, none } from './fixed-window.ts';
import { swift } from './swift.ts';
import { timely, timelyUccl } from './timely.ts';

export const congestionRules = {
  swift,
  timely,
  'timely-uccl': timelyUccl,
  cubic,
  eqds,
  fixed,
  none,
} as const satisfies Record<string, CongestionRule>;

export type CongestionName = keyof typeof congestionRules;

export const congestionNames = Object.keys(congestionRules) as readonly CongestionName[];

/** "swift (by delay), …", for descriptions of the setting. */
export const congestionSummary: string = Object.entries(congestionRules)
  .map(([name, { summary }]) => `${name} (${summary})`)
  .join(', ');
