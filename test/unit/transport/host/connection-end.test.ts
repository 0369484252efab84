// The end of a connection of several lanes: what one lane says of it, and what becomes of the others.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import { encodeError } from '#lib/core/errors.js';
import type { ControlChannel } from '#lib/meeting/control-channel.js';
import type { ChannelPool } from '#lib/transport/host/channel.js';
import { Connection } from '#lib/transport/host/connection.js';
import type { EngineGroup } from '#lib/transport/host/engine-group.js';
import type { RequestSlots } from '#lib/transport/host/request-slots.js';

function nothing(): void {}

/** A connection over two engines that notes which of them were told to end their lanes, and why. */
function openConnection() {
  const ended: { readonly engine: number; readonly code: string }[] = [];
  const call = async (engine: number, kind: string, { error }: { readonly error: { readonly code: string } }) => {
    assert.equal(kind, 'end');
    ended.push({ engine, code: error.code });
  };
  const channel = { localAddress: 'here', remoteAddress: 'there', watch: nothing, unref: nothing, hangUp: nothing };
  const connection = new Connection({
    group: { call } as unknown as EngineGroup,
    slots: {} as RequestSlots,
    channels: {} as ChannelPool,
    channel: channel as unknown as ControlChannel,
    ends: [0, 1].map((engine) => ({ engine, number: 7 })),
    spread: 'turn',
    isRegistered: () => true,
    peerName: 'b',
    rails: [],
    paths: 2,
    segmentBytes: 1472,
    cutsSends: true,
    hello: undefined,
    onClose: nothing,
  });
  return { connection, ended };
}

const closed = encodeError(new WeftlineError('WL_CLOSED', 'b closed the connection'));
const silent = encodeError(new WeftlineError('WL_PEER_LOST', 'b gave the connection up'));
const bothEnded = (code: string) => [0, 1].map((engine) => ({ engine, code }));

test('a peer that closes ends lane by lane: acknowledgements of the other lane may still come', () => {
  const { connection, ended } = openConnection();
  connection.endWith(1, closed);
  const before: WeftlineError | undefined = connection.error;
  assert.equal(before, undefined);
  assert.throws(() => connection.flush(), { code: 'WL_CLOSED' });
  assert.deepEqual(ended, []);
  connection.endWith(0, closed);
  assert.equal(connection.error?.code, 'WL_CLOSED');
  assert.deepEqual(ended, bothEnded('WL_CLOSED'));
});

test('a lane whose end comes late, as from a thread that gets no processor for a while, still has its own', (t) => {
  const { connection, ended } = openConnection();
  const { mock } = t.mock.method(globalThis, 'setTimeout', () => ({ unref: nothing }));
  connection.endWith(1, closed);
  const [timer] = mock.calls;
  mock.restore();
  // The other lane gets a while, at the end of which it ends as well.
  assert.ok((timer?.arguments[1] ?? 0) >= 1000);
  assert.deepEqual(ended, []);
  connection.endWith(0, closed);
  assert.deepEqual(ended, bothEnded('WL_CLOSED'));
});

test('a lane whose end does not come ends after a while', (t) => {
  const { connection, ended } = openConnection();
  const { mock } = t.mock.method(globalThis, 'setTimeout', () => ({ unref: nothing }));
  connection.endWith(0, closed);
  const [timer] = mock.calls;
  mock.restore();
  assert.deepEqual(ended, []);
  timer?.arguments[0]?.();
  assert.deepEqual(ended, bothEnded('WL_CLOSED'));
});

test('a peer that is lost ends all lanes at once', () => {
  const { connection, ended } = openConnection();
  connection.endWith(0, silent);
  assert.deepEqual(ended, bothEnded('WL_PEER_LOST'));
});
