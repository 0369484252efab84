// What every rule of congestion control must do, by the table of rules; and what it takes to add one.
import assert from 'node:assert/strict';
import test from 'node:test';
import { type Settings } from 'weftline';
import { seededRandom } from '#lib/core/seeded-random.js';
import {
  type AckSample,
  type Congestion,
  congestionNames,
  type CongestionOptions,
  congestionRules,
} from '#lib/congestion/congestion.js';
import { SPECULATIVE_BYTES } from '#lib/transport/send/receiver-credits.js';
import { requestStatus } from '#lib/transport/engine/transport-engine.js';
import { seed } from '../../support/seed.ts';
import { isEnded, Loopback } from '../transport/support/loopback.ts';
import { settingsTable } from '#lib/settings/settings.js';

const options: CongestionOptions = { segmentBytes: 1368, maxWindow: 1_000_000, targetDelay: 100, linkRate: 1250 };

/** Acks, losses and silence as chance has them, after each of which `look` is called. */
function shake(congestion: Congestion, draw: () => number, look: () => void): void {
  let now = 0;
  for (let step = 0; step < 2000; step++) {
    now += draw() * 500;
    const baseRtt = 10 + draw() * 50;
    const rtt = draw() < 0.1 ? 0 : baseRtt + draw() * (draw() < 0.1 ? 20_000 : 300);
    const sample: AckSample = { now, rtt, baseRtt, ackedBytes: draw() * 100_000, marked: draw() < 0.05 };
    const event = draw();
    if (event < 0.9) congestion.onAck(sample);
    else if (event < 0.97) congestion.onLoss(now);
    else congestion.onTimeout(now);
    look();
  }
}

for (const name of congestionNames) {
  const rule = congestionRules[name];

  test(`${name}: whatever comes, the window and the rate are numbers that let bytes go`, () => {
    const congestion = rule.create(options);
    const most = name === 'none' ? Infinity : options.maxWindow;
    shake(congestion, seededRandom(seed), () => {
      const { windowBytes, rate } = congestion;
      assert.ok(windowBytes > 0 && windowBytes <= most, `window ${windowBytes}`);
      assert.ok(rate > 0, `rate ${rate}`);
    });
  });

  test(`${name}: the same events give the same window`, () => {
    const [one, two] = [rule.create(options), rule.create(options)];
    const seen: number[] = [];
    shake(one, seededRandom(seed), () => seen.push(one.windowBytes, one.rate));
    const again: number[] = [];
    shake(two, seededRandom(seed), () => again.push(two.windowBytes, two.rate));
    assert.deepEqual(again, seen);
  });

  for (const transportReceiverCredits of [false, true]) {
    const how = transportReceiverCredits ? 'with receiver credits' : 'alone';
    for (const transportCongestionScope of ['flow', 'path'] as const) {
      test(`${name} ${how}, a window per ${transportCongestionScope}: messages arrive through a narrow queue with loss`, () => {
        const net = new Loopback({
          seed,
          paths: 4,
          rate: 100,
          queueBytes: 60_000,
          loss: 0.01,
          settings: { transportCongestion: name, transportCongestionScope, transportReceiverCredits },
        });
        const bytes = 400_000;
        const [from, to] = [net.a.region(bytes), net.b.region(bytes)];
        const sends = [0, 1].map((flow) => {
          net.b.connection.postReceive({ region: to, offset: 0, bytes, flow });
          return net.a.connection.postSend({ region: from, offset: 0, bytes, flow });
        });
        assert.ok(net.run(() => sends.every((send) => isEnded(net.a, send))));
        for (const send of sends) assert.equal(net.a.engine.poll(send), requestStatus.done);
      });
    }
  }
}

/** The most bytes that a transfer of 2 MB has on its way over one path of 1000 bytes per microsecond. */
function mostInFlight(settings: Partial<Settings>, receiverCredits?: boolean): number {
  const agreed = receiverCredits === undefined ? {} : { receiverCredits };
  const net = new Loopback({ seed, paths: 1, rate: 1000, queueBytes: 4_000_000, settings, ...agreed });
  const bytes = 2_000_000;
  const [from, to] = [net.a.region(bytes), net.b.region(bytes)];
  net.b.connection.postReceive({ region: to, offset: 0, bytes });
  const send = net.a.connection.postSend({ region: from, offset: 0, bytes });
  let most = 0;
  assert.ok(
    net.run(() => {
      most = Math.max(most, net.a.connection.statistics.paths[0]?.inFlightBytes ?? 0);
      return isEnded(net.a, send);
    }),
  );
  return most;
}

test('with receiver credits a sender never has more on its way than both its window and its credits allow', () => {
  const window = { transportCongestion: 'fixed', transportWindowBytes: 1_000_000 } as const;
  const credits = { transportReceiverCredits: true, transportLinkGbps: 0.8 } as const;
  assert.ok(mostInFlight(window) > 600_000);
  // 100 bytes per microsecond for a path of 1000: what may go without credits, and the few credits that are given at once.
  assert.ok(mostInFlight({ ...window, ...credits }) < SPECULATIVE_BYTES + 5 * 16_384);
  assert.ok(mostInFlight({ ...window, ...credits, transportWindowBytes: 50_000 }) <= 50_000);
});

test('what both sides of a connection agree on counts more than the setting of each', () => {
  const window = { transportCongestion: 'fixed', transportWindowBytes: 1_000_000, transportLinkGbps: 0.8 } as const;
  assert.ok(mostInFlight(window, true) < SPECULATIVE_BYTES + 5 * 16_384);
  assert.ok(mostInFlight({ ...window, transportReceiverCredits: true }, false) > 600_000);
});

test('settings take the names of rules from their table', () => {
  assert.deepEqual(settingsTable.transportCongestion.choices, congestionNames);
  for (const name of congestionNames) assert.ok(settingsTable.transportCongestion.sentence.includes(name), name);
});
