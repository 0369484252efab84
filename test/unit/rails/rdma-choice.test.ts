// Tests which RDMA port and address is chosen, over recorded hosts.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { PciDevice } from '#lib/rails/nearest-device.js';
import {
  chooseRdma,
  railOfGpu,
  type RdmaChoice,
  type RdmaDevice,
  type RdmaGid,
  type RdmaHost,
  type RdmaPort,
  type RdmaSettings,
  whyTooFar,
} from '#lib/rails/rdma-choice.js';
import { readSettings, WeftlineError } from 'weftline';

const defaults: RdmaSettings = readSettings({}, {});
const IPV4 = '0000:0000:0000:0000:0000:ffff:';

function port(number: number, gids: readonly RdmaGid[], changed: Partial<RdmaPort['attributes']> = {}): RdmaPort {
  return {
    number,
    gids,
    attributes: {
      state: 'active',
      maxMtuBytes: 4096,
      activeMtuBytes: 4096,
      gidTblLen: 256,
      portCapFlags: 0,
      maxMsgSz: 2 ** 30,
      lid: 0,
      smLid: 0,
      lmc: 0,
      maxVlNum: 'VL0',
      smSl: 0,
      activeWidth: 4,
      activeSpeed: '100 Gbit/s per lane (NDR)',
      gigabitsPerSecond: 400,
      physState: 'link up',
      linkLayer: 'Ethernet',
      ...changed,
    },
  };
}

/** As a ConnectX port with one IPv4 address lists them. */
function usualGids(last: string): readonly RdmaGid[] {
  const link = 'fe80:0000:0000:0000:c670:bdff:fe00:1fc8';
  return [
    { index: 0, gid: link, type: 'RoCE v1', interface: 'eth0' },
    { index: 1, gid: link, type: 'RoCE v2', interface: 'eth0' },
    { index: 2, gid: `${IPV4}${last}`, type: 'RoCE v1', interface: 'eth0' },
    { index: 3, gid: `${IPV4}${last}`, type: 'RoCE v2', interface: 'eth0' },
  ];
}

function pci(address: string, ...above: string[]): PciDevice {
  return { address, path: [...above, address], numaNode: above[0] === 'pci0000:80' ? 1 : 0 };
}

/** The host of the notebook: mlx5_0 is down, mlx5_1 works. */
const notebook: RdmaHost = {
  devices: [
    { name: 'mlx5_0', ports: [port(1, usualGids('0a16:74dc'), { state: 'down', physState: 'disabled' })] },
    { name: 'mlx5_1', ports: [port(1, usualGids('0a16:74dd'), { gigabitsPerSecond: 100 })] },
  ],
  gpus: [],
  interfaces: [{ name: 'enp61s0f1np1', addresses: ['10.22.116.221'] }],
};

const fast: RdmaDevice = {
  name: 'mlx5_2',
  ports: [port(1, usualGids('0a00:0002'))],
  device: pci('0000:81:00.0', 'pci0000:80', '0000:80:01.0'),
};
const alike: RdmaDevice = {
  name: 'mlx5_10',
  ports: [port(1, usualGids('0a00:000a'))],
  device: pci('0000:01:00.0', 'pci0000:00', '0000:00:01.0'),
};
const slow: RdmaDevice = { name: 'bnxt_re0', ports: [port(1, usualGids('0a00:0001'), { gigabitsPerSecond: 25 })] };
const pair: RdmaHost = {
  devices: [slow, fast, alike],
  gpus: [pci('0000:02:00.0', 'pci0000:00', '0000:00:01.0'), pci('0000:82:00.0', 'pci0000:80', '0000:80:02.0')],
  interfaces: [],
};

function choose(host: RdmaHost, settings: Partial<RdmaSettings> = {}): RdmaChoice {
  return chooseRdma(host, { ...defaults, ...settings });
}

function names({ rails }: RdmaChoice): string[] {
  return rails.map((rail) => `${rail.name}:${rail.port}`);
}

function fails(host: RdmaHost, settings: Partial<RdmaSettings>, message: RegExp): void {
  assert.throws(
    () => choose(host, settings),
    (error) => error instanceof WeftlineError && error.code === 'WL_CONFIG' && message.test(error.message),
  );
}

test('a port that is down is passed over, and the address is that of RoCE v2 with IPv4', () => {
  const choice = choose(notebook);
  assert.deepEqual(names(choice), ['mlx5_1:1']);
  assert.equal(choice.reason, 'the only port that can be used');
  assert.equal(choice.rails[0]?.gid.index, 3);
  assert.equal(choice.rails[0].gidReason, 'RoCE v2, IPv4');
  assert.deepEqual(choice.others, [{ name: 'mlx5_0', port: 1, reason: 'its state is down (disabled)' }]);
});

