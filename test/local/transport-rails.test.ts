// Connections over one to three rails, each a pair of interfaces between two network namespaces, with one to four engines:
// traffic of every kind goes on while a rail is cut, comes back, and loses packets.
import assert from 'node:assert/strict';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { HostStatistics } from '#lib/transport/host/connection.js';
import { railAddress, TwoMachines, whyNotTwoMachines } from '../support/two-machines.js';
import { skipWithout } from './support/requirements.js';
import { isWhole } from '../support/extent.ts';

const script = fileURLToPath(new URL('./support/rail-traffic.js', import.meta.url));
const options = { skip: skipWithout('namespaces', whyNotTwoMachines()), timeout: 600_000 };
const token = { WEFTLINE_TOKEN: 'two-machines' };
const PER_CENT_LOST = 5;
/** How long all of a connection's rails are down if there is but one. */
const DARK_MS = 300;
/** How long they are up until they go down again, if nobody has noticed. */
const LIGHT_MS = 2_000;

function inLight(): Promise<boolean> {
  return new Promise((resolve) => setTimeout(() => resolve(false), LIGHT_MS));
}

for (const rails of [1, 2, 3]) {
  // The gate has each number of rails and of engines once.
  for (const transportEngines of isWhole ? [1, 2, 4] : [[1, 2, 4][rails - 1]!]) {
    const transportSpread = transportEngines === 2 ? 'split' : 'turn';
    const how = `${rails} rails, ${transportEngines} engines, ${transportSpread}`;
    test(`traffic goes on while a rail is cut, comes back and loses packets: ${how}`, options, async () => {
      using two = await TwoMachines.create({ rails });
      const last = `weft${rails - 1}`;
      // Loss then hits single packets, as on a wire.
      for (const machine of ['a', 'b'] as const) {
        for (let rail = 0; rail < rails; rail += 1) two.run(machine, `ip link set weft${rail} gso_max_segs 1`);
      }
      const start = (machine: 'a' | 'b', role: string, ...words: string[]) => {
        const transportRails = Array.from({ length: rails }, (_, rail) => railAddress(machine, rail)).join();
        const settings = { transportRails, transportEngines, transportSpread, transportPaths: 2 * rails };
        return two.start(machine, [script, role, JSON.stringify(settings), railAddress('a', 0), ...words], token);
      };
      const listener = start('a', 'listen');
      const port = await listener.said(/^port (\d+)\./m);
      const caller = start('b', 'call', port[1] as string);
      await caller.said('all is well.');
      if (rails > 1) {
        two.run('a', `ip link set ${last} down`);
        await caller.said('a rail is dead.');
      } else {
        // Nobody can say so in the dark. On a busy machine nothing may be sent while it lasts: then it comes again.
        const noticed = caller.said('a rail is dead.').then(() => true);
        do {
          two.run('a', `ip link set ${last} down`);
          await new Promise((resolve) => setTimeout(resolve, DARK_MS));
          two.run('a', `ip link set ${last} up`);
        } while (!(await Promise.race([noticed, inLight()])));
      }
      two.run('a', `ip link set ${last} up`);
      await caller.said('all rails live.');
      two.run(
        'a',
        `nft 'add table ip weftline; add chain ip weftline in { type filter hook input priority 0; };
        add rule ip weftline in iifname ${last} ip protocol udp numgen random mod 100 < ${PER_CENT_LOST} drop'`,
      );
      const [here, there] = await Promise.all([caller.ended, listener.ended]);
      assert.equal(here.code, 0, here.stderr);
      assert.equal(there.code, 0, there.stderr);
      const { connection, lanes } = JSON.parse(here.stdout.trim().split('\n').at(-1) as string) as HostStatistics;
      assert.equal(lanes.length, transportEngines);
      assert.ok(connection.paths.every(({ alive, sentSegments }) => alive && sentSegments > 0));
      for (const { paths } of lanes.map((lane) => lane.connection)) assert.equal(paths.length % rails, 0);
    });
  }
}
