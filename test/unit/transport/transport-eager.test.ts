// Small messages that are sent before their receives are announced: where they wait, and what becomes of them.
import assert from 'node:assert/strict';
import test from 'node:test';
import { dataHeader, EAGER_SLOTS, packetFlags, packetKinds, packetPrefix } from '#lib/transport/wire/packet-layout.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import { Flow } from '#lib/transport/send/send-side.js';
import { type EngineHandle, requestStatus } from '#lib/transport/engine/transport-engine.js';
import { isEnded, Loopback, type LoopbackOptions, pattern, type Side } from './support/loopback.js';

const AT = packetPrefix.offset;

interface Words {
  readonly net: Loopback;
  /** Sends the number in a message of four bytes. */
  readonly send: (value: number, flow?: number) => EngineHandle;
  readonly receive: (bytes?: number, flow?: number) => EngineHandle;
  /** What a receive holds. */
  readonly valueOf: (receive: EngineHandle) => number;
}

function open(options: LoopbackOptions = {}): Words {
  const net = new Loopback(options);
  const out = net.a.region(400_000);
  const into = net.b.region(400_000);
  const [outView, inView] = [out, into].map(({ bytes }) => new DataView(bytes.buffer));
  const places = new Map<EngineHandle, number>();
  let sent = 0;
  let received = 0;
  return {
    net,
    send(value, flow = 0) {
      const offset = 4 * sent++;
      outView!.setUint32(offset, value, true);
      return net.a.connection.postSend({ region: out, offset, bytes: 4, flow });
    },
    receive(bytes = 4, flow = 0) {
      const offset = 4 * received++;
      const handle = net.b.connection.postReceive({ region: into, offset, bytes, flow });
      places.set(handle, offset);
      return handle;
    },
    valueOf: (handle) => inView!.getUint32(places.get(handle)!, true),
  };
}

function stateOf(side: Side, handle: EngineHandle): string {
  const { engine } = side;
  const status = engine.poll(handle);
  if (status === requestStatus.failed) return engine.requestError(handle)!.code;
  return status === requestStatus.done ? 'done' : 'pending';
}

function isOver(side: Side, handles: readonly EngineHandle[][]): boolean {
  return handles.flat().every((handle) => isEnded(side, handle));
}

test('a small message goes with its data, and one acknowledgement ends it', () => {
  const { net, send, receive, valueOf } = open();
  // The first receive is announced: nobody knows yet that messages come without.
  for (let round = 0; round < 5; round++) {
    net.run(() => false, 200);
    const before = net.packets;
    const [sending, receiving] = [send(round), receive()];
    assert.ok(net.run(() => isEnded(net.a, sending) && isEnded(net.b, receiving)));
    assert.equal(valueOf(receiving), round);
    if (round > 0) assert.equal(net.packets - before, 2);
  }
});

test('a message that was parked and delivered just before its receiver closed has been sent', () => {
  for (const isDelivered of [true, false]) {
    // The record that says so is lost.
    const lose: LoopbackOptions['lose'] = ({ to, bytes }) => to.name === 'a' && bytes[AT.kind] === packetKinds.control;
    const { net, send, receive, valueOf } = open({ lose });
    const sending = send(7);
    net.run(() => false, 10_000);
    const receiving = isDelivered ? receive() : undefined;
    net.run(() => false, 100);
    assert.equal(stateOf(net.a, sending), 'pending');
    if (receiving !== undefined) assert.deepEqual([stateOf(net.b, receiving), valueOf(receiving)], ['done', 7]);
    net.b.connection.close();
    assert.ok(net.run(() => isEnded(net.a, sending), 10_000));
    assert.equal(stateOf(net.a, sending), isDelivered ? 'done' : 'WL_CLOSED');
  }
});

test('a message waits for its receive, and only then has it been sent', () => {
  for (const isAuthentic of [false, true]) {
    const { net, send, receive, valueOf } = open({ settings: { transportAuthentication: isAuthentic } });
    const sending = send(7);
    net.run(() => false, 3_000_000);
    assert.equal(net.b.connection.statistics.receivedSegments, 1, 'it has arrived');
    assert.equal(stateOf(net.a, sending), 'pending');
    const receiving = receive();
    assert.ok(net.run(() => isEnded(net.a, sending) && isEnded(net.b, receiving), 1000));
    assert.deepEqual([stateOf(net.a, sending), stateOf(net.b, receiving), valueOf(receiving)], ['done', 'done', 7]);
    assert.equal(net.b.engine.receivedBytes(receiving), 4);
  }
});

