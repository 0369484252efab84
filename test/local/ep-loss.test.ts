// EpBuffer and EPAll2AllLayer over hosts whose network loses packets: the same bytes as the references all the same.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { skipWithout } from './support/requirements.ts';
import { testSeed } from '../support/seed.ts';
import { settingsTable } from '#lib/settings/settings.js';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const property = fileURLToPath(new URL('./ranks/ep-property.js', import.meta.url));
const seed = String(testSeed());
const times = Number(process.env['WEFTLINE_TEST_EP'] ?? 1);
const network = 'ip link set lo up gso_max_segs 1 && nft add table ip weftline';
const canIsolate = spawnSync('unshare', ['-n', 'sh', '-c', network]).status === 0;
const skip = skipWithout('namespaces', canIsolate ? undefined : 'needs root, unshare, ip and nft');

/** Lists the rule, with how many packets it has dropped, behind what the job says. */
const script = `${network} && nft 'add chain ip weftline in { type filter hook input priority 0; }' &&
  nft add rule ip weftline in ip protocol udp numgen random mod 100 '< 1' counter drop && "$@"
  status=$?
  nft list chain ip weftline in
  exit $status`;

for (const what of ['buffer', 'layer']) {
  test(`${what}: 1 % of the packets between two hosts of two ranks are lost`, { skip }, () => {
    const job = [process.execPath, main, 'run', '-n', '4', property, what, String(3 * times), seed];
    const { status, stdout, stderr } = spawnSync('unshare', ['-n', 'sh', '-c', script, 'sh', ...job], {
      encoding: 'utf8',
      timeout: 600_000 * times,
      env: {
        ...process.env,
        NODE_TEST_CONTEXT: undefined,
        WEFTLINE_TEST_GROUP: 'all',
        [settingsTable.hosts.env]: '2',
        // So that there are enough packets for some to be lost.
        [settingsTable.transportSegmentBytes.env]: '1472',
      },
    });
    assert.equal(status, 0, `seed ${seed}\n${stdout}${stderr}`);
    assert.match(stdout, /counter packets [1-9]/);
  });
}
