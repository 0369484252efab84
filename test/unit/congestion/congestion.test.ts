// Each congestion control against cases computed by hand from its formulas.
import assert from 'node:assert/strict';
import test from 'node:test';
import { type AckSample, type Congestion, congestionRules, Cubic, Swift } from '#lib/congestion/congestion.js';
import { CreditPacer, ReceiverCredits, SPECULATIVE_BYTES } from '#lib/transport/send/receiver-credits.js';

function ack(now: number, rtt: number, ackedBytes = 0, more: Partial<AckSample> = {}): AckSample {
  return { now, rtt, ackedBytes, baseRtt: 0, marked: false, ...more };
}

function near(actual: number, expected: number, tolerance = 1e-9): void {
  assert.ok(Math.abs(actual - expected) <= tolerance * Math.abs(expected), `${actual}, expected ${expected}`);
}

function makeTimely(): Congestion {
  return congestionRules.timely.create({ segmentBytes: 1000, linkRate: 1000, targetDelay: 50, maxWindow: 1e9 });
}

const swiftOptions = {
  segmentBytes: 1000,
  maxWindow: 100_000,
  baseTarget: 50,
  flowScalingRange: 250,
  additiveIncrease: 1,
};

test('Swift: the target grows as the window shrinks', () => {
  const swift = new Swift(swiftOptions);
  // alpha = 250 / (1/sqrt(32) - 1/sqrt(100)) = 3256.2; at 100 segments nothing is added.
  near(swift.target(), 50);
  swift.windowBytes = 64_000;
  // 3256.2 / 8 - 325.62 = 81.4
  near(swift.target(), 131.405, 1e-4);
  swift.windowBytes = 16_000;
  near(swift.target(), 300);
});

test('Swift: above the target the window shrinks with the delay, at most by half, once per round trip', () => {
  const swift = new Swift(swiftOptions);
  swift.onAck(ack(1000, 100));
  // 1 - 0.8 * (100 - 50) / 100 = 0.6
  near(swift.windowBytes, 60_000);
  swift.windowBytes = 100_000;
  swift.onAck(ack(1099, 100));
  assert.equal(swift.windowBytes, 100_000);
  swift.onAck(ack(1100, 10_000));
  assert.equal(swift.windowBytes, 100_000);
  swift.onAck(ack(11_000, 10_000));
  near(swift.windowBytes, 50_000);
});

test('Swift: below the target a window of acks adds one segment', () => {
  const swift = new Swift(swiftOptions);
  swift.windowBytes = 50_000;
  swift.onAck(ack(1000, 20, 25_000));
  near(swift.windowBytes, 50_500);
  // The network's own share does not count.
  swift.windowBytes = 50_000;
  swift.onAck(ack(2000, 5020, 25_000, { baseRtt: 5000 }));
  near(swift.windowBytes, 50_500);
});

test('Swift: losses count only at high delay; silence always; below a segment packets are spaced', () => {
  const swift = new Swift(swiftOptions);
  swift.onAck(ack(1000, 20));
  swift.onLoss(2000);
  assert.equal(swift.windowBytes, 100_000);
  swift.onTimeout(3000);
  assert.equal(swift.windowBytes, 50_000);
  swift.onAck(ack(3010, 1000));
  swift.onLoss(5000);
  assert.equal(swift.windowBytes, 25_000);
  swift.windowBytes = 1000;
  swift.onTimeout(9000);
  assert.equal(swift.windowBytes, 500);
  near(swift.rate, 0.5);
});

