// Runs random EP cases, or the same calls again and again, on two hosts of two ranks each, whose network is bad. Started by `unshare -n`, as root. Argument:
// JSON of what is to be run. Prints what the jobs print, and as its last line what the network did.
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { Impairment } from './impairment.ts';
import { addresses, type Host, TwoHosts } from './two-hosts.ts';

export interface EpTraffic {
  /** Random cases of one of the objects, or repeats of the same calls of both. */
  readonly what: 'buffer' | 'layer' | 'repeats';
  readonly runs: number;
  readonly seed: number;
  readonly impairment: Impairment;
}

const main = fileURLToPath(new URL('../../../../dist/programs/cli/main.js', import.meta.url));
const ranks = (name: string): string => fileURLToPath(new URL(`../../local/ranks/${name}.js`, import.meta.url));
const { what, runs, seed, impairment } = JSON.parse(process.argv[2] ?? '') as EpTraffic;
const PORT = 29_500;
const program =
  what === 'repeats' ? [ranks('ep-repeats'), String(runs)] : [ranks('ep-property'), what, String(runs), String(seed)];

using hosts = await TwoHosts.create(seed);
hosts.network.set(impairment);
const codes = await Promise.all(
  (['here', 'there'] as const).map(async (host: Host, node) => {
    const job = ['run', '-n', '2', '--nnodes', '2', '--node-rank', String(node)];
    const words = [...job, '--master', `${addresses.here}:${PORT}`, ...program];
    const [code] = (await once(hosts.fork(host, main, words), 'exit')) as [number | null];
    return code;
  }),
);
console.log(JSON.stringify(hosts.network.counts));
process.exit(codes.every((code) => code === 0) ? 0 : 1);
