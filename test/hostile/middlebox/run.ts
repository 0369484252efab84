// Runs traffic between two hosts through a network that gets worse from case to case. Started by `unshare -n`, as root.
// Argument: JSON of the cases. Prints one line of JSON for each.
import type { ChildProcess } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { Impairment, ImpairmentCounts } from './impairment.ts';
import type { Traffic, TrafficResult } from './traffic.ts';
import { type Host, TwoHosts } from './two-hosts.ts';
import type { EncodedError } from '#lib/core/errors.js';

export interface MiddleboxCase {
  readonly name: string;
  readonly impairment: Impairment;
  readonly traffic: Traffic;
  readonly timeoutMs: number;
}

export interface MiddleboxOutcome {
  readonly name: string;
  readonly counts: ImpairmentCounts;
  readonly milliseconds: number;
  /** By host. */
  readonly results: Readonly<Partial<Record<Host, TrafficResult>>>;
  readonly error?: string;
}

const script = fileURLToPath(new URL('./traffic.js', import.meta.url));
const cases = JSON.parse(process.argv[2] ?? '[]') as readonly MiddleboxCase[];

type Words = { readonly result?: TrafficResult; readonly error?: EncodedError } | string;

async function run(
  hosts: TwoHosts,
  { name, impairment, traffic, timeoutMs }: MiddleboxCase,
): Promise<MiddleboxOutcome> {
  const before = { ...hosts.network.counts };
  hosts.network.set(impairment);
  const start = performance.now();
  const results: Partial<Record<Host, TrafficResult>> = {};
  const children = (['here', 'there'] as const).map((host) =>
    hosts.fork(host, script, [host, JSON.stringify(traffic)]),
  );
  let through = 0;
  const error = await new Promise<string | undefined>((resolve) => {
    const timer = setTimeout(() => resolve(`it was not through after ${timeoutMs} ms`), timeoutMs);
    const done = (why?: string): void => {
      clearTimeout(timer);
      resolve(why);
    };
    for (const [index, child] of children.entries()) {
      const host = index === 0 ? 'here' : 'there';
      child.on('message', (words: Words) => {
        if (words === 'through') {
          if (++through === children.length) for (const one of children) one.send('end');
        } else if (typeof words !== 'string' && words.error !== undefined) {
          done(`${host}: ${words.error.code} ${words.error.message}\n${words.error.stack}`);
        } else if (typeof words !== 'string' && words.result !== undefined) {
          results[host] = words.result;
          if (results.here !== undefined && results.there !== undefined) done();
        } else (children[1 - index] as ChildProcess).send(words);
      });
      child.once('exit', (code, signal) => {
        if (results[host] === undefined) done(`${host} ended with ${signal ?? code}`);
      });
    }
  });
  for (const child of children) child.kill('SIGKILL');
  const { counts } = hosts.network;
  const differences = Object.entries(counts).map(([key, count]) => [
    key,
    count - before[key as keyof ImpairmentCounts],
  ]);
  return {
    name,
    counts: Object.fromEntries(differences) as ImpairmentCounts,
    milliseconds: performance.now() - start,
    results,
    ...(error === undefined ? {} : { error }),
  };
}

using hosts = await TwoHosts.create(cases[0]?.traffic.seed ?? 1);
for (const one of cases) console.log(JSON.stringify(await run(hosts, one)));
process.exit(0);