test('the fastest port is first; among equals the first by name', () => {
  const choice = choose(pair);
  assert.deepEqual(names(choice), ['mlx5_2:1', 'mlx5_10:1', 'bnxt_re0:1']);
  assert.equal(choice.reason, 'the first by name of the fastest ports that can be used');
  assert.equal(choose(pair, { rdmaDevices: 'bnxt,mlx5_2' }).reason, 'the fastest port that can be used');
});

test('each GPU has the nearest device', () => {
  const [first, second] = choose(pair).gpus;
  assert.deepEqual([first?.rail, first?.distance?.relation], ['mlx5_10', 'same PCI switch']);
  assert.deepEqual([second?.rail, second?.distance?.relation], ['mlx5_2', 'same PCI root']);
  assert.deepEqual(choose({ ...pair, devices: [slow] }).gpus, [{ gpu: '0000:02:00.0' }, { gpu: '0000:82:00.0' }]);
});

test('lists of devices: beginnings, exact names, exclusions, ports', () => {
  const two = {
    ...pair,
    devices: [
      ...pair.devices,
      { name: 'mlx5_3', ports: [port(1, usualGids('0a00:0003')), port(2, usualGids('0a00:0004'))] },
    ],
  };
  const cases: readonly (readonly [string, readonly string[]])[] = [
    ['mlx5', ['mlx5_2:1', 'mlx5_10:1', 'mlx5_3:1', 'mlx5_3:2']],
    ['=mlx5_10', ['mlx5_10:1']],
    ['bnxt_re0, mlx5_10', ['mlx5_10:1', 'bnxt_re0:1']],
    ['^mlx5', ['bnxt_re0:1']],
    ['^=mlx5_3,bnxt_re0', ['mlx5_2:1', 'mlx5_10:1']],
    ['mlx5_3:2', ['mlx5_3:2']],
    ['^mlx5_3:1', ['mlx5_2:1', 'mlx5_10:1', 'mlx5_3:2', 'bnxt_re0:1']],
  ];
  for (const [rdmaDevices, expected] of cases)
    assert.deepEqual(names(choose(two, { rdmaDevices })), expected, rdmaDevices);
  const { others } = choose(two, { rdmaDevices: '^mlx5_3' });
  assert.deepEqual(
    others.map(({ reason }) => reason),
    Array.from({ length: 2 }, () => 'the setting rdmaDevices excludes it'),
  );
  assert.deepEqual(names(choose(two, { rdmaPort: 2 })), ['mlx5_3:2']);
});

function hostWith(gids: readonly RdmaGid[], changed: Partial<RdmaPort['attributes']> = {}): RdmaHost {
  return { devices: [{ name: 'x', ports: [port(1, gids, changed)] }], gpus: [], interfaces: [] };
}

function v2(index: number, gid: string): RdmaGid {
  return { index, gid, type: 'RoCE v2' };
}

test('a GID by its index; other kinds of addresses', () => {
  assert.deepEqual(choose(notebook, { rdmaGidIndex: '2' }).rails[0]?.gid, usualGids('0a16:74dd')[2]);
  const link = v2(0, 'fe80:0000:0000:0000:0200:00ff:fe00:0000');
  const loopback = v2(1, `${IPV4}7f00:0001`);
  const ipv6 = v2(2, 'fd00:0000:0000:0000:0000:0000:0000:0001');
  const reasons = [
    [[link, loopback, ipv6], 2, 'RoCE v2, IPv6'],
    [[link, loopback], 1, 'RoCE v2, IPv4 of the loopback device'],
    [[link], 0, 'RoCE v2, IPv6 that holds on its own link only'],
  ] as const;
  for (const [gids, index, reason] of reasons) {
    const [rail] = choose(hostWith(gids)).rails;
    assert.deepEqual([rail?.gid.index, rail?.gidReason], [index, reason]);
  }
  assert.equal(choose(hostWith([])).others[0]?.reason, 'it has no GID: give its network interface an address');
  assert.equal(
    choose(hostWith(usualGids('0a00:0001').filter(({ type }) => type === 'RoCE v1'))).others[0]?.reason,
    'it has no GID of RoCE v2',
  );
  const infiniband = hostWith([{ index: 0, gid: 'fe80:0000:0000:0000:0002:c903:0000:0001', type: 'InfiniBand' }], {
    linkLayer: 'InfiniBand',
  });
  assert.equal(choose(infiniband).rails[0]?.gidReason, 'the first of an InfiniBand port');
});

