// Messages of endpoints as notifications, and who gets those that come before their connection.
import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../../support/fast-check.ts';
import type { WeftlineError } from 'weftline';
import { MAX_NOTIFICATION_BYTES } from '#lib/agent/backend.js';
import type { EndpointConnection } from '#lib/agent/endpoint/endpoint-connection.js';
import { connectionOf, encodeMessage, encodePieces, MessageReader } from '#lib/agent/endpoint/message.js';
import { MessageRouter } from '#lib/agent/endpoint/endpoint.js';

const head = { kind: 2, connection: 5, request: 9, bytes: 2 ** 40 };

test('a payload of any length arrives as it was, in notifications that every backend carries', () => {
  const reader = new MessageReader();
  for (const bytes of [0, 1, 32_727, 32_728, 32_729, 65_456, 65_457, 1_000_000]) {
    const payload = Uint8Array.from({ length: bytes }, (_, at) => at * 31);
    const pieces = [...encodePieces(head, payload)];
    assert.ok(pieces.every((piece) => piece.length <= MAX_NOTIFICATION_BYTES));
    assert.equal(pieces.length, Math.max(1, Math.ceil(bytes / 32_728)));
    for (const [index, piece] of pieces.entries()) {
      assert.equal(connectionOf(piece), 5);
      const message = reader.read(piece);
      assert.equal(message !== undefined, index === pieces.length - 1);
      // What has no payload may come at any time.
      if (bytes > 0) assert.equal(reader.read(encodeMessage({ ...head, kind: 3 }))?.kind, 3);
      if (message !== undefined) assert.deepEqual(message, { ...head, payload });
    }
    assert.equal(reader.unfinishedBytes, 0);
  }
});

test('bytes of anybody are read, ignored or refused with WL_PROTOCOL', () => {
  const reader = new MessageReader();
  const magic = encodeMessage(head).subarray(0, 4);
  const anything = fc.oneof(
    fc.uint8Array({ maxLength: 80 }),
    fc.uint8Array({ minLength: 28, maxLength: 80 }).map((bytes) => Buffer.concat([magic, bytes])),
  );
  fc.assert(
    fc.property(anything, (bytes) => {
      if (connectionOf(bytes) === undefined) return;
      try {
        reader.read(bytes);
      } catch (error) {
        assert.equal((error as WeftlineError).code, 'WL_PROTOCOL');
      }
    }),
    { numRuns: 5000 },
  );
});

interface Pretended {
  readonly heard: number[];
  error: WeftlineError | undefined;
  readonly connection: EndpointConnection;
}

function pretend(id: number, peer: string): Pretended {
  const heard: number[] = [];
  const pretended = { heard, error: undefined as WeftlineError | undefined };
  const connection = {
    id,
    peer,
    handle: (message: Uint8Array) => heard.push(message.length),
    end: (error: WeftlineError) => (pretended.error ??= error),
  } as unknown as EndpointConnection;
  return Object.assign(pretended, { connection });
}

function of(connection: number, bytes = 0): Uint8Array {
  const [message] = encodePieces({ ...head, connection }, new Uint8Array(bytes));
  return message as Uint8Array;
}

test('what comes before its connection is kept for the peer whose connection it becomes, up to a limit', () => {
  const connections = new Map<number, EndpointConnection>();
  const router = new MessageRouter(connections);
  const hear = (peer: string, message: Uint8Array): void => router.hear({ peer, message });
  hear('a', of(1));
  router.expect(1);
  router.expect(2);
  hear('a', of(1, 10));
  hear('b', of(1, 20));
  hear('a', of(1, 30));
  // Some peer fills what it may, for a connection that is another's, and then for its own.
  for (let count = 0; count < 500; count++) hear('c', of(1, 30_000));
  for (let count = 0; count < 500; count++) hear('c', of(2, 30_000));
  const [first, second] = [pretend(1, 'a'), pretend(2, 'c')];
  connections.set(1, first.connection);
  router.deliverEarly(first.connection);
  assert.deepEqual(first.heard, [42, 62]);
  assert.equal(first.error, undefined);
  connections.set(2, second.connection);
  router.deliverEarly(second.connection);
  assert.ok(second.heard.length < 100);
  assert.equal(second.error?.code, 'WL_PROTOCOL');
  hear('a', of(1, 1));
  hear('b', of(1, 2));
  assert.deepEqual(first.heard, [42, 62, 33]);
  // Its room is free again.
  router.expect(3);
  hear('c', of(3, 30_000));
  router.settle(3);
  router.settle(3);
  router.expect(4);
  hear('c', of(4, 7));
  const third = pretend(4, 'c');
  router.deliverEarly(third.connection);
  assert.deepEqual(third.heard, [39]);
  assert.equal(third.error, undefined);
});
