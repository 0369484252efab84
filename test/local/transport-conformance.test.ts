// What a connection promises, over UDP sockets of this machine; the guest with RDMA devices runs the same over queue pairs.
import test from 'node:test';
import type { Settings } from 'weftline';
import { openPair, transportPromises } from '../support/transport-conformance.ts';

const ways: Readonly<Record<string, Partial<Settings>>> = {
  'engine threads': {},
  "the caller's thread, authenticated": { transportThread: false, transportAuthentication: true },
};

for (const [way, settings] of Object.entries(ways)) {
  test(`udp, ${way}`, async (t) => {
    await using pair = await openPair(settings);
    for (const [name, holds] of Object.entries(transportPromises)) await t.test(name, () => holds(pair));
  });
}
