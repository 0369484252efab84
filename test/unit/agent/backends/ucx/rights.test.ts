// Two ends of a link over a pretended UCX: data go directly only where the peer allows it, and nothing overtakes them.
import assert from 'node:assert/strict';
import test from 'node:test';
import { linkWord, PART_FIELDS, remoteStates, tableWord, ucxTransferStates } from '#lib/abi/ucx-words.js';
import { ucsStatus } from '#lib/abi/ucx-structs.js';
import { ArenaLayout } from '#lib/agent/backends/ucx/arena-layout.js';
import { failures } from '#lib/agent/backends/ucx/failure.js';
import { LinkBlock } from '#lib/agent/backends/ucx/link-block.js';
import { LinkHalves } from '#lib/agent/backends/ucx/link-halves.js';
import { operationKinds } from '#lib/agent/backends/ucx/operation-kinds.js';
import { UcxTables } from '#lib/agent/backends/ucx/ucx-tables.js';
import type { MappedPlace, UcxWorker } from '#lib/agent/backends/ucx/ucx-worker.js';
import { copyMemory } from '#lib/native/libc.js';
import { NativeBlock } from '#lib/native/native-block.js';

const BYTES = 64 * 1024;
const REGION = 3;
const KEY = 77;
const HANDLE = 4711;
const PLACE = 0;

/** What one end sends: messages arrive at once, data when both are there; puts end when the test says so. */
class Wire {
  readonly direct: { readonly what: string; readonly to: number; readonly handle: number }[] = [];
  readonly data = new Map<number, Uint8Array>();
  /** Requests that have not ended: of receives, the tag and where it goes. */
  readonly #receives = new Map<number, { readonly tag: number; readonly address: number }>();
  readonly #pending = new Map<number, string>();
  /** Puts end at once, and so do flushes. */
  isInstant = false;
  #next = 1;
  far: Wire | undefined;
  readonly control: Uint8Array[] = [];

  send(_endpoint: number, address: number, bytes: number): number {
    this.far?.control.push(bytesAt(address, bytes));
    return 0;
  }

  sendFrom({ address, bytes }: MappedPlace, _endpoint: number, tag: number): number {
    this.far?.data.set(tag, bytesAt(address, bytes));
    return 0;
  }

  receive({ address, bytes }: MappedPlace, tag: number): number {
    const request = this.#next++;
    if (bytes > 0) this.#receives.set(request, { tag, address });
    return request;
  }

  put(place: MappedPlace, _endpoint: number, to: number, handle: number): number {
    copyMemory(to, place.address, place.bytes);
    return this.#note('put', to, handle);
  }

  get(place: MappedPlace, _endpoint: number, from: number, handle: number): number {
    copyMemory(place.address, from, place.bytes);
    return this.#note('get', from, handle);
  }

  flush(): number {
    return this.#note('flush', 0, 0);
  }

  check(request: number): number {
    if (this.#pending.has(request)) return ucsStatus.inProgress;
    const receive = this.#receives.get(request);
    if (receive === undefined) return ucsStatus.ok;
    const data = this.data.get(receive.tag);
    if (data === undefined) return ucsStatus.inProgress;
    const own = new NativeBlock(data.length);
    own.bytes.set(data);
    copyMemory(receive.address, own.address, data.length);
    this.#receives.delete(request);
    return ucsStatus.ok;
  }

  cancel(request: number): void {
    this.#receives.delete(request);
  }

  endDirect(): void {
    this.#pending.clear();
  }

  /** Puts have ended here, which says nothing of the far side. */
  endPuts(): void {
    for (const [request, what] of this.#pending) if (what === 'put') this.#pending.delete(request);
  }

  #note(what: string, to: number, handle: number): number {
    this.direct.push({ what, to, handle });
    if (this.isInstant) return 0;
    const request = this.#next++;
    this.#pending.set(request, what);
    return request;
  }
}

function bytesAt(address: number, bytes: number): Uint8Array {
  const block = new NativeBlock(bytes);
  copyMemory(block.address, address, bytes);
  return block.bytes.slice();
}

class End {
  readonly wire = new Wire();
  readonly tables: UcxTables;
  readonly block: LinkBlock;
  readonly link: LinkHalves;
  readonly memory = new NativeBlock(BYTES);
  readonly #storage = [new NativeBlock(UcxTables.bytes), new NativeBlock(LinkBlock.bytes)] as const;
  readonly #received = new NativeBlock(8192);
  parts = new Float64Array(0);