test('an unwanted receive of such a flow is announced after a moment, for larger messages', () => {
  const { net, send, receive } = open();
  const first = [send(1), receive()] as const;
  assert.ok(net.run(() => isEnded(net.a, first[0]) && isEnded(net.b, first[1])));
  const [from, to] = [net.a.region(100_000), net.b.region(100_000)];
  pattern(from.bytes);
  const small = receive();
  const large = net.b.connection.postReceive({ region: to, offset: 0, bytes: 100_000 });
  net.run(() => false, 1000);
  const sends = [send(2), net.a.connection.postSend({ region: from, offset: 0, bytes: 100_000 })];
  assert.ok(net.run(() => sends.every((handle) => isEnded(net.a, handle)) && isEnded(net.b, large), 10_000));
  assert.deepEqual([stateOf(net.b, small), stateOf(net.b, large)], ['done', 'done']);
  assert.deepEqual(to.bytes, from.bytes);
});

test('more messages than there are slots wait at their sender, and all arrive in order', () => {
  const bad = { paths: 4, loss: 0.05, duplication: 0.05, reordering: 0.3 };
  for (const options of [
    {},
    bad,
    { ...bad, keepsPlaces: true },
    { ...bad, settings: { transportAuthentication: true } },
  ]) {
    for (let seed = 1; seed <= 10; seed++) {
      const { net, send, receive, valueOf } = open({ ...options, seed });
      const sends = Array.from({ length: 96 }, (_, index) => send(index, index % 3));
      net.run(() => false, 500 * seed);
      const receives = sends.map((_, index) => receive(4, index % 3));
      assert.ok(net.run(() => sends.every((h) => isEnded(net.a, h)) && receives.every((h) => isEnded(net.b, h))));
      assert.deepEqual(receives.map(valueOf), [...sends.keys()]);
      // Slots that messages have left are taken again.
      const more = Array.from({ length: 32 }, (_, index) => send(index, 9));
      net.run(() => false, 5_000_000);
      const all = more.map(() => receive(4, 9));
      assert.ok(net.run(() => more.every((h) => isEnded(net.a, h)) && all.every((h) => isEnded(net.b, h))));
      assert.deepEqual(all.map(valueOf), [...more.keys()]);
    }
  }
});

test('a receive that is too small fails both ends, before and after the message has come, and the flow goes on', () => {
  for (const after of [0, 5, 1000]) {
    for (const loss of [0, 0.3]) {
      const { net, send, receive, valueOf } = open({ loss, seed: 3 });
      const sends = [send(1), send(2)];
      net.run(() => false, after);
      const receives = [receive(3), receive()];
      assert.ok(net.run(() => sends.every((h) => isEnded(net.a, h)) && receives.every((h) => isEnded(net.b, h))));
      const errors = [net.a.engine.requestError(sends[0]!), net.b.engine.requestError(receives[0]!)];
      assert.deepEqual(
        errors.map((error) => error?.code),
        ['WL_CAPACITY', 'WL_CAPACITY'],
      );
      assert.match(errors[0]!.message, /Cannot send 4 bytes to rank 1 \(b\): .* room for 3/);
      assert.match(errors[1]!.message, /Cannot receive 3 bytes from rank 0 \(a\): the message has 4 bytes/);
      assert.deepEqual([stateOf(net.a, sends[1]!), stateOf(net.b, receives[1]!)], ['done', 'done']);
      assert.equal(valueOf(receives[1]!), 2);
    }
  }
});

test('a message that waits for its receive can be taken back: the next one takes its place', () => {
  for (const loss of [0, 0.3]) {
    const { net, send, receive, valueOf } = open({ loss, seed: 5 });
    // More than there are slots.
    for (let round = 0; round < 64; round++) {
      const sending = send(round);
      net.run(() => false, round % 2 === 0 ? 0 : 1000);
      assert.ok(net.a.connection.cancel(sending));
      // One that has not left, for want of a slot, has ended at once.
      assert.equal(net.a.connection.cancel(sending), !isEnded(net.a, sending));
      assert.ok(
        net.run(() => isEnded(net.a, sending)),
        `round ${round}`,
      );
      assert.equal(stateOf(net.a, sending), 'WL_CLOSED');
      assert.equal(net.a.connection.cancel(sending), false);
      if (round % 8 !== 7) continue;
      const [next, receiving] = [send(1000 + round), receive()];
      assert.ok(
        net.run(() => isEnded(net.a, next) && isEnded(net.b, receiving)),
        `round ${round}`,
      );
      assert.deepEqual([stateOf(net.a, next), valueOf(receiving)], ['done', 1000 + round]);
    }
  }
});

