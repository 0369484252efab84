// Metrics: what trace points, waits and objects become, as data and as Prometheus' text; what OpenTelemetry gets.
import assert from 'node:assert/strict';
import { tracingChannel } from 'node:diagnostics_channel';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { CallGuard } from '#lib/group/call-guard.js';
import { countError, countRowBytes, countTokens, noteImbalance } from '#lib/core/counts.js';
import { addSamples } from '#lib/core/metric-table.js';
import { traceBegin, traceEnd } from '#lib/core/trace.js';
import { beginWait, endWait } from '#lib/core/waits.js';
import { Histogram, MetricsSink, secondBounds } from '#lib/metrics/metrics-sink.js';
import { readMetricsAddress, startMetrics } from '#lib/metrics/start-metrics.js';
import { prometheusOfRanks } from '#lib/metrics/prometheus-text.js';
import { inspectorLines } from '#lib/programs/cli/job-commands.js';
import { readMetricsAnswer } from '#lib/world/watching/rank-answer.js';
import { WeftlineError } from 'weftline';
import { bridgeOpenTelemetry, collectMetrics, readMetrics, tracingChannelNames } from 'weftline/metrics';
import { withCode } from '../../support/with-code.ts';
import { listFiles, root } from '../architecture/source-tree.ts';
import { type MetricName, metricTable } from '#lib/core/metric-table.js';
import type { TelemetryMeter, TelemetryTracer } from '#lib/metrics/open-telemetry.js';

const names = Object.keys(metricTable) as MetricName[];

test('names and labels are what Prometheus accepts, and tell their unit', () => {
  for (const name of names) {
    assert.match(name, /^weftline_[a-z_]+$/);
    const { kind, labels } = metricTable[name];
    assert.equal(kind === 'counter', name.endsWith('_total'), name);
    if (kind === 'histogram' || kind === 'summary') assert.match(name, /_seconds$/);
    for (const label of labels) assert.match(label, /^[a-z_]+$/);
  }
});

test('a histogram counts each value in the bucket whose bound is the first not below it', () => {
  const histogram = new Histogram([]);
  for (const value of [0, 1e-6, 1.1e-6, 49, 50, 51, 1e9]) histogram.observe(value);
  assert.equal(histogram.count, 7);
  assert.deepEqual([histogram.buckets[0], histogram.buckets[1]], [2, 1]);
  assert.deepEqual([histogram.buckets.at(-2), histogram.buckets.at(-1)], [2, 2]);
  assert.equal(secondBounds.at(-1), 50);
  assert.deepEqual(
    secondBounds.toSorted((left, right) => left - right),
    secondBounds,
  );
});

test('without collecting there are counters and no times', async () => {
  countTokens('dispatch', 'buffer', 7);
  const { isCollecting, metrics } = await readMetrics();
  assert.equal(isCollecting, false);
  assert.deepEqual(
    metrics.filter(({ kind }) => kind === 'histogram'),
    [],
  );
  const tokens = metrics.find(({ name }) => name === 'weftline_ep_tokens_total');
  assert.deepEqual(tokens?.series, [{ labels: { op: 'dispatch', mode: 'buffer' }, value: 7 }]);
});

test('calls, their phases and transfers become histograms', () => {
  const sink = new MetricsSink();
  sink.begin('call', 1, 'EpBuffer 2.dispatch of 0-3');
  sink.begin('ep.dispatch.rows', 0);
  sink.end('ep.dispatch.rows', 0);
  sink.begin('ep.closing', 0);
  sink.end('ep.closing', 0);
  sink.end('call', 1, 'EpBuffer 2.dispatch of 0-3', 4096);
  sink.begin('call', 5, 'Communicator.allReduce of 0,2,5');
  sink.end('call', 5, 'Communicator.allReduce of 0,2,5', 64);
  for (const transfer of [1, 2]) sink.begin('agent.transfer', transfer, 'write by local');
  for (const transfer of [1, 2]) sink.end('agent.transfer', transfer, 'write by local', 100);
  assert.deepEqual(
    sink.histograms().map(({ name, histogram: { labels, count } }) => [name, labels.join(' '), count]),
    [
      ['weftline_ep_step_seconds', 'dispatch call buffer 4', 1],
      ['weftline_ep_step_seconds', 'dispatch rows buffer 4', 1],
      ['weftline_ep_step_seconds', 'dispatch closing buffer 4', 1],
      ['weftline_collective_seconds', 'allReduce 3', 1],
      ['weftline_agent_transfer_seconds', 'local write', 2],
    ],
  );
  assert.deepEqual(sink.transferBytes(), [{ labels: ['local', 'write'], bytes: 200 }]);
  assert.deepEqual(
    sink.lastCalls().map(({ object, call, ranks, number, bytes }) => [object, call, ranks, number, bytes]),
    [
      ['EpBuffer', 'dispatch', 4, 1, 4096],
      ['Communicator', 'allReduce', 3, 5, 64],
    ],
  );
  assert.equal(sink.dropped, 0);
  sink.begin('agent.transfer', 3);
  sink.begin('agent.transfer', 3 + 4096);
  sink.end('agent.transfer', 3, 'write by local');
  assert.equal(sink.dropped, 2, 'two that share a place');
});

