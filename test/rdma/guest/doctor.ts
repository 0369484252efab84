// In the guest: what "weftline doctor --rdma" finds. The command itself would take the guest most of a minute to load.
import assert from 'node:assert/strict';
import test from 'node:test';
import { thisMachine, examineRdma } from '#lib/programs/doctor/doctor.js';
import { rdmaView } from '#lib/programs/cli/doctor-command.js';
import { viewText } from '#lib/programs/report/view.js';

test('weftline doctor --rdma shows devices, ports and addresses, and chooses', () => {
  const env = { WEFTLINE_RDMA_DEVICES: '^rxe1', WEFTLINE_RDMA_CONTROL_INTERFACE: 'veth0' };
  const examination = examineRdma({ ...thisMachine(), env });
  assert.ok(examination.rdmaReady);
  assert.deepEqual(
    examination.devices.map(({ name, ports }) => [name, ports.length]),
    [
      ['rxe0', 1],
      ['rxe1', 1],
    ],
  );
  assert.match(examination.devices[0]?.dmabufProblem ?? '', /^the driver of rxe0, or the kernel, registers no dmabuf$/);
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
  const text = viewText(rdmaView(examination));
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
