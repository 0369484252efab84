import assert from 'node:assert/strict';
import test from 'node:test';
import { encodeSocketAddress, portOf } from '#lib/native/udp.js';

const hex = (host: string, port: number) => Buffer.from(encodeSocketAddress({ host, port })).toString('hex');

const v6 = (groups: string): string => `0a00005000000000${groups}00000000`;

test('encodeSocketAddress() writes sockaddr_in', () => {
  assert.equal(hex('127.0.0.1', 4660), '020012347f0000010000000000000000');
});

test('encodeSocketAddress() writes sockaddr_in6', () => {
  assert.equal(hex('::1', 80), v6('00000000000000000000000000000001'));
  assert.equal(hex('::', 80), v6('00000000000000000000000000000000'));
  assert.equal(hex('2001:db8::5:6', 80), v6('20010db8000000000000000000050006'));
  assert.equal(hex('1:2:3:4:5:6:7:8', 80), v6('00010002000300040005000600070008'));
  assert.equal(hex('::ffff:10.1.2.3', 80), v6('00000000000000000000ffff0a010203'));
  assert.equal(hex('fe80::1%eth0', 80), v6('fe800000000000000000000000000001'));
});

test('portOf() reads it back; names are refused', () => {
  assert.equal(portOf(encodeSocketAddress({ host: '::1', port: 65_535 })), 65_535);
  assert.throws(() => encodeSocketAddress({ host: 'localhost', port: 1 }), { code: 'WL_INVALID_ARGUMENT' });
});
