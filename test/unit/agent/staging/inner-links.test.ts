// Links that several users of a staging thread share.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from '#lib/core/errors.js';
import type { Backend, BackendPeer } from '#lib/agent/backend.js';
import { InnerLinks } from '#lib/agent/staging/greeter.js';

const peer: BackendPeer = {
  name: 'b',
  incarnation: '0123456789abcdef',
  host: 'h',
  process: 1,
  connectionInfo: new Uint8Array(4),
};
const options = { timeoutMs: 30_000 };

function open() {
  const made: { error: WeftlineError | undefined; close: () => Promise<void> }[] = [];
  const connect = async () => {
    const link = {
      error: undefined as WeftlineError | undefined,
      async close() {
        link.error = new WeftlineError('WL_CLOSED', 'closed');
      },
    };
    made.push(link);
    return link;
  };
  return { made, links: new InnerLinks({ connect } as unknown as Backend) };
}

test('a link that its only user gives back while another asks for it stays open', async () => {
  const { made, links } = open();
  const first = await links.use(peer, options);
  const asking = links.use(peer, options);
  await first.giveBack();
  const second = await asking;
  assert.equal(second.link.error, undefined);
  await second.giveBack();
  assert.ok(made.every(({ error }) => error !== undefined));
});

test('a link that has ended is not handed out again', async () => {
  const { made, links } = open();
  const first = await links.use(peer, options);
  made[0]!.error = new WeftlineError('WL_PEER_LOST', 'gone');
  const second = await links.use(peer, options);
  assert.equal(second.link.error, undefined);
  await first.giveBack();
  assert.equal(second.link.error, undefined);
  await second.giveBack();
  assert.equal(made.length, 2);
  assert.equal(made[1]!.error?.code, 'WL_CLOSED');
});