test('collecting, all metrics can be read, written for Prometheus and carried over a wire', async () => {
  collectMetrics();
  collectMetrics();
  const wait = beginWait({ waitFacts: () => ({ operation: 'x', ranks: [3, 4] }) });
  endWait(wait);
  countRowBytes('combine', 'network', 10);
  noteImbalance('layer', [0, 9, 1, 2], 3, 1);
  countError(new WeftlineError('WL_TIMEOUT', 'late'));
  countError('no error');
  const stop = addSamples(() => [
    { name: 'weftline_transport_rtt_seconds', labels: ['a"\n\\', '0'], value: 0.5 },
    { name: 'weftline_transport_rtt_seconds', labels: ['a"\n\\', '0'], value: 0.25 },
    { name: 'weftline_transport_packets_total', labels: ['a', '0'], value: 1 },
    { name: 'weftline_transport_packets_total', labels: ['a', '0'], value: 2 },
  ]);
  const fail = addSamples(() => Promise.reject(new Error('closing')));
  traceBegin('call', 1, 'EpLowLatency.combine of 0-1');
  traceEnd('call', 1, 'EpLowLatency.combine of 0-1', 8);
  const snapshot = { labels: { rank: '1' }, ...(await readMetrics()) };
  const text = await prometheusOfRanks([snapshot, { labels: { rank: '2' }, metrics: snapshot.metrics }]);
  for (const line of [
    'weftline_ep_step_seconds_bucket{rank="1",op="combine",phase="call",mode="low_latency",world="2",le="+Inf"} 1',
    'weftline_ep_step_seconds_count{rank="2",op="combine",phase="call",mode="low_latency",world="2"} 1',
    'weftline_ep_wait_seconds_count{rank="1",source="3"} 1',
    'weftline_ep_bytes_total{rank="1",op="combine",link="network"} 10',
    'weftline_ep_imbalance_ratio{rank="1",mode="layer"} 2.25',
    'weftline_errors_total{rank="1",code="WL_TIMEOUT"} 1',
    'weftline_errors_total{rank="1",code="WL_INTERNAL"} 1',
    String.raw`weftline_transport_rtt_seconds{rank="1",peer="a\"\n\\",path="0"} 0.5`,
    'weftline_transport_packets_total{rank="1",peer="a",path="0"} 3',
    '# TYPE weftline_ep_step_seconds histogram',
  ])
    assert.ok(text.includes(`${line}\n`), line);
  assert.deepEqual(readMetricsAnswer(JSON.parse(JSON.stringify(snapshot))).metrics.length, snapshot.metrics.length);
  assert.deepEqual(readMetricsAnswer({ metrics: [{ name: 'other' }, 1], labels: { a: 'b\u001b' } }), {
    labels: { a: String.raw`b\u001b` },
    isCollecting: false,
    metrics: [],
    lastCalls: [],
  });
  const line = inspectorLines({ jobId: 'j', size: 2, silent: [], ranks: new Map([[1, snapshot]]) }, 1).split('\n')[0]!;
  const { header, coll_perf: perf } = JSON.parse(line) as {
    header: Record<string, unknown>;
    coll_perf: Record<string, unknown>;
  };
  assert.deepEqual(
    [header['rank'], header['n_ranks'], perf['coll'], perf['coll_sn'], perf['coll_msg_size_bytes']],
    [1, 2, 'EpLowLatency.combine', 1, 8],
  );
  stop();
  fail();
});

test('calls tell tracing channels, with the reason of a failure', async () => {
  const told: string[] = [];
  const seen = (event: string) => (context: object) =>
    void told.push(`${event} ${(context as { call: string }).call} ${'error' in context}`);
  const listeners = {
    start: seen('start'),
    end: seen('end'),
    asyncStart: seen('asyncStart'),
    asyncEnd: seen('asyncEnd'),
    error: seen('error'),
  };
  const channel = tracingChannel<unknown, object>('weftline:ep.dispatch');
  channel.subscribe(listeners);
  const guard = new CallGuard('EpBuffer', [0, 1]);
  await guard.run('dispatch', () => Promise.resolve());
  await assert.rejects(guard.run('dispatch', () => Promise.reject(new Error('x'))));
  channel.unsubscribe(listeners);
  await guard.run('dispatch', () => Promise.resolve());
  const first = ['start', 'end', 'asyncStart', 'asyncEnd'].map((event) => `${event} dispatch false`);
  const second = ['start dispatch false', 'end dispatch false'];
  const failed = ['error', 'asyncStart', 'asyncEnd'].map((event) => `${event} dispatch true`);
  assert.deepEqual(told, [...first, ...second, ...failed]);
  guard.close();
});

