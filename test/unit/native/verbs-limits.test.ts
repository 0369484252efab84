// What verbs says on a machine without RDMA, and of limits that are reached.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import { type FileProbe, localFiles } from '#lib/native/file-probe.js';
import { VerbsContext } from '#lib/native/verbs/context.js';
import { type DeviceAttributes, refusalOf, requireWithin } from '#lib/native/verbs/facts.js';

const [EINVAL, ENOMEM] = [22, 12];
const attributes = { maxQp: 100, maxMr: 8 } as DeviceAttributes;

function machine(limit: string, pinnedKiB: number): FileProbe {
  const files: Readonly<Record<string, string>> = {
    '/proc/self/limits': `Max locked memory         ${limit}            ${limit}            bytes\n`,
    '/proc/self/status': `VmLck:\t       0 kB\nVmPin:\t${pinnedKiB} kB\n`,
  };
  return { ...localFiles(), readText: (path) => files[path] };
}

function refusal(held: number, bytes: number, files: FileProbe, result = -ENOMEM): WeftlineError {
  const request = {
    call: 'ibv_reg_mr',
    what: 'registering memory',
    device: 'mlx5_0',
    attributes,
    limit: 'maxMr',
  } as const;
  return refusalOf({ ...request, held, bytes }, result, files);
}

test('a device that is not there is unsupported', () => {
  assert.throws(
    () => VerbsContext.open('no-such-device'),
    (error) => error instanceof WeftlineError && error.code === 'WL_UNSUPPORTED',
  );
});

test('a limit that is reached is named, with how to raise it', () => {
  const full = refusal(8, 64, machine('unlimited', 0));
  assert.equal(full.code, 'WL_CAPACITY');
  assert.match(
    full.message,
    /ENOMEM: registering memory on mlx5_0: this process has all 8 that the device offers \(max_mr\)/,
  );
  const locked = refusal(1, 65_536, machine('8388608', 8192));
  assert.equal(locked.code, 'WL_CAPACITY');
  assert.match(
    locked.message,
    /\(RLIMIT_MEMLOCK\) is 8 MiB, of which 8 MiB are in use: raise it with "ulimit -l unlimited"/,
  );
  const other = refusal(1, 65_536, machine('unlimited', 0));
  assert.match(
    other.message,
    /other processes may hold part of the 8 .*limit of locked memory is unlimited, or memory is short$/,
  );
});

test('what is no limit stays what it is', () => {
  const wrong = refusal(8, 64, machine('unlimited', 0), -EINVAL);
  assert.equal(wrong.code, 'WL_NATIVE');
  assert.equal(wrong.details['errno'], EINVAL);
});

test('sizes beyond a device are refused before it is asked', () => {
  requireWithin('mlx5_0', 'sends', 10, ['max_qp_wr', 10]);
  assert.throws(
    () => requireWithin('mlx5_0', 'sends', 11, ['max_qp_wr', 10]),
    /mlx5_0 cannot have 11 sends: it offers at most 10 \(max_qp_wr\)/,
  );
});
