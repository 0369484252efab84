import assert from 'node:assert/strict';
import { networkInterfaces } from 'node:os';
import test from 'node:test';
import { hostInterfaces, listRails } from '#lib/rails/rail-list.js';
import fc from '../../support/fast-check.ts';

const interfaces = [
  { name: 'docker0', addresses: ['172.17.0.1'] },
  { name: 'eth0', addresses: ['10.0.0.1', 'fd00::1'] },
  { name: 'eth1', addresses: ['fd01::1'] },
  { name: 'eth2', addresses: ['169.254.9.9', '10.2.0.1', '10.2.0.2'] },
  { name: 'eth10', addresses: ['10.10.0.1'] },
  { name: 'ib0', addresses: ['10.20.0.1'] },
  { name: 'lo', addresses: ['127.0.0.1', '::1'] },
];

function rails(text: string): string[] {
  return listRails(text, interfaces).map(({ name, address }) => `${name} ${address}`);
}

function refused(text: string, message: RegExp): void {
  assert.throws(
    () => listRails(text, interfaces),
    (error: unknown) => {
      assert.equal((error as { code?: string }).code, 'WL_CONFIG');
      assert.match((error as Error).message, message);
      return true;
    },
  );
}

test('an empty list has no rails', () => {
  for (const text of ['', '  ']) assert.deepEqual(rails(text), []);
});

test('a beginning of a name means every interface that begins so, in their natural order', () => {
  assert.deepEqual(rails('eth'), ['eth0 10.0.0.1', 'eth1 fd01::1', 'eth2 10.2.0.1', 'eth10 10.10.0.1']);
  assert.deepEqual(rails('ib, et'), ['ib0 10.20.0.1', ...rails('eth')]);
});

test('a whole name means that interface alone, also where others begin so', () => {
  assert.deepEqual(rails('eth10,eth1'), ['eth10 10.10.0.1', 'eth1 fd01::1']);
});

test('an exact name is never a beginning', () => {
  assert.deepEqual(rails('=eth0,ib0'), ['eth0 10.0.0.1', 'ib0 10.20.0.1']);
  assert.deepEqual(rails('ib,=eth0'), ['ib0 10.20.0.1', 'eth0 10.0.0.1']);
  refused('=eth', /not "eth"/);
  refused('=eth0,ib', /not "ib"/);
  refused('eth0,=i', /not "i"/);
});

test('an exclusion takes every interface but those named and loopback', () => {
  assert.deepEqual(rails('^docker,lo,ib'), rails('eth'));
  assert.deepEqual(rails('^eth,nothing'), ['docker0 172.17.0.1', 'ib0 10.20.0.1']);
  assert.deepEqual(rails('^=eth,docker0,10.20.0.1'), rails('eth'));
});

test('addresses stand for their interfaces, however they are written', () => {
  assert.deepEqual(rails('10.2.0.2,10.0.0.1'), ['eth2 10.2.0.2', 'eth0 10.0.0.1']);
  assert.deepEqual(rails('FD00:0:0::0001'), ['eth0 fd00::1']);
  assert.deepEqual(rails('fd00::1,10.0.0.1'), ['eth0 fd00::1', 'eth0 10.0.0.1']);
  assert.deepEqual(rails('127.0.0.1,127.0.0.2,::1'), ['lo 127.0.0.1', 'lo 127.0.0.2', 'lo ::1']);
});

test('what this host does not have is refused with what it has', () => {
  const there = /This host has docker0 \(172\.17\.0\.1\), eth0 \(10\.0\.0\.1, fd00::1\), .*lo \(127\.0\.0\.1, ::1\)$/;
  for (const text of ['wlan', 'eth0,wlan0', '10.9.9.9', '0.0.0.0', '::', 'fe80::1%eth0', '10.0.0.1/24'])
    refused(text, there);
  assert.throws(() => listRails('eth0', []), { code: 'WL_CONFIG', message: /no interface with an address$/ });
});

test('a rail that is named twice is refused', () => {
  for (const text of ['eth0,eth0', 'eth,eth2', 'eth,e', '10.0.0.1,eth0', 'fd00::1,fd00:0::1'])
    refused(text, /each rail once/);
});

test('a list with empty places or misplaced signs is refused', () => {
  for (const text of [',', 'eth0,', ',eth0', '^', '=', 'eth0,,ib0', 'eth0,^lo', '==eth0,eth=1', '^^lo', '=^lo'])
    refused(text, /names of interfaces or addresses/);
});

test('an exclusion that leaves nothing and a list of too many rails are refused', () => {
  refused('^eth,docker,ib', /leaves an interface/);
  const many = Array.from({ length: 40 }, (_, index) => ({ name: `v${index}`, addresses: [`10.3.0.${index}`] }));
  assert.throws(() => listRails('v', many), { code: 'WL_CONFIG', message: /at most 32 rails, not 40/ });
});

test('whatever the text, the rails are distinct addresses of interfaces of this host, or the list is refused', () => {
  const piece = fc.constantFrom(
    'eth',
    'eth0',
    'eth1',
    'ib0',
    'lo',
    '10.0.0.1',
    'fd00::1',
    '127.0.0.9',
    'x',
    '',
    ' ',
    '=',
    '^',
    ',',
  );
  fc.assert(
    fc.property(
      fc.oneof(
        fc.array(piece, { maxLength: 8 }).map((parts) => parts.join('')),
        fc.string(),
      ),
      (text) => {
        let list;
        try {
          list = listRails(text, interfaces);
        } catch (error) {
          assert.equal((error as { code?: string }).code, 'WL_CONFIG');
          return;
        }
        assert.equal(list.length === 0, text.trim() === '');
        assert.equal(new Set(list.map(({ address }) => address)).size, list.length);
        for (const { name, address } of list) {
          const owner = interfaces.find((one) => one.name === name);
          assert.ok(owner?.addresses.includes(address) === true || (name === 'lo' && address === '127.0.0.9'), text);
        }
      },
    ),
    { numRuns: 2000 },
  );
});

test('naming the rails of a list one by one gives the same list', () => {
  for (const text of ['eth', 'ib,eth', '^docker,lo', '10.2.0.2,ib0', 'fd00::1,eth1']) {
    const list = listRails(text, interfaces);
    assert.deepEqual(listRails(list.map(({ address }) => address).join(','), interfaces), list);
  }
});

test('the interfaces of this host have addresses without zones, in natural order', () => {
  const found = hostInterfaces();
  const known = networkInterfaces();
  for (const { name, addresses } of found) {
    assert.ok(addresses.length > 0);
    for (const address of addresses) {
      assert.ok(
        known[name]?.some((entry) => entry.address === address),
        `${name} ${address}`,
      );
      assert.doesNotMatch(address, /^fe80/);
    }
    assert.equal(listRails(addresses[0]!, found)[0]?.name, name);
  }
});
