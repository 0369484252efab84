// A link over RDMA whose connection breaks, over a device that is played: what ends how, and what goes again.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { BackendTransfer } from '#lib/agent/backend.js';
import type { EndFailure, EndUser, RdmaDevice, RdmaEnd, RemoteKeys } from '#lib/agent/rdma/rdma-device.js';
import { type LinkOptions, RdmaLink } from '#lib/agent/rdma/rdma-link.js';
import type { RdmaCaller, RdmaWelcome } from '#lib/agent/rdma/rdma-meeting.js';
import { RdmaRegion } from '#lib/agent/rdma/rdma-region.js';
import { RDMA_MESSAGES, rdmaRegionInfo } from '#lib/agent/rdma/rdma-messages.js';
import { sendOpcode } from '#lib/native/verbs/c-structs.js';
import { WeftlineError } from 'weftline';
import { hostMemory } from '../../../local/support/backend-context.ts';
import { planned } from '../../../local/support/planned-transfer.ts';
import { until } from '../../../support/until.ts';
import { withCode } from '../../../support/with-code.ts';

interface Request {
  readonly opcode: number;
  remote: number;
}

/** Requests are posted, and nothing ends but by the test. */
class PlayedEnd implements RdmaEnd {
  readonly address = {};
  readonly isReady = true;
  readonly route = 'here to there';
  readonly posted: Request[] = [];
  user: EndUser | undefined;
  #started: Request[] = [];
  #count = 0;

