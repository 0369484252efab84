// Memory that moves on while the link to a peer breaks: the wait that follows names the peer, not the transport's words.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { ChannelParts } from '#lib/agent/agent-options.js';
import type { BackendRemoteRegion } from '#lib/agent/backend.js';
import type { Registration } from '#lib/agent/registration.js';
import { NetworkLink } from '#lib/group/network/network-link.js';

const memory = { regionBy: () => ({}) } as unknown as Registration;

/** A link whose peer can be lost, and whose channel can fail without that. */
async function pretend(): Promise<{ readonly link: NetworkLink; lose: () => void; failToShare: () => void }> {
  const state: { error: Error | undefined; why: Error | undefined } = { error: undefined, why: undefined };
  const channel = {
    posted: 0,
    delivered: 0,
    error: undefined,
    shareParts: async () => {
      if (state.why !== undefined) throw state.why;
      return undefined;
    },
  };
  const parts = {
    backend: 'multipath',
    local: {},
    link: {
      get error() {
        return state.error;
      },
      openChannel: () => channel,
    },
  };
  const link = await NetworkLink.open({
    parts: parts as unknown as ChannelParts,
    remotes: [{} as unknown as BackendRemoteRegion],
    channels: 1,
    rows: 4,
    rowWindow: 0,
    hasClosed: () => false,
  });
  return {
    link,
    lose: () => (state.error = state.why = new Error('the peer is gone')),
    failToShare: () => (state.why = new Error('no memory')),
  };
}

test('a link that broke takes new memory without a word', async () => {
  const { link, lose } = await pretend();
  lose();
  await link.useMemory(memory);
  assert.match(String(link.error), /the peer is gone/);
});

test('an open link says why it cannot take new memory', async () => {
  const { link, failToShare } = await pretend();
  failToShare();
  await assert.rejects(link.useMemory(memory), /no memory/);
});
