// In the guest: "weftline doctor --rdma" as a program.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { RdmaExamination } from '#lib/programs/doctor/rdma-examination.js';
import { rdmaReport } from '#lib/programs/report/rdma-report.js';

const main = fileURLToPath(new URL('../../../../dist/programs/cli/main.js', import.meta.url));

test('weftline doctor --rdma shows devices, ports and addresses, and chooses', () => {
  const words = [main, 'doctor', '--rdma', '--json', '--rdma-devices', '^rxe1', '--rdma-control-interface', 'veth0'];
  const { stdout, stderr, status } = spawnSync(process.execPath, words, { encoding: 'utf8' });
  assert.equal(status, 0, stderr);
  const examination = JSON.parse(stdout) as RdmaExamination;
  assert.ok(examination.rdmaReady);
  assert.deepEqual(
    examination.devices.map(({ name, ports }) => [name, ports.length]),
    [
      ['rxe0', 1],
      ['rxe1', 1],
    ],
  );
  const [rail, ...more] = examination.choice?.rails ?? [];
  assert.equal(more.length, 0);
  assert.deepEqual(
    [rail?.name, rail?.port, rail?.gid.interface, rail?.gidReason],
    ['rxe0', 1, 'veth0', 'RoCE v2, IPv4'],
  );
  assert.deepEqual(examination.choice?.others, [
    { name: 'rxe1', port: 1, reason: 'the setting rdmaDevices excludes it' },
  ]);
  assert.deepEqual(examination.choice?.control?.addresses.at(0), '10.77.0.1');
  const text = rdmaReport(examination);
  for (const line of [
    /max_qp_init_rd_atom\s+│ 128/,
    /link_layer\s+│ Ethernet/,
    /GID 1\s+│ 0000:0000:0000:0000:0000:ffff:0a4d:0001, RoCE v2, veth0/,
    /^Used: rxe0 port 1 \(.* Gbit\/s, MTU \d+\): the only port that can be used\.$/m,
    /^Not used: rxe1 port 1: the setting rdmaDevices excludes it\.$/m,
    /^Peers meet over veth0 \(10\.77\.0\.1/m,
  ])
    assert.match(text, line);
});