  readonly sends = {
    room: 1024,
    unposted: 0,
    nextSequence: 0,
    start: (opcode: number): boolean => {
      this.#started.push({ opcode, remote: 0 });
      this.sends.nextSequence = ++this.#count;
      this.sends.unposted = this.#started.length;
      return true;
    },
    order: (): void => {},
    add: (): void => {},
    target: (remote: number): void => {
      this.#started.at(-1)!.remote = remote;
    },
    addend: (remote: number): void => this.sends.target(remote),
    immediate: (): void => {},
    signal: (): void => {},
    post: (): void => {
      this.posted.push(...this.#started);
      this.#started = [];
      this.sends.unposted = 0;
    },
    doneUntil: (): void => {},
  };

  use(user: EndUser): void {
    this.user = user;
  }

  connect(): void {
    // It is.
  }

  replenish(): void {
    // It receives nothing.
  }

  close(): void {
    // Nothing is left.
  }

  fail(kind: EndFailure['kind']): void {
    this.user?.failed({ kind, sequence: 0, tag: 0, error: new WeftlineError('WL_PEER_LOST', 'it broke') });
  }
}

/** The number of a key is its first byte; so is its name. */
const keys: RemoteKeys = {
  add: ([number]) => number,
  remove: () => {},
  namesOf: (numbers) => new Map([...numbers].map((number) => [number, String(number)])),
};

const KEY_A = 10;
const KEY_B = 20;

interface Played {
  readonly link: RdmaLink;
  readonly ends: readonly PlayedEnd[];
  readonly asked: (readonly string[])[];
  answer: Partial<RdmaWelcome>;
  /** The peer meets nobody. */
  gone: WeftlineError | undefined;
  /** Writes or reads memory of the peer with that key. */
  prepare(key: number, offset: number, operation?: 'write' | 'read'): Promise<BackendTransfer>;
  readonly local: RdmaRegion;
  remote(key: number): ReturnType<RdmaLink['importRegion']>;
}

async function play(): Promise<Played> {
  const ends: PlayedEnd[] = [];
  const asked: (readonly string[])[] = [];
  const memory = { localKey: 1, remoteKey: Uint8Array.of(1, 0, 0, 0), close: () => {} };
  const device = {
    hasAtomics: true,
    chunkBytes: 1 << 20,
    register: () => memory,
    openKeys: () => keys,
    openEnd: () => {
      ends.push(new PlayedEnd());
      return ends.at(-1);
    },
  } as unknown as RdmaDevice;
  const channel = { unref: () => {}, watch: () => {}, close: () => {}, refuse: () => {} };
  const played = { answer: {} as Partial<RdmaWelcome>, gone: undefined as WeftlineError | undefined };
  const meet = async (own: Omit<RdmaCaller, 'name'>): Promise<unknown> => {
    asked.push(own.asked);
    if (played.gone !== undefined) throw played.gone;
    const welcome = { end: { mailbox: { address: 4096, key: '01000000' } }, guest: 'g', gone: [], ...played.answer };
    return { channel, welcome };
  };
  const link = await RdmaLink.open({
    peer: 'there',
    device,
    meet: meet as LinkOptions['meet'],
    onEnd: () => {},
    ring: () => {},
    until: async (isSo) => isSo(),
  });
  const local = new RdmaRegion(device, hostMemory(new Uint8Array(new SharedArrayBuffer(4096))));
  const regions = new Map<number, ReturnType<RdmaLink['importRegion']>>();
  const remote = (key: number): ReturnType<RdmaLink['importRegion']> => {
    const known =
      regions.get(key) ??
      link.importRegion(Uint8Array.of(...new Uint8Array(rdmaRegionInfo.size), key, 0, 0, 0), { bytes: 4096 });
    regions.set(key, known);
    return known;
  };
  return Object.assign(played, {
    link,
    ends,
    asked,
    local,
    remote,
    prepare: (key: number, remoteOffset: number, operation: 'write' | 'read' = 'write') =>
      link.prepare(operation, planned([{ local, localOffset: 0, remote: remote(key), remoteOffset, bytes: 64 }])),
  });
}

/** Remote addresses of writes and reads; the peer's inbox lies from 4096 on. */
function moved({ posted }: PlayedEnd): number[] {
  return posted.filter(({ remote }) => remote < 4096).map(({ remote }) => remote);
}

async function broken(played: Played, kind: EndFailure['kind'] = 'unclear'): Promise<void> {
  const before = played.ends.length;
  played.ends.at(-1)?.fail(kind);
  played.link.look();
  await until(() => played.ends.length > before && played.ends.at(-1)?.user !== undefined);
}

test('what a message that has arrived covers is done; transfers behind it go again, in order', async () => {
  const played = await play();
  const transfers = [];
  for (let index = 0; index < 5; index += 1) transfers.push(await played.prepare(KEY_A, index * 64));
  for (const [index, transfer] of transfers.entries()) transfer.post(index % 2 === 1 ? Buffer.from('told') : undefined);
  // The first request is the wake of a new connection.
  played.ends[0]!.user?.done(1);
  assert.equal(transfers[0]?.state, 'done');
  played.answer = { arrived: 1 };
  await broken(played);
  assert.deepEqual(
    transfers.map(({ state }) => state),
    ['done', 'done', 'pending', 'pending', 'pending'],
  );
  assert.deepEqual(moved(played.ends[1]!), [128, 192, 256]);
  const { sends, user } = played.ends[1]!;
  user?.done(sends.nextSequence - 1);
  assert.ok(transfers.every(({ state }) => state === 'done'));
  assert.deepEqual(played.asked, [[], [String(KEY_A)]]);
});

test('what names memory that the peer has taken back was refused; the rest goes again', async () => {
  const played = await play();
  const [first, second] = [await played.prepare(KEY_A, 0), await played.prepare(KEY_B, 64, 'read')];
  first.post();
  second.post();
  played.ends[0]!.user?.done(-1 >>> 0);
  played.answer = { arrived: 0, gone: [String(KEY_A)] };
  await broken(played);
  withCode('WL_UNAUTHORIZED', /there has taken back/)(first.error);
  assert.deepEqual(moved(played.ends[1]!), [64]);
  assert.equal(played.link.isWithdrawn(played.remote(KEY_A)), true);
  assert.throws(() => first.post(), withCode('WL_UNAUTHORIZED'));
});

test('puts and signals whose fate is unknown end their channel, and go nowhere again', async () => {
  const played = await play();
  const channel = played.link.openChannel();
  const place = { local: played.local, localOffset: 0, remote: played.remote(KEY_A), remoteOffset: 0, bytes: 64 };
  assert.ok(channel.put(place));
  assert.ok(channel.signal(played.remote(KEY_A), 128, 1));
  played.ends[0]!.user?.done(-1 >>> 0);
  played.answer = { arrived: 0 };
  await broken(played);
  withCode('WL_PEER_FAILED', /may have been carried out/)(channel.error);
  assert.equal(channel.delivered, 0);
  assert.ok(!played.ends[1]!.posted.some(({ opcode }) => opcode === sendOpcode.fetchAdd));
  assert.deepEqual(moved(played.ends[1]!), []);
});

test('a peer that does not know what has arrived gets nothing again', async () => {
  const played = await play();
  const transfer = await played.prepare(KEY_A, 0);
  transfer.post();
  played.ends[0]!.user?.done(-1 >>> 0);
  await broken(played);
  withCode('WL_PEER_FAILED')(transfer.error);
  assert.equal(played.link.state, 'open');
});

test('a connection that carried nothing again costs its oldest operation, so that the others get through', async () => {
  const played = await play();
  const transfers = [await played.prepare(KEY_A, 0), await played.prepare(KEY_B, 64)];
  for (const transfer of transfers) transfer.post();
  played.ends[0]!.user?.done(-1 >>> 0);
  played.answer = { arrived: 0 };
  await broken(played);
  await broken(played);
  withCode('WL_PEER_FAILED')(transfers[0]!.error);
  assert.equal(transfers[1]!.state, 'pending');
  assert.deepEqual(moved(played.ends[2]!), [64]);
});

test('a way that has never carried anything, and a broken one without operations, are given up', async () => {
  const unused = await play();
  unused.ends[0]!.fail('unclear');
  unused.link.look();
  assert.equal(unused.link.state, 'dead');
  const silent = await play();
  const transfer = await silent.prepare(KEY_A, 0);
  transfer.post();
  silent.ends[0]!.fail('unanswered');
  silent.link.look();
  withCode('WL_PEER_LOST')(transfer.error);
});

test('refused memory counts as taken back once the peer has answered, as lost with a peer that does not', async () => {
  for (const gone of [undefined, new WeftlineError('WL_PEER_LOST', 'nobody listens')]) {
    const played = await play();
    const [first, second] = [await played.prepare(KEY_A, 0), await played.prepare(KEY_B, 64)];
    for (const transfer of [first, second]) transfer.post();
    played.gone = gone;
    played.ends[0]!.fail('access');
    played.link.look();
    assert.equal(first.state, 'pending');
    await until(() => first.state !== 'pending');
    withCode(gone === undefined ? 'WL_UNAUTHORIZED' : 'WL_PEER_LOST')(first.error);
    assert.equal(played.link.isWithdrawn(played.remote(KEY_A)), gone === undefined);
    assert.equal(played.link.isWithdrawn(played.remote(KEY_B)), false);
    if (gone !== undefined) withCode('WL_PEER_LOST')(second.error);
    else await until(() => played.ends.length === 2 && moved(played.ends[1]!).includes(64));
  }
});

test('a way that has carried something and then gets no answer is tried once more', async () => {
  const played = await play();
  const transfers = [0, 64, 128].map((offset) => played.prepare(KEY_A, offset));
  for (const transfer of await Promise.all(transfers)) transfer.post();
  played.ends[0]!.user?.done(-1 >>> 0);
  played.answer = { arrived: 0 };
  await broken(played, 'unanswered');
  await broken(played, 'unanswered');
  assert.equal(played.link.state, 'open');
  played.ends.at(-1)!.fail('unanswered');
  played.link.look();
  assert.equal(played.link.state, 'dead');
  withCode('WL_PEER_LOST')((await transfers[2]!).error);
});

test('a peer that takes no messages any more is looked after: a connection that only it knows to be broken is found', async () => {
  const { link, ends } = await play();
  const { sends, user, posted } = ends[0]!;
  for (let message = 0; message < RDMA_MESSAGES; message += 1) link.notify(Buffer.from('told'));
  user?.done(sends.nextSequence - 1);
  const before = posted.length;
  assert.throws(() => link.notify(Buffer.from('more')), withCode('WL_BUSY'));
  assert.deepEqual(
    posted.slice(before).map(({ opcode }) => opcode),
    [sendOpcode.writeWithImmediate],
  );
  // One at a time, and not again and again.
  assert.throws(() => link.notify(Buffer.from('more')), withCode('WL_BUSY'));
  assert.equal(posted.length, before + 1);
  ends[0]!.fail('unanswered');
  link.look();
  assert.throws(() => link.notify(Buffer.from('more')), withCode('WL_PEER_LOST'));
});
