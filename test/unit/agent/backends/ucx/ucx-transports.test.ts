// Tests which transports the backend ucx lets UCX use, and what it refuses.
import assert from 'node:assert/strict';
import test from 'node:test';
import { chooseTransports, ucxSettings } from '#lib/agent/backends/ucx/ucx-context.js';
import { readSettings } from 'weftline';
import { withCode } from '../../../../support/with-code.ts';

test('only reliable connections of RDMA devices are used, whatever else UCX_TLS names', () => {
  for (const [said, chosen] of [
    [undefined, 'rc,dc'],
    ['all', 'rc,dc'],
    ['^tcp,cma', 'rc,dc'],
    ['^dc', 'rc'],
    ['rc', 'rc'],
    ['rc_v,self', 'rc_v'],
    ['rc_verbs,ud_verbs,tcp', 'rc_v'],
    ['\\rc_mlx5, sm', 'rc_x'],
    ['ib', 'rc'],
    ['dc_x,rc_x,dc_x', 'dc_x,rc_x'],
  ] as const) {
    assert.equal(chooseTransports(said), chosen);
  }
});

test('a list without any is refused, with the backends to take instead', () => {
  for (const said of ['tcp', 'posix,self', 'ud', 'cma', '^rc,dc', '']) {
    assert.throws(() => chooseTransports(said), withCode('WL_UNSUPPORTED', /rc, dc.*local.*multipath/));
  }
});

test('the port is that of the settings, unless variables of UCX say otherwise', () => {
  const gid = { index: 3, gid: 'fe80::1', type: 'RoCE v2' };
  const rail = { name: 'mlx5_1', port: 2, gid, gidReason: '', gigabitsPerSecond: 100, mtuBytes: 4096 };
  const settings = readSettings({ rdmaTrafficClass: 104 });
  const chosen = ucxSettings(rail, settings, {});
  assert.deepEqual(chosen, {
    TLS: 'rc,dc',
    NET_DEVICES: 'mlx5_1:2',
    IB_GID_INDEX: '3',
    IB_TRAFFIC_CLASS: '104',
    IB_PCI_RELAXED_ORDERING: 'n',
    PCI_RELAXED_ORDERING: 'n',
    RC_TIMEOUT: '250ms',
    RC_RETRY_COUNT: '6',
    ATOMIC_MODE: 'device',
  });
  const env = { UCX_NET_DEVICES: 'mlx5_0:1', UCX_IB_GID_INDEX: '1' };
  const others = ucxSettings(rail, settings, env);
  assert.deepEqual([others['NET_DEVICES'], others['IB_GID_INDEX']], [undefined, undefined]);
});
