// The device API where kernels are TypeScript: two hosts with their queues, what they refuse, and `weftline 2proc`.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import test, { describe } from 'node:test';
import { fileURLToPath } from 'node:url';
import { CpuDevice, type WeftlineError } from 'weftline';
import { DeviceHost } from 'weftline/device-api';
import type { BackendName } from '#lib/agent/backends/backend-table.js';
import { ProxyService } from '#lib/device-api/service/proxy-service.js';
import { readSettings } from '#lib/settings/settings.js';
import { freePort } from '../support/free-port.ts';
import { until } from '../support/until.ts';
import { sampled } from '../support/extent.ts';

const commandLine = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));

interface Ended {
  readonly code: number | null;
  readonly output: string;
}

interface Running {
  readonly ended: Promise<Ended>;
  /** What it has said so far. */
  output(): string;
  kill(): void;
}

function weftline(...args: readonly string[]): Running {
  return weftlineWith({}, ...args);
}

function weftlineWith(variables: Readonly<Record<string, string | undefined>>, ...args: readonly string[]): Running {
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined, ...variables };
  const child = spawn(process.execPath, [commandLine, ...args], { env, stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => (output += text));
  }
  const ended = new Promise<Ended>((resolve) => child.on('close', (code) => resolve({ code, output })));
  return { ended, output: () => output, kill: () => child.kill('SIGKILL') };
}

async function pair(timeoutMs: number, queueCapacity = 64) {
  const device = await CpuDevice.create({ addressSpaceMiB: 64 });
  const [one, two] = await Promise.all(
    ['one', 'two'].map((name) => DeviceHost.create({ name, device, timeoutMs, queueCapacity, queues: 2 })),
  );
  assert.ok(one !== undefined && two !== undefined);
  const source = await one.allocate(4096);
  const data = await two.allocate(4096);
  const counter = await two.allocate(16);
  const peer = await one.addRemoteAgent(await two.getMetadata());
  const put = await one.createWriteReq({ memory: source }, two.serializeXferDescs({ memory: data, offset: 96 }), peer);
  const signal = await one.createWriteReq({ memory: source }, two.serializeXferDescs({ memory: counter }), peer);
  assert.match(put.path, /^queue, then local: /);
  const handles = { put: await one.createGpuReq(put), signal: await one.createGpuReq(signal) };
  const word = new BigUint64Array(two.view(counter).buffer, two.view(counter).byteOffset, 2);
  const close = async (): Promise<void> => {
    await one[Symbol.asyncDispose]();
    await two[Symbol.asyncDispose]();
  };
  return { one, two, source, data, word, handles, [Symbol.asyncDispose]: close };
}

test('puts and signals come in order, over many laps of a small ring', { timeout: 600_000 }, async () => {
  await using both = await pair(120_000, 4);
  const { one, two, source, data, word, handles } = both;
  one.view(source).set(Uint8Array.from({ length: 4096 }, (_, index) => (index * 7) & 255));
  for (let turn = 0; turn < 500; turn += 1) {
    const range = { source: turn, target: 2 * turn, bytes: 100 };
    one.kernelApi.putWithSignal(
      { request: handles.put, ...range },
      { request: handles.signal, target: 8, add: 3 },
      { channel: 1 },
    );
  }
  await two.kernelApi.wait(word.subarray(1), 1500);
  assert.deepEqual([...word], [0n, 1500n]);
  assert.deepEqual(two.view(data).slice(96 + 998, 96 + 1098), one.view(source).slice(499, 599));
  await one.kernelApi.flush(handles.put);
});

test('ranges outside of memory are refused, and a wait in vain ends', { timeout: 600_000 }, async () => {
  await using both = await pair(2_000);
  const { one, two, word, handles, data } = both;
  const { kernelApi } = one;
  const outside = { code: 'WL_INVALID_ARGUMENT' };
  assert.throws(() => kernelApi.put(handles.put, { target: 3901, source: 0, bytes: 100 }), outside);
  assert.throws(() => kernelApi.put(handles.put, { target: 0, source: 4000, bytes: 97 }), outside);
  assert.throws(() => kernelApi.put(handles.put, { target: 0, source: 0, bytes: 8 }, { remote: 1 }), outside);
  assert.throws(() => kernelApi.signal(handles.signal, { target: 4, add: 1 }), outside);
  assert.throws(() => kernelApi.signal(99, { target: 0, add: 1 }), outside);
  assert.ok(two.view(data).every((byte) => byte === 0));
  await assert.rejects(two.kernelApi.wait(word, 1), {
    code: 'WL_TIMEOUT',
    message: /two waited 2000 ms for a signal \(expected 1, seen 0\)/,
  });
  await assert.rejects(
    one.createWriteReq({ memory: data }, two.serializeXferDescs({ memory: data }), 'three'),
    outside,
  );
  assert.throws(() => two.serializeXferDescs({ memory: data, offset: 4000, bytes: 97 }), outside);
  await assert.rejects(one.createWriteReq({ memory: data }, new Uint8Array(10), 'two'), { code: 'WL_PROTOCOL' });
  await assert.rejects(one.addRemoteAgent(new Uint8Array(10)), { code: 'WL_PROTOCOL' });
});

