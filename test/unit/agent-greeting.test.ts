// A greeting between agents over the transport gives back every request, however it ends.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import type { Connection, Request, Transport } from 'weftline/transport';
import { greet, receive } from '#lib/agent/backends/multipath/agent-greeting.js';

type Fate = 'done' | 'silent' | 'failed';

/** A transport whose sends and receives end as told; `open` are the requests that nobody has taken. */
function pretendedTransport(fates: { readonly send: Fate; readonly receive: Fate }): {
  readonly transport: Transport;
  readonly connection: Connection;
  readonly open: ReadonlyMap<Request, Fate>;
} {
  const open = new Map<Request, Fate>();
  let next = 0;
  const post = (fate: Fate): Request => {
    open.set(next, fate);
    return next++;
  };
  const take = (request: Request): number => {
    const fate = open.get(request);
    if (fate === undefined) throw new WeftlineError('WL_INVALID_ARGUMENT', 'taken');
    assert.notEqual(fate, 'silent');
    open.delete(request);
    if (fate === 'failed') throw new WeftlineError('WL_PEER_LOST', 'gone');
    return 0;
  };
  const transport = {
    register: async (bytes: Uint8Array) => ({ bytes }),
    release: async () => {
      for (const [request, fate] of open) if (fate === 'silent') open.set(request, 'failed');
    },
    wait: async (request: Request) => {
      if (open.get(request) === 'silent') throw new WeftlineError('WL_TIMEOUT', 'late');
      return take(request);
    },
    take,
  };
  const connection = {
    peerName: 'b',
    error: undefined,
    send: () => post(fates.send),
    receive: () => post(fates.receive),
  };
  return {
    transport: transport as unknown as Transport,
    connection: connection as unknown as Connection,
    open,
  };
}

const words = { name: 'a', incarnation: '1', expects: '2', region: 1, key: 1 };
const cases = [
  [{ send: 'done', receive: 'silent' }, 'WL_TIMEOUT'],
  [{ send: 'silent', receive: 'silent' }, 'WL_TIMEOUT'],
  [{ send: 'failed', receive: 'silent' }, 'WL_PEER_LOST'],
  [{ send: 'done', receive: 'failed' }, 'WL_PEER_LOST'],
  // What comes is no greeting.
  [{ send: 'done', receive: 'done' }, 'WL_PROTOCOL'],
] as const;

for (const [fates, code] of cases) {
  test(`greet() with sends ${fates.send} and receives ${fates.receive} keeps no request`, async () => {
    const { transport, connection, open } = pretendedTransport(fates);
    await assert.rejects(greet(transport, connection, words, { timeoutMs: 1 }), { code });
    assert.equal(open.size, 0);
  });

  test(`receive() with sends ${fates.send} and receives ${fates.receive} keeps no request`, async () => {
    const { transport, connection, open } = pretendedTransport(fates);
    await assert.rejects(
      receive(transport, connection, () => assert.fail(), { timeoutMs: 1 }),
      WeftlineError,
    );
    assert.equal(open.size, 0);
  });
}