test('TIMELY: grows below the low mark, follows the gradient between, shrinks above the high mark', () => {
  const timely = makeTimely();
  timely.onAck(ack(1000, 20));
  assert.equal(timely.rate, 1000);
  near(timely.windowBytes, 2 * 1000 * 20);
  timely.onAck(ack(2000, 1000));
  // 1000 * (1 - 0.025 * (1 - 500/1000)); average difference 0.125 * 980 = 122.5
  near(timely.rate, 987.5);
  timely.onAck(ack(3000, 100));
  // 0.875 * 122.5 - 0.125 * 900 = -5.3125: falling, so that the whole increase of 1000 * 0.025 / 8 counts.
  near(timely.rate, 990.625);
  timely.onAck(ack(4000, 300));
  // 0.875 * -5.3125 + 0.125 * 200 = 20.35: rising; 990.625 * (1 - 0.025 * (300 - 50) / 50)
  near(timely.rate, 866.796875);
  timely.onAck(ack(4100, 40));
  // A third of a round trip... of 40 us has passed more than twice: the share is 1. 866.796875 + 3.125
  near(timely.rate, 869.921875);
  timely.onAck(ack(4110, 40));
  // 10 of 40 us: a quarter of the increase.
  near(timely.rate, 870.703125);
  timely.onTimeout(5000);
  near(timely.rate, 435.3515625);
});

test('TIMELY: at a steady round trip the rate settles where increase and decrease are equal', () => {
  const timely = makeTimely();
  // Base 50, so the low mark is at 100: 8 flows settle at 200, each with an eighth of the link, and 4 at 150.
  for (let round = 0; round < 4000; round++) timely.onAck(ack(round * 1000, 150, 1000, { baseRtt: 50 }));
  near(timely.rate, 1000 / 8 / 0.5, 1e-6);
});

test('TIMELY: the rate stays between a 125th of the link and the link', () => {
  const timely = makeTimely();
  for (let round = 0; round < 2000; round++) timely.onAck(ack(round * 1e6, 400_000));
  near(timely.rate, 8);
});

test('TIMELY with the constants of UCCL: thresholds of a known network, steps of at most 2 us', () => {
  const timely = congestionRules['timely-uccl'].create({
    segmentBytes: 1000,
    linkRate: 12_500,
    targetDelay: 300,
    maxWindow: 1e9,
  });
  // Above 350 us, however long the shortest round trip: 12500 * (1 - 0.008 * (1 - 350/700)).
  timely.onAck(ack(1000, 700, 1000, { baseRtt: 600 }));
  near(timely.rate, 12_450);
  // 1 of 2 us since then: half of a step. 12450 * (1 - 0.008 / 2 * (1 - 350/700))
  timely.onAck(ack(1001, 700, 1000, { baseRtt: 600 }));
  near(timely.rate, 12_450 * 0.998);
  // Between the thresholds and falling fast: the whole increase of 500 bytes per us, up to the link.
  timely.onAck(ack(1101, 100));
  near(timely.rate, 12_500);
  // Rising fast: 12500 * (1 - 0.008 * (340 - 35) / 35). The average of the differences is 0.125 * (240 - 0.875 * 600) at least.
  for (let now = 1200; now < 1300; now += 2) timely.onAck(ack(now, 100 + (now - 1200) * 2));
  assert.ok(timely.rate < 12_500, String(timely.rate));
  for (let now = 2000; now < 2_000_000; now += 1000) timely.onAck(ack(now, 5000));
  near(timely.rate, 100);
});

test('CUBIC: slow start, the cut, the curve back, one cut per round trip', () => {
  const cubic = new Cubic({ segmentBytes: 1000, maxWindow: 1e9, initialWindow: 10 });
  cubic.onAck(ack(0, 100, 5000));
  near(cubic.windowBytes, 15_000);
  cubic.onLoss(1_000_000);
  near(cubic.windowBytes, 10_500);
  cubic.onLoss(1_000_050);
  near(cubic.windowBytes, 10_500);
  const begin = 1_000_100;
  cubic.onAck(ack(begin, 100, 1000));
  // Near the cut the Reno-friendly window is ahead: 10.5 + 3 * 0.3 / 1.7 / 10.5
  near(cubic.windowBytes, 10_500 + (0.9 / 1.7 / 10.5) * 1000);
  // K = cbrt((15 - 10.5) / 0.4) seconds later the curve is where the window was cut.
  const before = cubic.windowBytes / 1000;
  const back = begin + Math.cbrt(11.25) * 1e6 - 100;
  // What is sent meanwhile is lost with its acks' bytes: a pause would not count.
  for (let now = begin; now < back; now += 100) cubic.onAck(ack(now, 100, 0));
  cubic.onAck(ack(back, 100, 1000));
  near(cubic.windowBytes, (before + (15 - before) / before) * 1000, 1e-6);
  cubic.onTimeout(9_000_000);
  assert.equal(cubic.windowBytes, 1000);
});