  constructor(number: number, remoteNumber: number) {
    this.tables = new UcxTables(ArenaLayout.of(this.#storage[0]));
    this.block = new LinkBlock(ArenaLayout.of(this.#storage[1]), 0);
    this.tables.words[tableWord.putsAreNative] = 1;
    const { words } = this.block;
    words[linkWord.isOpen] = 1;
    words[linkWord.number] = number;
    words[linkWord.remoteNumber] = remoteNumber;
    words[linkWord.hasHeard] = 1;
    words[linkWord.process] = -1;
    const tools = { block: this.block, worker: this.wire as unknown as UcxWorker, tables: this.tables };
    this.link = new LinkHalves(tools, () => this.parts);
  }

  step(): void {
    for (let message = this.wire.control.shift(); message !== undefined; message = this.wire.control.shift()) {
      this.#received.bytes.fill(0);
      this.#received.bytes.set(message);
      this.link.take(this.#received.words, 0, this.#received.address, message.length);
    }
    this.link.step();
    this.link.acknowledge(true);
  }

  /** A write or read of the peer's region as a whole, with or without a notification. */
  post(kind: number, message?: string): void {
    const { outgoing, messages } = this.link;
    const entry = outgoing.begin(kind, 0, ++this.#operation);
    if (message !== undefined) {
      const at = messages.place(entry, message.length);
      this.block.outRing.bytes.set(Buffer.from(message), at);
    }
    this.tables.partCount[0] = this.parts.length / PART_FIELDS;
    this.tables.state[0] = ucxTransferStates.pending;
    outgoing.commit();
    outgoing.send();
  }

  #operation = 0;

  /** The notifications that have come, in their order. */
  get heard(): string {
    const { inRing, words } = this.block;
    return Buffer.from(inRing.bytes.subarray(0, words[linkWord.inPublished])).toString('latin1');
  }

  get state(): number {
    return this.tables.state[0]!;
  }
}

function openTwo(): { here: End; there: End; turn: (count?: number) => void } {
  const here = new End(513, 1025);
  const there = new End(1025, 513);
  here.wire.far = there.wire;
  there.wire.far = here.wire;
  there.tables.regionIsOpen[REGION] = 1;
  there.tables.regionKey[REGION] = KEY;
  there.tables.regionAddress[REGION] = there.memory.address;
  there.tables.regionBytes[REGION] = BYTES;
  here.tables.words[tableWord.remotesMade] = 1;
  here.tables.remoteState[PLACE] = remoteStates.unknown;
  here.tables.remoteLink[PLACE] = 513;
  here.tables.remoteRegion[PLACE] = REGION;
  here.tables.remoteKey[PLACE] = KEY;
  here.tables.remoteAddress[PLACE] = there.memory.address;
  here.tables.remoteHandle[PLACE] = HANDLE;
  // local, remoteOffset, bytes, region, key, memory, remote
  here.parts = Float64Array.of(here.memory.address, 0, BYTES, REGION, KEY, 0, PLACE);
  const turn = (count = 10): void => {
    for (let at = 0; at < count; at += 1) for (const end of [here, there]) end.step();
  };
  return { here, there, turn };
}

/** The first write, by messages, after which the region is granted. */
function openGranted(): ReturnType<typeof openTwo> {
  const two = openTwo();
  two.here.memory.bytes.fill(1);
  two.here.post(operationKinds.write);
  two.turn();
  assert.equal(two.here.state, ucxTransferStates.done);
  assert.deepEqual(two.here.wire.direct, []);
  assert.ok(two.there.memory.bytes.every((byte) => byte === 1));
  assert.equal(two.there.tables.regionUses[REGION], 1);
  assert.equal(two.here.tables.remoteState[PLACE], remoteStates.granted);
  return two;
}

test('a granted region is written directly; the notification waits for the flush', () => {
  const { here, there, turn } = openGranted();
  here.memory.bytes.fill(2);
  here.post(operationKinds.write, 'hello');
  turn();
  assert.deepEqual(here.wire.direct, [
    { what: 'put', to: there.memory.address, handle: HANDLE },
    { what: 'flush', to: 0, handle: 0 },
  ]);
  assert.equal(there.block.words[linkWord.inPublished], 0, 'the notification came before the data');
  assert.equal(here.state, ucxTransferStates.pending);
  here.wire.endDirect();
  turn();
  assert.notEqual(there.block.words[linkWord.inPublished], 0);
  assert.equal(here.state, ucxTransferStates.done);
});

test('direct writes do not wait for the notifications of those before them, a notification waits for all', () => {
  const { here, there, turn } = openGranted();
  for (const text of ['one', 'two']) here.post(operationKinds.write, text);
  here.post(operationKinds.notify, 'three');
  turn();
  assert.equal(here.wire.direct.filter(({ what }) => what === 'put').length, 2);
  assert.equal(there.block.words[linkWord.inPublished], 0);
  here.wire.endDirect();
  turn();
  assert.match(there.heard, /one.*two.*three/su);
});

test('a notification does not overtake that of a direct write which waits for others, nor one of ended puts', () => {
  for (const isInstant of [false, true]) {
    const { here, there, turn } = openGranted();
    here.wire.isInstant = isInstant;
    const whole = here.parts;
    here.parts = Float64Array.of(here.memory.address, 0, 100, REGION, KEY, 0, PLACE);
    here.post(operationKinds.write);
    here.parts = whole;
    here.post(operationKinds.write, 'one');
    here.post(operationKinds.notify, 'two');
    here.wire.endDirect();
    // The far side has not acknowledged the small write, which went as a message.
    for (let step = 0; step < 10; step += 1) here.step();
    turn();
    assert.match(there.heard, /one.*two/su);
  }
});

test('a notification in the message of the last part waits for the flush of direct parts that have ended', () => {
  const { here, there, turn } = openGranted();
  const end = here.wire.put.bind(here.wire);
  here.wire.put = (...put) => {
    end(...put);
    return 0;
  };
  const part = (offset: number, bytes: number) => [here.memory.address, offset, bytes, REGION, KEY, 0, PLACE];
  here.parts = Float64Array.from([...part(0, BYTES / 2), ...part(BYTES / 2, 100)]);
  here.post(operationKinds.write, 'all of it');
  turn();
  assert.equal(there.block.words[linkWord.inPublished], 0, 'the notification came before the flush');
  here.wire.endDirect();
  turn();
  assert.match(there.heard, /all of it/u);
  assert.equal(here.state, ucxTransferStates.done);
});

test('a write of direct and other parts is done when all of them are', () => {
  for (const message of [undefined, 'all of it']) {
    const { here, there, turn } = openGranted();
    here.memory.bytes.fill(9);
    const [half, rest] = [BYTES / 2, 100];
    const part = (offset: number, bytes: number) => [here.memory.address, offset, bytes, REGION, KEY, 0, PLACE];
    here.parts = Float64Array.from([...part(0, half), ...part(half, rest)]);
    here.post(operationKinds.write, message);
    here.wire.endDirect();
    for (let step = 0; step < 10; step += 1) here.step();
    assert.equal(here.state, ucxTransferStates.pending);
    turn();
    assert.equal(here.state, ucxTransferStates.done);
    assert.deepEqual([...there.memory.bytes.subarray(half - 1, half + rest + 1)], [...Array(rest + 1).fill(9), 1]);
    assert.equal(there.block.words[linkWord.inPublished] !== 0, message !== undefined);
  }
});

test('a read of a granted region needs the far side only for its notification', () => {
  const { here, there, turn } = openGranted();
  there.memory.bytes.fill(5);
  here.post(operationKinds.read, 'taken');
  turn();
  assert.deepEqual(here.wire.direct, [{ what: 'get', to: there.memory.address, handle: HANDLE }]);
  assert.equal(there.block.words[linkWord.inPublished], 0, 'the notification came before the data');
  here.wire.endDirect();
  turn();
  assert.notEqual(there.block.words[linkWord.inPublished], 0);
  assert.ok(here.memory.bytes.every((byte) => byte === 5));
  assert.equal(here.state, ucxTransferStates.done);
});

test('a region that is withdrawn is released behind what is under way, and refused from then on', () => {
  const { here, there, turn } = openGranted();
  here.post(operationKinds.write);
  there.tables.regionIsOpen[REGION] = 0;
  there.link.withdraw(REGION);
  there.link.withdraw(REGION);
  turn();
  assert.equal(here.tables.remoteState[PLACE], remoteStates.withdrawn);
  assert.equal(there.tables.regionUses[REGION], 1, 'released while a put is under way');
  assert.ok(there.link.uses(REGION));
  here.wire.endDirect();
  turn();
  assert.equal(there.tables.regionUses[REGION], 0);
  assert.equal(here.state, ucxTransferStates.done);
  const { length } = here.wire.direct;
  here.post(operationKinds.write);
  turn();
  assert.equal(here.wire.direct.length, length);
  assert.equal(here.state, ucxTransferStates.failed);
  assert.equal(here.tables.failure[0], failures.refused);
});

test('a region that is withdrawn amid an operation is released behind a flush of its puts', () => {
  const { here, there, turn } = openGranted();
  // More puts than there is room for.
  const part = [here.memory.address, 0, BYTES, REGION, KEY, 0, PLACE];
  here.parts = Float64Array.from(Array.from({ length: 300 }, () => part).flat());
  here.post(operationKinds.write);
  assert.ok(here.wire.direct.length < 300);
  assert.ok(here.wire.direct.every(({ what }) => what === 'put'));
  there.tables.regionIsOpen[REGION] = 0;
  there.link.withdraw(REGION);
  turn();
  assert.equal(here.wire.direct.at(-1)!.what, 'flush');
  here.wire.endPuts();
  turn();
  assert.equal(there.tables.regionUses[REGION], 1, 'released before the flush has ended');
  here.wire.endDirect();
  turn();
  assert.equal(there.tables.regionUses[REGION], 0);
  assert.equal(here.state, ucxTransferStates.failed);
  assert.equal(here.tables.failure[0], failures.refused);
});

test('a place of the tables that is another region by now is not used, nor one of another link', () => {
  for (const field of ['remoteRegion', 'remoteKey', 'remoteLink'] as const) {
    const { here, turn } = openGranted();
    here.tables[field][PLACE]! += 1;
    here.post(operationKinds.write);
    turn();
    assert.deepEqual(here.wire.direct, [], field);
    assert.equal(here.state, ucxTransferStates.done);
  }
});

test('a link that ends gives up all rights, those that were withdrawn too', () => {
  for (const isWithdrawn of [false, true]) {
    const { there, turn } = openGranted();
    if (isWithdrawn) there.link.withdraw(REGION);
    there.block.words[linkWord.lost] = 1;
    there.step();
    assert.equal(there.tables.regionUses[REGION], 0);
    assert.equal(there.link.uses(REGION), false);
    turn(1);
    assert.equal(there.tables.regionUses[REGION], 0);
  }
});
