import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import test from 'node:test';
import fc from '../../support/fast-check.ts';
import { WeftlineError } from 'weftline';
import { type AgentMetadata, decodeMetadata, encodeMetadata } from '#lib/agent/metadata.js';
import { type LinkWait, RemoteAgents } from '#lib/agent/remote-agent.js';
import { Deadline } from '#lib/core/deadline.js';

const sample: AgentMetadata = {
  name: 'prefill 3 – Zürich',
  incarnation: '0123456789abcdef',
  host: 'boot/shm/host',
  process: 4711,
  isWhole: true,
  connections: new Map([
    ['local', Uint8Array.of(1, 0, 2)],
    ['multipath', new Uint8Array(0)],
  ]),
  regions: [
    {
      number: 7,
      name: 'cache',
      kind: 'cuda',
      address: 0x7fff_1234_5678,
      bytes: 80e9,
      info: new Map([['local', Uint8Array.of(9)]]),
    },
    { number: 8, name: '', kind: 'host', address: 4096, bytes: 1, info: new Map() },
  ],
  withdrawn: [3, 0xffff_ffff],
};

function isRefused(bytes: Uint8Array): void {
  assert.throws(
    () => decodeMetadata(bytes),
    (error: WeftlineError) => error.code === 'WL_PROTOCOL' && error.message.startsWith('These bytes are not metadata'),
  );
}

test('metadata come back as they were, from any place of a buffer', () => {
  const encoded = encodeMetadata(sample);
  const shifted = new Uint8Array(encoded.length + 3);
  shifted.set(encoded, 3);
  assert.deepEqual(decodeMetadata(encoded), sample);
  assert.deepEqual(decodeMetadata(shifted.subarray(3)), sample);
  assert.deepEqual(decodeMetadata(encodeMetadata({ ...sample, isWhole: false })).isWhole, false);
});

test('bytes that were changed, cut, or never were metadata are refused', () => {
  const encoded = encodeMetadata(sample);
  for (let length = 0; length < encoded.length; length++) isRefused(encoded.subarray(0, length));
  for (let at = 0; at < encoded.length; at++) {
    // Whether all regions are listed is not covered.
    if (at === 6 || at === 7) continue;
    const changed = encoded.slice();
    changed[at] = (changed[at] as number) ^ 0x10;
    isRefused(changed);
  }
  fc.assert(fc.property(fc.uint8Array({ maxLength: 300 }), isRefused));
});

test('names that would confuse are refused', () => {
  for (const name of ['', 'a\nb', 'a\u202eb', 'a\u0085b', '\u200b', 'x'.repeat(256)])
    isRefused(encodeMetadata({ ...sample, name }));
  isRefused(encodeMetadata({ ...sample, incarnation: 'g123456789abcdef' }));
});

const KNOWN = '0000000000000001';
const OTHER = '0000000000000002';

/** Metadata of an agent that is known by one backend. */
function metadataOf(incarnation: string, name: string, more: Partial<AgentMetadata> = {}): AgentMetadata {
  const region = { number: 1, name, kind: 'host', address: 4096, bytes: 1, info: new Map() } as const;
  const connections = new Map([['ucx', new Uint8Array()]] as const);
  return { ...sample, name: 'b', incarnation, connections, regions: [region], withdrawn: [], ...more };
}

function wait(): LinkWait {
  return { timeoutMs: 60_000, deadline: new Deadline(60_000) };
}

test('a life takes the place of the known one if it alone answers', async () => {
  const cases = [
    { other: 'WL_UNSUPPORTED', known: undefined, isTaken: false },
    { other: 'WL_UNSUPPORTED', known: 'WL_PEER_LOST', isTaken: false },
    { other: 'WL_UNSUPPORTED', known: 'WL_UNSUPPORTED', isTaken: false },
    { other: 'WL_CAPACITY', known: undefined, isTaken: false },
    { other: 'WL_CAPACITY', known: 'WL_PEER_LOST', isTaken: false },
    { other: undefined, known: 'WL_CAPACITY', isTaken: false },
    { other: undefined, known: 'WL_UNSUPPORTED', isTaken: true },
    { other: undefined, known: undefined, isTaken: false },
    { other: undefined, known: 'WL_TIMEOUT', isTaken: true },
    { other: 'WL_PEER_LOST', known: 'WL_PEER_LOST', isTaken: false },
  ] as const;
  for (const { other, known, isTaken } of cases) {
    const remotes = new RemoteAgents(async ({ incarnation }) => {
      const code = incarnation === OTHER ? other : known;
      if (code !== undefined) throw new WeftlineError(code, 'nobody answers');
    });
    await remotes.load(metadataOf(KNOWN, 'known'), wait());
    const load = remotes.load(metadataOf(OTHER, 'other'), wait());
    if (isTaken) await load;
    else await assert.rejects(load, { code: 'WL_STALE' }, `${other}, ${known}`);
    assert.equal(remotes.get('b', 'a').incarnation, isTaken ? OTHER : KNOWN, `${other}, ${known}`);
  }
});

test('metadata of one life are taken in the order of their calls while it is asked', async () => {
  const asked: string[] = [];
  const answered = new EventEmitter();
  const remotes = new RemoteAgents(async ({ incarnation }) => {
    asked.push(incarnation);
    if (incarnation === KNOWN) throw new WeftlineError('WL_PEER_LOST', 'it has ended');
    await once(answered, 'answer');
  });
  await remotes.load(metadataOf(KNOWN, 'known'), wait());
  const whole = remotes.load(metadataOf(OTHER, 'first'), wait());
  const [region] = metadataOf(OTHER, 'second').regions;
  const more = { isWhole: false, connections: new Map(), regions: [{ ...region!, number: 2 }] };
  const increment = remotes.load(metadataOf(OTHER, 'second', more), wait());
  // The known life is told of, too, and waits for no other.
  await remotes.load(metadataOf(KNOWN, 'known still'), wait());
  assert.equal(remotes.get('b', 'a').memory[0]?.name, 'known still');
  answered.emit('answer');
  await Promise.all([whole, increment]);
  assert.deepEqual(
    remotes.get('b', 'a').memory.map(({ name }) => name),
    ['first', 'second'],
  );
  assert.deepEqual(asked, [OTHER, KNOWN]);
});

test('metadata that wait for earlier ones of the same life do so no longer than their call', async () => {
  const remotes = new RemoteAgents(({ incarnation }) =>
    incarnation === KNOWN ? Promise.reject(new WeftlineError('WL_PEER_LOST', 'it has ended')) : new Promise(() => {}),
  );
  await remotes.load(metadataOf(KNOWN, 'known'), wait());
  void remotes.load(metadataOf(OTHER, 'first'), wait());
  const late = remotes.load(metadataOf(OTHER, 'second'), { timeoutMs: 10, deadline: new Deadline(10) });
  await assert.rejects(late, { code: 'WL_TIMEOUT', message: /agent b within 10 ms/ });
});