test('where places are kept, the receive of a message that was taken back fails', () => {
  for (const after of [0, 5, 1000]) {
    const { net, send, receive, valueOf } = open({ keepsPlaces: true });
    const first = send(1);
    net.run(() => false, after);
    net.a.connection.cancel(first);
    assert.ok(net.run(() => isEnded(net.a, first)));
    const receives = [receive(), receive()];
    const second = send(2);
    assert.ok(net.run(() => isEnded(net.a, second) && receives.every((handle) => isEnded(net.b, handle))));
    assert.deepEqual([stateOf(net.a, first), stateOf(net.b, receives[0]!)], ['WL_CLOSED', 'WL_PEER_FAILED']);
    assert.deepEqual([stateOf(net.b, receives[1]!), valueOf(receives[1]!)], ['done', 2]);
  }
});

test('a receive that is held back can be withdrawn: the next one takes its place, unless places are kept', () => {
  for (const keepsPlaces of [false, true]) {
    for (const after of [0, 1000]) {
      const { net, send, receive, valueOf } = open({ keepsPlaces });
      const first = [send(1), receive()] as const;
      assert.ok(net.run(() => isEnded(net.a, first[0]) && isEnded(net.b, first[1])));
      const withdrawn = receive();
      net.run(() => false, after);
      assert.ok(net.b.connection.cancel(withdrawn));
      net.run(() => false, after);
      const receiving = receive();
      const sends = [send(2)];
      if (keepsPlaces) sends.push(send(3));
      assert.ok(
        net.run(() => sends.every((h) => isEnded(net.a, h)) && isEnded(net.b, receiving)),
        `${keepsPlaces} ${after}`,
      );
      assert.deepEqual(
        sends.map((handle) => stateOf(net.a, handle)),
        keepsPlaces ? ['WL_PEER_FAILED', 'done'] : ['done'],
      );
      assert.equal(valueOf(receiving), keepsPlaces ? 3 : 2);
    }
  }
});

test('a flow counts on for more than 2^31 receives, whether or not messages go before they are announced', () => {
  const step = 2 ** 30;
  const flow = new Flow(0, 0, -7);
  // Only announced receives, then only messages that go without.
  for (let first = -6, round = 0; round < 9; round++, first = (first + step) | 0) {
    assert.equal(flow.announce(first, step), step, `round ${round}`);
  }
  const announced = flow.last;
  for (let round = 0; round < 9; round++) flow.last = (flow.last + step) | 0;
  const next = flow.passNext();
  assert.equal(next, (announced + 9 * step + 1) | 0);
  assert.equal(flow.announce((next - 1) | 0, 1), 0);
  assert.equal(flow.announce(next, 3), 2);
});

test('releasing the memory of a message that waits for its receive ends it at once', () => {
  for (const after of [0, 5, 1000]) {
    const { net, receive, send, valueOf } = open();
    const region = net.a.region(4);
    const sending = net.a.connection.postSend({ region, offset: 0, bytes: 4 });
    net.run(() => false, after);
    net.a.engine.release(region);
    assert.equal(stateOf(net.a, sending), 'WL_CLOSED');
    net.run(() => false, 1000);
    const [next, receiving] = [send(8), receive()];
    assert.ok(net.run(() => isEnded(net.a, next) && isEnded(net.b, receiving)));
    assert.equal(valueOf(receiving), 8);
  }
});

test('a peer that dies or closes fails messages that wait for their receives', () => {
  const settings = { transportGiveUpMs: 1000, transportKeepAliveMs: 100 };
  for (const closes of [false, true]) {
    const { net, send } = open({ settings });
    const sends = [send(1), send(2)];
    net.run(() => false, 1000);
    if (closes) net.b.connection.close();
    else net.gone.add(net.b);
    net.a.connection.cancel(sends[1]!);
    assert.ok(net.run(() => sends.every((handle) => isEnded(net.a, handle)), 2_000_000));
    assert.equal(stateOf(net.a, sends[0]!), closes ? 'WL_CLOSED' : 'WL_PEER_LOST');
  }
});

test('receives that are held back and find no room to be announced wait for it without a timer that runs all the time', () => {
  for (const transportAckDelayUs of [0, 50]) {
    const { net, send, receive, valueOf } = open({ settings: { transportAckDelayUs } });
    send(0);
    net.run(() => false, 1000);
    receive();
    net.run(() => false, 1000);
    // More than the peer may know of.
    const receives = Array.from({ length: 5000 }, () => receive());
    let turns = 0;
    const { engine } = net.b;
    const onTimer = engine.onTimer.bind(engine);
    engine.onTimer = (now) => {
      turns++;
      onTimer(now);
    };
    net.run(() => false, 1_000_000);
    assert.ok(turns < 5000, `${turns} turns in a second`);
    const sends = receives.map((_, index) => send(index));
    assert.ok(net.run(() => isOver(net.a, [sends]) && isOver(net.b, [receives]), 5_000_000));
    assert.deepEqual(receives.map(valueOf), [...receives.keys()]);
  }
});

