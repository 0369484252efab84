import assert from 'node:assert/strict';
import test from 'node:test';
import fc from '../../support/fast-check.ts';
import { membersOf } from '#lib/world/job-group.js';
import { ranksOfHosts } from '#lib/world/host-identity.js';
import { Topology } from '#lib/world/rank-group.js';

test('hosts are numbered by their lowest rank, and a rank of the same place there is its forwarder', () => {
  const hosts = ['b', 'a', 'b', 'c', 'a', 'b'];
  const topology = new Topology(4, hosts);
  assert.deepEqual(topology.hosts, [[0, 2, 5], [1, 4], [3]]);
  assert.deepEqual([topology.hostIndex, topology.scaleUpIndex], [1, 1]);
  assert.deepEqual(topology.scaleUpRanks, [1, 4]);
  assert.equal(topology.ranksPerHost, undefined);
  assert.deepEqual(
    [0, 1, 2, 3, 4, 5].map((rank) => topology.forwarderOf(rank)),
    [2, 4, 2, 3, 4, 2],
  );
  assert.equal(new Topology(0, ['a', 'b', 'b', 'a']).ranksPerHost, 2);
  assert.deepEqual(topology.rails, []);
  assert.deepEqual(new Topology(0, ['a'], ['eth0', 'eth1']).rails, ['eth0', 'eth1']);
  assert.throws(() => topology.hostOf(6), {
    code: 'WL_INVALID_ARGUMENT',
    message: /expected a rank of the group, 0 to 5, got 6/,
  });
});

const hostLists = fc.array(fc.constantFrom('a', 'b', 'c', 'd'), { minLength: 1, maxLength: 24 });

test('all ranks see one topology, whatever hosts they live on', () => {
  const property = fc.property(hostLists, (identities) => {
    const views = identities.map((_, rank) => new Topology(rank, identities));
    const [first] = views as [Topology];
    assert.deepEqual(
      first.hosts.flat().toSorted((left, right) => left - right),
      [...identities.keys()],
    );
    for (const [rank, view] of views.entries()) {
      assert.deepEqual(view.hosts, first.hosts);
      assert.equal(view.scaleUpRanks[view.scaleUpIndex], rank);
      assert.deepEqual(view.scaleUpRanks, view.hosts[view.hostIndex]);
      for (const [other, identity] of identities.entries()) {
        assert.equal(view.hostOf(other) === view.hostIndex, identity === identities[rank]);
        assert.equal(view.hosts[view.hostOf(other)]?.[view.scaleUpIndexOf(other)], other);
        const forwarder = view.forwarderOf(other);
        assert.equal(identities[forwarder], identity);
        if (identity === identities[rank]) assert.equal(forwarder, rank);
        const there = view.hosts[view.hostOf(other)]!;
        if (there.length > view.scaleUpIndex) assert.equal(view.scaleUpIndexOf(forwarder), view.scaleUpIndex);
      }
    }
  });
  fc.assert(property);
});

test('split() forms the groups of a slow reference', () => {
  const choice = fc.record({
    color: fc.oneof(fc.constant(null), fc.constantFrom('x', '0'), fc.integer({ min: 0, max: 2 })),
    key: fc.integer({ min: -2, max: 2 }),
  });
  const property = fc.property(fc.array(choice, { minLength: 1, maxLength: 16 }), (choices) => {
    for (const { color } of choices) {
      if (color === null) continue;
      const members: number[] = [];
      for (let key = -2; key <= 2; key += 1) {
        for (const [rank, other] of choices.entries())
          if (other.color === color && other.key === key) members.push(rank);
      }
      assert.deepEqual(membersOf(choices, color), members);
    }
  });
  fc.assert(property);
});

test('the setting hosts splits the ranks of a machine evenly, or as it says', () => {
  assert.deepEqual(ranksOfHosts('2', 4), [2, 2]);
  assert.deepEqual(ranksOfHosts('3', 8), [3, 3, 2]);
  assert.deepEqual(ranksOfHosts('3+1', 4), [3, 1]);
  assert.deepEqual(ranksOfHosts('1', 4), [4]);
  for (const [hosts, ranks, message] of [
    ['0', 4, /expected 1 to 4, as this machine has 4 ranks, got "0"/],
    ['5', 4, /expected 1 to 4/],
    ['2', 1, /expected 1, as this machine has one rank/],
    ['3+2', 4, /whose sum is the 4 ranks/],
    ['4+0', 4, /numbers above 0/],
    ['two', 4, /a number of hosts, or the ranks of each as 3\+1/],
    ['', 4, /WEFTLINE_HOSTS/],
  ] as const) {
    assert.throws(() => ranksOfHosts(hosts, ranks), { code: 'WL_CONFIG', message });
  }
});
