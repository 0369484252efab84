// Which transports and addresses UCX gets: never two kinds of way at once, never copies from another process's memory.
import assert from 'node:assert/strict';
import test from 'node:test';
import { chooseTransports, type UcxSurroundings, type UcxTransports } from '#lib/agent/backends/ucx/ucx-transports.js';

const interfaces = {
  lo: [
    { address: '127.0.0.1', internal: true },
    { address: '::1', internal: true },
  ],
  eth0: [
    { address: '192.0.2.2', internal: false },
    { address: '192.0.2.3', internal: false },
    { address: '2001:db8::2', internal: false },
  ],
};

function choose(
  env: UcxSurroundings['env'],
  host = '127.0.0.1',
  rdmaPorts: readonly string[] = [],
): Readonly<Record<string, string | boolean>> {
  const { config, isMemoryOnly } = chooseTransports({ env, host, rdmaPorts, interfaces });
  return { ...config, memory: isMemoryOnly };
}

test('with nothing set: shared memory alone on loopback, TCP alone at another address, RDMA alone where it is', () => {
  for (const host of ['127.0.0.1', '127.0.0.9', '::1']) {
    assert.deepEqual(choose({}, host), { TLS: 'posix,self', memory: true });
  }
  assert.deepEqual(choose({}, '192.0.2.2'), { TLS: 'tcp,self', NET_DEVICES: 'eth0', memory: false });
  const rdma = { TLS: '^tcp,posix,sysv,cma,knem,xpmem', memory: false };
  for (const host of ['127.0.0.1', '192.0.2.2']) assert.deepEqual(choose({}, host, ['mlx5_0:1']), rdma);
});

test('what the user has set counts, but for copies from the memory of other processes', () => {
  assert.deepEqual(choose({ UCX_TLS: 'tcp,self' }), { TLS: 'tcp,self', NET_DEVICES: 'lo', memory: false });
  assert.deepEqual(choose({ UCX_TLS: 'sysv, self' }), { TLS: 'sysv,self', memory: true });
  assert.deepEqual(choose({ UCX_TLS: 'shm,self' }), { TLS: 'posix,self', memory: true });
  assert.deepEqual(choose({ UCX_TLS: 'rc,sm' }, '192.0.2.2', ['mlx5_0:1']), { TLS: 'rc,posix', memory: false });
  assert.deepEqual(choose({ UCX_TLS: 'all' }, '192.0.2.2', ['mlx5_0:1']), {
    TLS: '^cma,knem,xpmem,sysv',
    NET_DEVICES: 'eth0,mlx5_0:1',
    memory: false,
  });
  assert.deepEqual(choose({ UCX_TLS: '^ud,cma' }), {
    TLS: '^ud,cma,knem,xpmem,sysv',
    NET_DEVICES: 'lo',
    memory: false,
  });
  assert.deepEqual(choose({ UCX_TLS: 'tcp', UCX_NET_DEVICES: 'eth7' }, '192.0.2.3'), { TLS: 'tcp', memory: false });
  for (const named of ['posix,cma,self', '\\cma', 'xpmem:aux,posix', 'knem']) {
    const refusal = { code: 'WL_CONFIG', message: /UCX_TLS: expected a list without cma, knem, xpmem, got .*leave it/ };
    assert.throws(() => choose({ UCX_TLS: named }), refusal, named);
  }
});

test('over TCP the address is that of the host option, or an error', () => {
  const ipv6 = chooseTransports({ env: {}, host: '2001:db8::2', rdmaPorts: [], interfaces });
  assert.equal(ipv6.config['NET_DEVICES'], 'eth0');
  assert.equal(ipv6.tuning['AF_PRIO'], 'inet6');
  assert.throws(() => choose({}, '192.0.2.3'), {
    code: 'WL_CONFIG',
    message: /expected the first address of eth0, 192\.0\.2\.2/,
  });
  assert.throws(() => choose({}, '10.9.9.9'), {
    code: 'WL_CONFIG',
    message: /expected an address of this host: 127\.0\.0\.1 \(lo\), 192/,
  });
  assert.throws(() => choose({ UCX_TLS: 'tcp' }, '0.0.0.0'), {
    code: 'WL_CONFIG',
    message: /UCX cannot listen at 0\.0\.0\.0/,
  });
});

const tuningOf = (env: UcxSurroundings['env'], host: string): UcxTransports['tuning'] =>
  chooseTransports({ env, host, rdmaPorts: [], interfaces }).tuning;

test("settings of transports go to the context, but for the user's own", () => {
  const memory = { MM_ERROR_HANDLING: 'y', MM_SEG_SIZE: '32K', MM_RX_BUFS_GROW: '128' };
  assert.deepEqual(tuningOf({}, '127.0.0.1'), memory);
  assert.deepEqual(tuningOf({ UCX_POSIX_SEG_SIZE: '8K', UCX_MM_RX_BUFS_GROW: '64' }, '127.0.0.1'), {
    MM_ERROR_HANDLING: 'y',
  });
  assert.deepEqual(tuningOf({}, '192.0.2.2'), { RX_SEG_SIZE: '256K', TCP_RX_SEG_SIZE: '256K' });
  assert.deepEqual(tuningOf({ UCX_TCP_RX_SEG_SIZE: '64K' }, '192.0.2.2'), {});
});

function usesDevices(list: string): boolean {
  return chooseTransports({ env: { UCX_TLS: list }, host: '127.0.0.1', rdmaPorts: [], interfaces }).usesDevices;
}

test('devices may move memory on their own over all transports but TCP and shared memory', () => {
  for (const list of ['tcp,self', 'posix,self', 'shm', 'sysv, tcp:aux']) assert.equal(usesDevices(list), false, list);
  for (const list of ['rc,self', 'ib', 'all', '^tcp,posix,sysv', '^ud', 'gdr_copy,tcp']) {
    assert.equal(usesDevices(list), true, list);
  }
});