test('whatever is posted and withdrawn, over a bad network, every request ends, in order and with the right bytes', () => {
  for (let seed = 1; seed <= 60; seed++) {
    const random = seededRandom(seed);
    const keepsPlaces = seed % 2 === 0;
    const bad = { paths: 4, loss: 0.1, duplication: 0.1, reordering: 0.5 };
    const secret = seed % 3 === 0 ? (2n ** 32n - 20n) << 32n : 0x0123_4567_89ab_cdefn;
    const settings = { transportAckDelayUs: seed % 5 === 0 ? 0 : 50, transportEagerBytes: seed % 7 === 0 ? 3 : 1024 };
    const { net, send, receive, valueOf } = open({
      ...(seed % 4 === 0 ? {} : bad),
      seed,
      keepsPlaces,
      secret,
      settings,
    });
    const sends: EngineHandle[][] = [[], []];
    const receives: EngineHandle[][] = [[], []];
    for (let step = 0; step < 300; step++) {
      const flow = step % 2;
      const dice = random();
      if (dice < 0.35) sends[flow]!.push(send(sends[flow]!.length, flow));
      else if (dice < 0.7) receives[flow]!.push(receive(4, flow));
      else if (dice < 0.78) net.a.connection.cancel(sends[flow]![Math.floor(random() * sends[flow]!.length)] ?? 0);
      else if (dice < 0.86)
        net.b.connection.cancel(receives[flow]![Math.floor(random() * receives[flow]!.length)] ?? 0);
      else net.run(() => false, Math.floor(random() * 60));
    }
    // Whoever is left alone gets company.
    for (let more = 0; more < 400 && !(isOver(net.a, sends) && isOver(net.b, receives)); more++) {
      net.run(() => false, 5000);
      for (const flow of [0, 1]) {
        if (receives[flow]!.some((handle) => !isEnded(net.b, handle))) send(1_000_000 + more, flow);
        if (sends[flow]!.some((handle) => !isEnded(net.a, handle))) receive(4, flow);
      }
    }
    assert.ok(isOver(net.a, sends) && isOver(net.b, receives), `seed ${seed} does not end`);
    for (const flow of [0, 1]) {
      const values = receives[flow]!.filter((handle) => stateOf(net.b, handle) === 'done').map(valueOf);
      assert.deepEqual(
        values,
        values.toSorted((x, y) => x - y),
        `seed ${seed}: the order`,
      );
      assert.equal(new Set(values).size, values.length, `seed ${seed}: twice`);
      const done = sends[flow]!.flatMap((handle, value) => (stateOf(net.a, handle) === 'done' ? [value] : []));
      const known = new Set(values);
      const missing = done.filter((value) => !known.has(value));
      // Missing ones went to receives that were posted at the end.
      assert.deepEqual(missing, done.slice(done.length - missing.length), `seed ${seed}: lost`);
    }
  }
});

test('an eager packet for a slot that is taken, or that is no slot, or too long, is refused', () => {
  const taken: Uint8Array[] = [];
  const { net, send } = open({
    settings: { transportChecksum: 'none' },
    lose: ({ bytes, to }) => {
      if (to.name === 'b' && bytes[AT.kind] === packetKinds.data) taken.push(bytes.slice());
      return false;
    },
  });
  send(5);
  net.run(() => false, 100);
  const packet = taken[0]!;
  const flags = new DataView(packet.buffer).getUint16(AT.flags, true);
  assert.notEqual(flags & packetFlags.eager, 0);
  const forge = (change: (view: DataView) => void): void => {
    const copy = packet.slice();
    const view = new DataView(copy.buffer);
    view.setUint32(dataHeader.offset.sequence, view.getUint32(dataHeader.offset.sequence, true) + 1, true);
    change(view);
    const before = net.b.engine.drops.bounds;
    net.receive(net.b, copy);
    assert.equal(net.b.engine.drops.bounds, before + 1);
  };
  forge(() => {});
  forge((view) => view.setUint32(dataHeader.offset.base, 77, true));
  forge((view) => view.setUint32(dataHeader.offset.target, EAGER_SLOTS << 16, true));
  forge((view) => view.setUint32(dataHeader.offset.messageBytes, 5, true));
  forge((view) => view.setUint32(dataHeader.offset.offset, 1, true));
});