test('a peer that closes fails what is pushed after, with its name', { timeout: 600_000 }, async () => {
  await using both = await pair(120_000);
  const { one, two, handles } = both;
  await two[Symbol.asyncDispose]();
  await assert.rejects(
    until(async () => {
      one.kernelApi.signal(handles.signal, { target: 0, add: 1 });
      await one.kernelApi.flush(handles.signal);
      return false;
    }),
    (error: { readonly code: string; readonly message: string }) =>
      ['WL_CLOSED', 'WL_PEER_LOST', 'WL_UNAUTHORIZED', 'WL_PEER_FAILED'].includes(error.code),
  );
});

test('a wait that is left behind ends when its host is closed', { timeout: 600_000 }, async () => {
  await using both = await pair(120_000);
  const { two, word, handles } = both;
  const signal = assert.rejects(two.kernelApi.wait(word, 1), { code: 'WL_CLOSED', message: /two was closed/ });
  const cell = assert.rejects(two.kernelApi.waitWord(word, 1), { code: 'WL_CLOSED' });
  await new Promise((resolve) => setImmediate(resolve));
  await two[Symbol.asyncDispose]();
  await Promise.all([signal, cell]);
  assert.throws(() => two.kernelApi.signal(handles.signal, { target: 0, add: 1 }), { code: 'WL_CLOSED' });
});

test('when the thread that serves the queues ends, kernels and calls hear why; when it is closed, they do not', async () => {
  const told: WeftlineError[] = [];
  const settings = readSettings({});
  const options = { name: 'one', settings, token: '', onFailure: (error: WeftlineError) => told.push(error) };
  const ended = new ProxyService({ ...options, backends: ['none' as BackendName] });
  // What ended the thread is the error itself.
  await assert.rejects(ended.call('metadata'), { code: 'WL_UNSUPPORTED', message: /There is no backend "none"/ });
  assert.deepEqual(
    told.map(({ code }) => code),
    ['WL_UNSUPPORTED'],
  );
  await ended[Symbol.asyncDispose]();
  const closed = new ProxyService(options);
  await closed.call('metadata');
  await closed[Symbol.asyncDispose]();
  assert.equal(told.length, 1);
});

// Some wait for most of their time: others go on beside them.
describe('2proc', { concurrency: 2 }, () => {
  test(
    '2proc without a token trusts this user on this host, and nobody who knows its port',
    { timeout: 600_000 },
    async () => {
      const none = { WEFTLINE_TOKEN: undefined };
      for (const mode of ['initiator', 'target']) {
        const { code, output } = await weftlineWith(none, '2proc', '--mode', mode, '--peer-ip', '192.0.2.1').ended;
        assert.notEqual(code, 0);
        assert.match(output, /WL_CONFIG: .*WEFTLINE_TOKEN/, mode);
      }
      const port = String(await freePort());
      const args = ['--device', 'cpu', '--port', port];
      const initiator = weftlineWith(none, '2proc', '--mode', 'initiator', ...args, '--timeout', '15000');
      const guess = { WEFTLINE_TOKEN: `2proc-${port}` };
      const target = weftlineWith(guess, '2proc', '--mode', 'target', ...args, '--timeout', '120000');
      const { code, output } = await target.ended;
      assert.notEqual(code, 0);
      assert.match(output, /WL_UNAUTHORIZED/);
      assert.match((await initiator.ended).output, /WL_TIMEOUT/);
    },
  );

  test('2proc starts both sides and both print the checksum', { timeout: 600_000 }, async () => {
    const { code, output } = await weftline(
      '2proc',
      '--device',
      'cpu',
      '--level',
      'warp',
      '--handles',
      '32',
      '--pipeline',
      '3',
    ).ended;
    assert.equal(code, 0, output);
    for (const line of [
      '[initiator] Data checksum: 44040192',
      '[target] Signal received',
      '[target] Checksum OK: 44040192',
    ]) {
      assert.ok(output.includes(line), output);
    }
  });

  test('2proc goes over the backend that is named', { timeout: 600_000 }, async () => {
    const { code, output } = await weftline('2proc', '--device', 'cpu', '--backend', 'multipath', '--size', '100001')
      .ended;
    assert.equal(code, 0, output);
    assert.match(output, /Path: queue, then multipath/);
    assert.match(output, /\[target\] Checksum OK: 4200042/);
  });

  for (const [first, second] of sampled(
    [
      ['initiator', 'target'],
      ['target', 'initiator'],
    ] as const,
    1,
  )) {
    test(`2proc: the ${first} may start first`, { timeout: 600_000 }, async () => {
      const port = String(await freePort());
      const args = ['--device', 'cpu', '--size', '100001', '--port', port];
      const early = weftline('2proc', '--mode', first, ...args);
      await until(() => early.output().includes('Meeting at'), 'that the first side meets');
      const late = weftline('2proc', '--mode', second, ...args);
      for (const { code, output } of await Promise.all([early.ended, late.ended])) {
        assert.equal(code, 0, output);
        assert.match(output, /4200042\n[^]*Complete\n/);
      }
    });
  }

  test('2proc without its other side ends with a reason', { timeout: 600_000 }, async () => {
    const port = String(await freePort());
    const alone = ['--mode', 'target', '--device', 'cpu', '--port', port, '--timeout', '3000'];
    const { code, output } = await weftline('2proc', ...alone).ended;
    assert.notEqual(code, 0);
    assert.match(output, new RegExp(`WL_\\w+: .*127\\.0\\.0\\.1:${port}`));
    const wrong = await weftline('2proc', '--handles', '32').ended;
    assert.match(wrong.output, /WL_INVALID_ARGUMENT: Invalid --level: expected warp with --handles 32/);
  });
});