test('every call of a collective object has its channel', () => {
  const calls = listFiles('src', ['.ts'])
    .map((path) => readFileSync(join(root, path), 'utf8'))
    .flatMap((text) => [...text.matchAll(/#guard\.(?:run|begin)\('([^']+)'/g), ...text.matchAll(/#hook\('([^']+)'/g)])
    .map(([, call]) => call!.replaceAll(' ', '-'));
  assert.ok(calls.length > 10);
  for (const call of calls)
    assert.ok(
      tracingChannelNames.some((name) => name.endsWith(`.${call}`)),
      call,
    );
});

test('OpenTelemetry gets observations, what its meter collects, and spans', async () => {
  const recorded: unknown[] = [];
  const made = new Set<string>();
  type Observe = (result: { observe: (instrument: object, value: number) => void }) => Promise<void>;
  let collectNow: Observe | undefined;
  const observable = (name: string): object => (made.add(name), { name });
  const meter: TelemetryMeter = {
    createHistogram: (name) => ({ record: (value, attributes) => recorded.push([name, value >= 0, attributes]) }),
    createObservableCounter: observable,
    createObservableGauge: observable,
    addBatchObservableCallback: (callback) => void (collectNow = callback as Observe),
    removeBatchObservableCallback: () => void (collectNow = undefined),
  };
  const spans: string[] = [];
  const tracer: TelemetryTracer = {
    startSpan: (name) => ({
      setStatus: ({ code }) => spans.push(`${name} status ${code}`),
      recordException: ({ message }) => void spans.push(`${name} ${message}`),
      end: () => void spans.push(`${name} end`),
    }),
  };
  const end = bridgeOpenTelemetry({ meter, tracer });
  const guard = new CallGuard('EPAll2AllLayer', [0]);
  await assert.rejects(guard.run('combine', () => Promise.reject(new Error('why'))));
  const observed: string[] = [];
  await collectNow?.({ observe: (instrument) => void observed.push((instrument as { name: string }).name) });
  end();
  await guard.run('combine', () => Promise.resolve());
  assert.deepEqual(recorded, [
    ['weftline_ep_step_seconds', true, { op: 'combine', phase: 'call', mode: 'layer', world: '1' }],
  ]);
  assert.deepEqual(spans, ['weftline.ep.combine why', 'weftline.ep.combine status 2', 'weftline.ep.combine end']);
  assert.ok(observed.includes('weftline_ep_wait_seconds_sum') && observed.every((name) => made.has(name)));
  assert.equal(collectNow, undefined);
  assert.throws(() => bridgeOpenTelemetry({ metre: 1 } as never), withCode('WL_INVALID_ARGUMENT'));
  guard.close();
});

test('the setting names an address, or says on', () => {
  assert.deepEqual(readMetricsAddress('127.0.0.1:9400'), { host: '127.0.0.1', port: 9400 });
  assert.deepEqual(readMetricsAddress('[::1]:0'), { host: '::1', port: 0 });
  assert.equal(readMetricsAddress('on'), undefined);
  for (const wrong of ['9400', ':9400', 'a:70000', 'a b:1', 'off'])
    assert.throws(() => readMetricsAddress(wrong), withCode('WL_CONFIG'), wrong);
});

test('a rank whose port would be above the last one says so', async () => {
  const start = startMetrics({ metrics: '127.0.0.1:65535' }, { rank: 3, machineRank: 1, jobId: 'j' });
  await assert.rejects(start, withCode('WL_CONFIG', 'which is 65536 for rank 1 of the machine'));
});

test('the dashboard asks for metrics and labels that exist, and for all of them', () => {
  interface Panel {
    readonly title: string;
    readonly targets?: readonly { readonly expr: string; readonly legendFormat: string }[];
  }
  const file = readFileSync(join(root, 'docs/dashboards/weftline.json'), 'utf8');
  const { panels } = JSON.parse(file) as { readonly panels: readonly Panel[] };
  const expressions = panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr));
  const own = ['rank', 'local_rank', 'job_id', 'hostname', 'pid', 'instance', 'le'];
  const asked = new Set<string>();
  for (const expression of expressions) {
    for (const [word] of expression.matchAll(/weftline_\w+/g)) {
      const name = names.find((known) => word === known || new RegExp(`^${known}_(?:bucket|sum|count)$`).test(word));
      assert.ok(name !== undefined, `${word} is no metric`);
      asked.add(name);
    }
    const inside = names.filter((name) => expression.includes(name));
    const known = new Set([...own, ...inside.flatMap((name) => metricTable[name].labels as readonly string[])]);
    for (const [, list] of expression.matchAll(/\bby \(([^)]*)\)/g))
      for (const label of list!.split(',')) assert.ok(known.has(label.trim()), `${label} in ${expression}`);
    for (const [, label] of expression.matchAll(/[{,]\s*(\w+)\s*=~?"/g)) assert.ok(known.has(label!), label);
  }
  assert.deepEqual([...asked].toSorted(), names.toSorted());
  for (const { expr, legendFormat } of panels.flatMap(({ targets = [] }) => targets)) {
    const kept = [...expr.matchAll(/\bby \(([^)]*)\)/g)].flatMap(([, list]) =>
      list!.split(',').map((label) => label.trim()),
    );
    for (const [, label] of legendFormat.matchAll(/\{\{(\w+)\}\}/g))
      assert.ok(kept.includes(label!), `${legendFormat}: ${expr} does not keep ${label}`);
  }
});