test('a GID that only some ports have leaves the others unused', () => {
  const some: RdmaHost = { ...hostWith([v2(0, 'fd00:1')]), devices: [...hostWith([v2(0, 'fd00:1')]).devices, fast] };
  const { rails, others } = choose(some, { rdmaGidIndex: '3' });
  assert.deepEqual(
    rails.map(({ name, gid }) => [name, gid.index]),
    [['mlx5_2', 3]],
  );
  assert.deepEqual(others, [{ name: 'x', port: 1, reason: 'it has no GID 3' }]);
});

test('one interface for control, and devices that cannot be opened', () => {
  assert.equal(choose(notebook).control, undefined);
  assert.deepEqual(choose(notebook, { rdmaControlInterface: 'enp61s0f1np1' }).control, notebook.interfaces[0]);
  const shut = { ...notebook, devices: [{ name: 'mlx5_7', problem: 'EACCES', ports: [] }] };
  assert.deepEqual(choose(shut).others, [{ name: 'mlx5_7', reason: 'EACCES' }]);
});

test('settings that name what the host does not have are refused with what it has', () => {
  fails(
    notebook,
    { rdmaDevices: 'rxe' },
    /WEFTLINE_RDMA_DEVICES\): expected devices of this host, not "rxe", got "rxe"\. This host has mlx5_0, mlx5_1$/,
  );
  fails(notebook, { rdmaDevices: 'mlx5_0,,' }, /names of devices with commas/);
  fails(notebook, { rdmaDevices: 'mlx5_0:one' }, /a name and a port, not "mlx5_0:one"/);
  fails(
    notebook,
    { rdmaGidIndex: '9' },
    /an index of mlx5_1 port 1, got "9"\. This host has mlx5_1 port 1 with 0 \(fe80:/,
  );
  fails(
    pair,
    { rdmaGidIndex: '9' },
    /bnxt_re0 port 1 with 0 \(fe80.*; mlx5_2 port 1 with 0 .*; mlx5_10 port 1 with 0 /,
  );
  const without: RdmaHost = { devices: [], gpus: [], interfaces: [] };
  fails(
    without,
    { rdmaGidIndex: 'v2' },
    /expected a whole number, the index of a GID, got "v2"\. This host has no RDMA/,
  );
  fails(notebook, { rdmaControlInterface: 'eth7' }, /This host has enp61s0f1np1$/);
});

test('memory of a GPU goes by the nearest of the fastest ports, each GPU by another where they are equally near', () => {
  const { rails } = chooseRdma({ devices: [fast, alike, slow], gpus: [], interfaces: [] }, defaults);
  const gpus = [pci('0000:02:00.0', 'pci0000:00', '0000:00:01.0'), pci('0000:82:00.0', 'pci0000:80', '0000:80:01.0')];
  assert.deepEqual(
    gpus.map(({ address }) => railOfGpu(rails, address, gpus)?.name),
    ['mlx5_10', 'mlx5_2'],
  );
  const [near] = gpus;
  const besides = { ...alike, name: 'mlx5_11' };
  const both = chooseRdma({ devices: [alike, besides], gpus: [], interfaces: [] }, defaults).rails;
  const two = [near!, pci('0000:03:00.0', 'pci0000:00', '0000:00:01.0')];
  assert.deepEqual(
    two.map(({ address }) => railOfGpu(both, address, two)?.name),
    ['mlx5_10', 'mlx5_11'],
  );
  assert.equal(railOfGpu(rails, '0000:ff:00.0', gpus)?.name, rails[0]?.name, 'one that nobody knows takes the first');
  assert.equal(railOfGpu([], near!.address, gpus), undefined);
});

test('a GPU and a device on different NUMA nodes are too far apart; those of which nobody knows it are not', () => {
  const [rail] = chooseRdma({ devices: [fast], gpus: [], interfaces: [] }, defaults).rails;
  const far = pci('0000:02:00.0', 'pci0000:00', '0000:00:01.0');
  assert.match(whyTooFar(rail!, far) ?? '', /^mlx5_2 is on NUMA node 1 and the GPU on 0, .*WEFTLINE_RDMA_DEVICES/);
  assert.equal(whyTooFar(rail!, pci('0000:82:00.0', 'pci0000:80', '0000:80:01.0')), undefined);
  assert.equal(whyTooFar(rail!, { ...far, numaNode: undefined }), undefined);
  assert.equal(whyTooFar(rail!, undefined), undefined);
});
