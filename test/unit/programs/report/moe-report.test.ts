import assert from 'node:assert/strict';
import test from 'node:test';
import { requirePassed, type MoeReport } from '#lib/programs/moe/moe-job.js';
import { moeView } from '#lib/programs/cli/moe-command.js';
import { viewText } from '#lib/programs/report/view.js';

const report: MoeReport = {
  block: {
    path: 'block.safetensors',
    tokens: 65_536,
    hidden: 7168,
    experts: 256,
    intermediate: 2048,
    topk: 8,
    routing: 'gate',
    normalize: true,
    hasReference: true,
  },
  dispatcher: 'buffer',
  dtype: 'bf16',
  ranks: 2,
  device: { kind: 'cpu', reason: 'rank 1 found no GPU: no driver library (libcuda.so.1)' },
  product: 'CPU kernels',
  repeat: 5,
  phases: [
    { name: 'route', ms: 12.345, rows: 65_536 },
    {
      name: 'dispatch',
      ms: 1234.5,
      rows: 131_072,
      bytes: 1_879_048_192,
      gigabytesPerSecond: 1.522,
      wireBytes: 939_524_096,
      wireGigabytesPerSecond: 0.761,
    },
  ],
  forwardMs: 1300,
  load: {
    experts: Array.from({ length: 256 }, () => 2048),
    ranks: [0, 1].map((rank) => ({
      rank,
      tokens: 32_768,
      received: 65_536,
      receivedFromOthers: 32_768,
      expertRows: 262_144,
    })),
  },
  windowBytes: 2 ** 30,
  memory: [
    { expertBytes: 2 ** 30, peakBytes: 1.05 * 2 ** 30 },
    { expertBytes: 2 ** 30, peakBytes: 1.25 * 2 ** 30 },
  ],
  check: { error: 0.0021, tolerance: 0.01, passed: true },
  out: 'out.safetensors',
};

function moeText(of: MoeReport): string {
  return viewText(moeView(of));
}

test('the report of moe fits 100 columns and ends with the verdict', () => {
  const text = moeText(report);
  for (const line of text.split('\n')) assert.ok(line.length <= 100, line);
  assert.match(text, /\ndevice: cpu \(rank 1 found no GPU: .*\)\nexperts: CPU kernels\n/);
  assert.match(text, /│ dispatch +│ +1234\.50 │ +131072 │ +1\.8 GiB │ +1\.52 │ +896 MiB │ +0\.76 │/);
  assert.match(text, /\nmemory: experts 1 GiB per rank; largest growth of a process 1\.3 GiB\n/);
  assert.match(text, /Output written to out\.safetensors\nPASSED: error 2\.10e-3 .*; 1300\.0 ms, 50412 tokens\/s\n$/);
});

test('the report of moe says that nothing was compared, or that it failed', () => {
  const { check, ...unchecked } = report;
  assert.match(moeText(unchecked), /NOT CHECKED/);
  const failed = { ...report, check: { error: 0.2, tolerance: check?.tolerance ?? 0, passed: false } };
  assert.match(moeText(failed), /FAILED: error 2\.00e-1/);
  requirePassed(report);
  requirePassed(unchecked);
  assert.throws(() => requirePassed(failed), { code: 'WL_CHECK', message: /2\.00e-1/ });
});

test('the report of moe leaves the table of ranks out when there are many', () => {
  const one = report.load.ranks[0];
  assert.ok(one);
  const ranks = Array.from({ length: 17 }, (_, rank) => ({ ...one, rank }));
  assert.doesNotMatch(moeText({ ...report, load: { ...report.load, ranks } }), /rows computed/);
});

test('the report of moe shows the load before and after redundant experts in 100 columns, and requirePassed() compares their outputs', () => {
  const { phases, forwardMs, load, windowBytes } = report;
  const same = { error: 0, tolerance: 0.01, passed: true };
  const without = { phases, forwardMs, load, windowBytes };
  const redundantExperts = { count: 32, copiedExperts: 9, without, check: same };
  const text = moeText({ ...report, redundantExperts });
  for (const line of text.split('\n')) assert.ok(line.length <= 100, line);
  assert.match(text, /redundant experts: 32 copies of 9 busy experts, 288 physical experts in all/);
  assert.match(text, /before, without them: 1300\.0 ms; after: 1300\.0 ms; output the same bit for bit/);
  assert.match(text, /computed per rank before .*\n(?:.*\n)*.*computed per rank after /);
  const failed = {
    ...report,
    redundantExperts: { ...redundantExperts, check: { ...same, error: 0.3, passed: false } },
  };
  assert.throws(() => requirePassed(failed), {
    code: 'WL_CHECK',
    message: /the output without redundant experts by 3\.00e-1/,
  });
});