/** The window after 200 round trips with a pause behind the first half of them. */
function windowAround(pause: number): number {
  const cubic = new Cubic({ segmentBytes: 1000, maxWindow: 1e9, initialWindow: 100 });
  cubic.onAck(ack(0, 1000));
  cubic.onLoss(1000);
  for (let round = 2; round < 102; round++) cubic.onAck(ack(round * 1000, 1000, 50_000));
  for (let round = 102; round < 202; round++) cubic.onAck(ack(pause + round * 1000, 1000, 50_000));
  return cubic.windowBytes;
}

test('CUBIC: the curve stands still while nothing is sent', () => {
  near(windowAround(60e6), windowAround(0));
});

test('CUBIC: a mark is a loss, and a window that did not come back makes room', () => {
  const cubic = new Cubic({ segmentBytes: 1000, maxWindow: 1e9, initialWindow: 100 });
  cubic.onAck(ack(1000, 10, 1000, { marked: true }));
  near(cubic.windowBytes, 70_000);
  cubic.onLoss(2000);
  near(cubic.windowBytes, 49_000);
  const other = new Cubic({ segmentBytes: 1000, maxWindow: 20_000, initialWindow: 100 });
  assert.equal(other.windowBytes, 20_000);
});

test('EQDS: a sender spends credits, an old credit changes nothing, and counters wrap', () => {
  const credits = new ReceiverCredits();
  assert.equal(credits.left, SPECULATIVE_BYTES);
  credits.onSend(SPECULATIVE_BYTES + 500);
  assert.equal(credits.left, -500);
  credits.onCredit(SPECULATIVE_BYTES + 10_000);
  credits.onCredit(SPECULATIVE_BYTES + 8000);
  assert.equal(credits.left, 9500);
  for (let total = SPECULATIVE_BYTES + 10_000; total < 2 ** 33; total += 2 ** 20) {
    credits.onSend(2 ** 20);
    credits.onCredit((total + 2 ** 20) | 0);
  }
  assert.equal(credits.left, 9500);
});

test('EQDS: the receiver gives credits in turn at the speed of its link, and none that nobody wants', () => {
  // 16384 bytes at 1638.4 bytes per microsecond: one credit in 10 us.
  const pacer = new CreditPacer(1638.4);
  let given = 0;
  const accounts = [0, 1, 2].map(() => ({
    demand: SPECULATIVE_BYTES + 1e6,
    granted: SPECULATIVE_BYTES,
    given: () => (given += 1),
  }));
  for (const account of accounts) pacer.add(account);
  pacer.run(1000);
  given = 0;
  for (let now = 1001; now <= 1601; now++) pacer.run(now);
  assert.ok(given === 60 || given === 61, `${given}`);
  const [least, most] = [Math.min(...accounts.map((a) => a.granted)), Math.max(...accounts.map((a) => a.granted))];
  assert.ok(most - least <= 16_384);
  pacer.run(100_000);
  for (let now = 1e5; now < 1e6; now += 10) pacer.run(now);
  for (const account of accounts) {
    assert.ok(account.granted >= account.demand + SPECULATIVE_BYTES);
    assert.ok(account.granted < account.demand + SPECULATIVE_BYTES + 16_384);
  }
  assert.equal(pacer.deadline(), Infinity);
  pacer.remove(accounts[0] as (typeof accounts)[0]);
});
