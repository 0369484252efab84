// What a peer says of its queue pairs: whatever it is, it is taken as it should be or refused, and nothing of it is believed.
import assert from 'node:assert/strict';
import test from 'node:test';
import { countOf, flowLabelOf, gidsOf, readOffer } from '#lib/transport/io/verbs/verbs-port.js';

const end = { number: 17, queueKey: 0x7fff_ffff, firstSequence: 0xff_ffff };
const port = { gid: '00000000000000000000ffff0a4d0001', lid: 0, mtu: 4096 };
const other = { gid: '00000000000000000000ffff0a4e0001', lid: 3, mtu: 1024 };
const offer = { rails: [port, other], ends: [end, { ...end, number: 18 }] };

test('an offer is read', () => {
  assert.deepEqual(readOffer(offer, 2), offer);
  assert.equal(countOf(offer), 2);
  assert.deepEqual(gidsOf(offer), [port.gid, other.gid]);
});

const wrong: Readonly<Record<string, unknown>> = {
  nothing: undefined,
  'a list': [offer],
  'another number of ends': { ...offer, ends: [end] },
  'no ends': { ...offer, ends: [] },
  'too many ends': { ...offer, ends: Array.from({ length: 257 }, () => end) },
  'no ports': { ...offer, rails: [] },
  'ports that are none': { ...offer, rails: [port, 'a port'] },
  'more ports than ends': { ...offer, rails: [port, port, port] },
  'ends that are none': { ...offer, ends: [end, 7] },
  'an address that is too short': { ...offer, rails: [{ ...port, gid: '00' }] },
  'an address of other letters': { ...offer, rails: [port, { ...port, gid: 'g'.repeat(32) }] },
  'an MTU between sizes': { ...offer, rails: [{ ...port, mtu: 1500 }] },
  'an MTU of 0': { ...offer, rails: [{ ...port, mtu: 0 }] },
  'an MTU that is too large': { ...offer, rails: [{ ...port, mtu: 8192 }] },
  'a queue pair beyond 24 bits': { ...offer, ends: [end, { ...end, number: 2 ** 24 }] },
  'a key of privileged users': { ...offer, ends: [end, { ...end, queueKey: 2 ** 31 }] },
  'a negative sequence': { ...offer, ends: [end, { ...end, firstSequence: -1 }] },
  'a lid beyond 16 bits': { ...offer, rails: [{ ...port, lid: 65_536 }] },
};

for (const [what, said] of Object.entries(wrong)) {
  test(`an offer with ${what} is refused`, () => {
    assert.throws(() => readOffer(said, 2), { code: 'WL_PROTOCOL' });
  });
}

test('queue pairs that follow each other have flow labels, and so UDP source ports, of their own', () => {
  const labels = Array.from({ length: 64 }, (_, path) => flowLabelOf(0x11 + path, 0x2000 + path));
  assert.ok(labels.every((label) => label >= 0 && label < 2 ** 20));
  // From a flow label, drivers of RoCE v2 make the source port so.
  const ports = new Set(labels.map((label) => ((label & 0x3fff) ^ ((label & 0xf_c000) >> 14)) | 0xc000));
  assert.ok(ports.size >= 60, `${ports.size} ports for 64 paths`);
});
