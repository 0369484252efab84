// Rings for pieces of peers: made at a greeting, gone with all that they hold when the sender leaves, also before the welcome.
import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import test from 'node:test';
import { WeftlineError } from '#lib/core/errors.js';
import type { Backend } from '#lib/agent/backend.js';
import { type DeviceTable, MemoryTable } from '#lib/agent/staging/devices.js';
import { type Greeter, type Hello, InnerLinks } from '#lib/agent/staging/greeter.js';
import { ReceiveSessions } from '#lib/agent/staging/receive-sessions.js';
import { plainStorage } from '#lib/agent/staging/ring.js';

const left = new WeftlineError('WL_CLOSED', 'the sender left');

function hello(lane: number): Hello {
  return {
    is: 'hello',
    lane,
    incarnation: '0123456789abcdef',
    host: 'h',
    process: 1,
    connectionInfo: Uint8Array.of(lane >> 8, lane & 0xff),
    ring: new Uint8Array(),
    slots: 4,
    pieceBytes: 65_536,
    channels: 2,
    timeoutMs: 30_000,
  };
}

/** Counts what is held, and connects when told. */
function open() {
  const held = { links: 0, channels: 0, regions: 0, rings: 0 };
  const welcomes: number[] = [];
  let connects = 0;
  const gate = new EventEmitter();
  const mayConnect = once(gate, 'open');
  const holds = (what: keyof typeof held, end: string) => {
    held[what]++;
    return { [end]: async () => void held[what]-- };
  };
  const backend = {
    connect: async () => {
      connects++;
      await mayConnect;
      const link = { importRegion: () => ({ bytes: 0 }), openChannel: () => holds('channels', 'close') };
      return Object.assign(link, holds('links', 'close'));
    },
    register: async () => Object.assign({ info: new Uint8Array() }, holds('regions', 'release')),
  } as unknown as Backend;
  const makeStorage = (bytes: number) => {
    held.rings++;
    return { ...plainStorage(bytes), free: () => void held.rings-- };
  };
  const greeter = {
    welcome: async (_link: unknown, lane: number) => void welcomes.push(lane),
    sayGoodbye: () => {},
  } as unknown as Greeter;
  const sessions = new ReceiveSessions({
    backend,
    links: new InnerLinks(backend),
    greeter,
    memory: new MemoryTable(),
    devices: { makeStorage } as unknown as DeviceTable,
    fence: async () => {},
  });
  const goOn = () => gate.emit('open');
  return { held, welcomes, sessions, goOn, connects: () => connects };
}

const nothing = { links: 0, channels: 0, regions: 0, rings: 0 };

test('a sender that leaves takes its ring, region and channel with it, though others use the link', async () => {
  const { held, welcomes, sessions, goOn } = open();
  goOn();
  const { connectionInfo } = hello(1);
  await Promise.all([sessions.receive('b', hello(1)), sessions.receive('b', { ...hello(2), connectionInfo })]);
  assert.deepEqual(
    welcomes.toSorted((a, b) => a - b),
    [1, 2],
  );
  sessions.leave('b', 1, left);
  await new Promise(setImmediate);
  assert.deepEqual(held, { links: 1, channels: 2, regions: 1, rings: 1 });
  await sessions.close(left);
  assert.deepEqual(held, nothing);
});

test('a sender that leaves before its welcome, and a thread that is closed before it, leave nothing behind', async () => {
  for (const end of ['leave', 'close'] as const) {
    const { held, welcomes, sessions, goOn } = open();
    const receiving = sessions.receive('b', hello(1));
    await new Promise(setImmediate);
    if (end === 'leave') sessions.leave('b', 1, left);
    else await sessions.close(left);
    goOn();
    await receiving;
    assert.deepEqual([held, welcomes], [nothing, []]);
  }
});

test('a peer that says hello again and again costs no connections without end', async () => {
  const { held, sessions, goOn, connects } = open();
  const many = Array.from({ length: 500 }, (_, lane) => sessions.receive('b', hello(lane)));
  goOn();
  await Promise.all(many);
  assert.ok(connects() < 40, `${connects()} connections`);
  assert.ok(held.rings <= 8, `${held.rings} rings`);
  await sessions.close(left);
  assert.deepEqual(held, nothing);
});
