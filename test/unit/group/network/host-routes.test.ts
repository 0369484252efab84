// Tests which rank sends to which across hosts, for any numbers of ranks per host.
import assert from 'node:assert/strict';
import test from 'node:test';
import { directRoutes, type Hosts, hostRoutes, maxServed, maxServedDirectly } from '#lib/group/network/host-routes.js';
import fc from '../../../support/fast-check.ts';

/** Hosts of 1 to 6 ranks, in order or dealt out in turn. */
const anyHosts: fc.Arbitrary<Hosts> = fc
  .record({ lengths: fc.array(fc.integer({ min: 1, max: 6 }), { minLength: 1, maxLength: 5 }), dealt: fc.boolean() })
  .map(({ lengths, dealt }) => {
    const left = lengths.flatMap((length, host) => Array.from({ length }, (_, index) => ({ host, index })));
    if (dealt) left.sort((a, b) => a.index - b.index || a.host - b.host);
    return lengths.map((_, host) => left.flatMap((place, rank) => (place.host === host ? [rank] : [])));
  });

function routesOf(hosts: Hosts): ReturnType<typeof hostRoutes>[] {
  return hosts.flat().map((_, rank) => hostRoutes(hosts, rank));
}

test('every rank has one forwarder on each other host, which serves it in the slot that the way names', () => {
  fc.assert(
    fc.property(anyHosts, (hosts) => {
      const all = routesOf(hosts);
      for (const [rank, { ways, host }] of all.entries()) {
        const others = ways.map((way) => way.host).toSorted((a, b) => a - b);
        assert.deepEqual(
          others,
          hosts.flatMap((_, there) => (there === host ? [] : [there])),
        );
        assert.ok(hosts[host]!.includes(rank));
        for (const [at, way] of ways.entries()) {
          assert.equal(way.host, (host + 1 + at) % hosts.length);
          assert.deepEqual(way.ranks, hosts[way.host]);
          assert.ok(way.ranks.includes(way.forwarder));
          const hasSamePlace = hosts[host]!.indexOf(rank) === way.ranks.indexOf(way.forwarder);
          assert.equal(way.hasSamePlace, hasSamePlace);
          assert.deepEqual(all[way.forwarder]!.served[way.slot], { rank, host, way: at, hasSamePlace });
        }
      }
    }),
  );
});

test('slots of a forwarder are dense, and nobody else is served', () => {
  fc.assert(
    fc.property(anyHosts, (hosts) => {
      const all = routesOf(hosts);
      for (const [rank, { served }] of all.entries()) {
        const slots = all.flatMap(({ ways }) => ways.filter((way) => way.forwarder === rank).map(({ slot }) => slot));
        assert.deepEqual(
          slots.toSorted((a, b) => a - b),
          served.map((_, slot) => slot),
        );
        const ranks = served.map((source) => source.rank);
        assert.deepEqual(
          ranks,
          ranks.toSorted((a, b) => a - b),
        );
      }
      assert.equal(maxServed(hosts), Math.max(...all.map(({ served }) => served.length)));
    }),
  );
});

test('peers are those of either direction, each a peer of its peer', () => {
  fc.assert(
    fc.property(anyHosts, (hosts) => {
      const all = routesOf(hosts);
      for (const [rank, { peers, host, ways }] of all.entries()) {
        assert.deepEqual(peers, [...new Set(peers)]);
        const forwarders = ways.map(({ forwarder }) => forwarder);
        assert.deepEqual(peers.slice(0, forwarders.length), forwarders, 'links in the order in which they are served');
        for (const peer of peers) {
          assert.ok(!hosts[host]!.includes(peer));
          assert.ok(all[peer]!.peers.includes(rank));
        }
      }
    }),
  );
});

test('between hosts of equal size a rank serves the ranks of its own place, and they serve it', () => {
  const shape = fc.record({ count: fc.integer({ min: 1, max: 5 }), length: fc.integer({ min: 1, max: 6 }) });
  fc.assert(
    fc.property(shape, ({ count, length }) => {
      const hosts = Array.from({ length: count }, (_, host) =>
        Array.from({ length }, (_unused, index) => host * length + index),
      );
      for (const [rank, { ways, served, peers }] of routesOf(hosts).entries()) {
        const same = hosts.flat().filter((peer) => peer !== rank && peer % length === rank % length);
        assert.deepEqual(
          peers.toSorted((a, b) => a - b),
          same,
        );
        assert.deepEqual(
          served.map((source) => source.rank),
          same,
        );
        assert.deepEqual(
          ways.map(({ forwarder }) => forwarder).toSorted((a, b) => a - b),
          same,
        );
      }
      assert.equal(maxServed(hosts), count - 1);
    }),
  );
});

test('without forwarders every rank sends to each rank elsewhere, which serves it in the slot that the way names', () => {
  fc.assert(
    fc.property(anyHosts, (hosts) => {
      const all = hosts.flat().map((_, rank) => directRoutes(hosts, rank));
      for (const [rank, { ways, served, here, takers }] of all.entries()) {
        const own = hosts.find((ranks) => ranks.includes(rank))!;
        const elsewhere = [...all.keys()].filter((other) => !own.includes(other));
        const reached = ways.map(({ forwarder }) => forwarder).toSorted((a, b) => a - b);
        assert.deepEqual(reached, elsewhere);
        assert.deepEqual(
          served.map((source) => source.rank),
          elsewhere,
        );
        assert.deepEqual(here, [rank]);
        for (const [at, { forwarder, slot }] of ways.entries()) {
          assert.deepEqual([all[forwarder]!.served[slot]!.rank, all[forwarder]!.served[slot]!.way], [rank, at]);
          assert.deepEqual(all[forwarder]!.takers.get(rank), { forwarder, slot });
        }
        assert.equal(takers.size, elsewhere.length);
      }
      assert.equal(maxServedDirectly(hosts), Math.max(...all.map(({ served }) => served.length)));
    }),
  );
});
