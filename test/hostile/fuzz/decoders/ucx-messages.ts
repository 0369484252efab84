// Control messages over UCX, read by a link without UCX: whatever a peer sends, only its regions are written.
import { linkWord, tableWord } from '#lib/abi/ucx-words.js';
import { UCX_CONTROL_BYTES, ucxMessage, ucxMessageKinds } from '#lib/abi/ucx-message.js';
import { ucsStatus } from '#lib/abi/ucx-structs.js';
import { Block } from '#lib/abi/layout.js';
import { ArenaLayout } from '#lib/agent/backends/ucx/arena-layout.js';
import { LinkBlock } from '#lib/agent/backends/ucx/link-block.js';
import { LinkHalves } from '#lib/agent/backends/ucx/link-halves.js';
import { UcxTables } from '#lib/agent/backends/ucx/ucx-tables.js';
import type { MappedPlace, UcxWorker } from '#lib/agent/backends/ucx/ucx-worker.js';
import { NativeBlock } from '#lib/native/native-block.js';
import { type Decoder, Fault } from '../decoder.ts';
import { joined } from '../mutate.ts';

const LINK = 1;
const SECRET_LOW = 0x1111_1111;
const SECRET_HIGH = 0x2222_2222;
const REGION = 3;
const KEY = 0x3333_3333;
const REGION_BYTES = 4096;
const GUARD = 256;
const GUARD_BYTE = 0xa5;
const HEAD_BYTES = 4;
const MAX_MESSAGES = 24;
const MAX_STEPS = 200;
/** What UCX would call the memory. */
const REGION_MEMORY = 77;
const OWN_MEMORY = 88;

/** In place of UCX: everything that is sent or received ends at once, and where it may write is checked. */
class FakeWorker {
  readonly mayWrite: (place: MappedPlace) => boolean;

  constructor(mayWrite: (place: MappedPlace) => boolean) {
    this.mayWrite = mayWrite;
  }

  progress(): number {
    return 0;
  }

  send(): number {
    return 0;
  }

  sendFrom(): number {
    return 0;
  }

  receive({ address, bytes, memory }: MappedPlace): number {
    // Into nothing: what is refused.
    if (bytes > 0 && !this.mayWrite({ address, bytes, memory }))
      throw new Fault(`a receive of ${bytes} bytes lies outside of regions`);
    return 0;
  }

  check(): number {
    return ucsStatus.ok;
  }

  cancel(): void {}
}

interface Target {
  readonly memory: NativeBlock;
  readonly link: LinkHalves;
  readonly block: LinkBlock;
  readonly tables: UcxTables;
}

// Made at first use, and kept: their memory is large.
let storage: { readonly tables: NativeBlock; readonly link: NativeBlock; readonly memory: NativeBlock } | undefined;

function createTarget(): Target {
  storage ??= {
    tables: new NativeBlock(UcxTables.bytes),
    link: new NativeBlock(LinkBlock.bytes),
    memory: new NativeBlock(REGION_BYTES + 2 * GUARD),
  };
  storage.link.bytes.fill(0);
  storage.memory.bytes.fill(GUARD_BYTE);
  const tables = new UcxTables(ArenaLayout.of(storage.tables));
  const block = new LinkBlock(ArenaLayout.of(storage.link), 0);
  tables.words[tableWord.news] = 0;
  tables.words[tableWord.putsAreNative] = 1;
  tables.regionIsOpen[REGION] = 1;
  tables.regionUses[REGION] = 0;
  tables.regionKey[REGION] = KEY;
  tables.regionAddress[REGION] = storage.memory.address + GUARD;
  tables.regionBytes[REGION] = REGION_BYTES;
  block.words[linkWord.isOpen] = 1;
  block.words[linkWord.number] = LINK;
  block.words[linkWord.remoteNumber] = LINK;
  block.words[linkWord.secretLow] = SECRET_LOW;
  block.words[linkWord.secretHigh] = SECRET_HIGH;
  block.words[linkWord.process] = -1;
  const places = [
    [storage.memory.address + GUARD, REGION_BYTES, REGION_MEMORY],
    [block.inRing.address, block.inRing.bytes.length, OWN_MEMORY],
  ] as const;
  tables.regionMemory[REGION] = REGION_MEMORY;
  block.ownMemory[0] = OWN_MEMORY;
  const worker = new FakeWorker(({ address, bytes, memory }) =>
    places.some(([start, length, of]) => of === memory && address >= start && address + bytes <= start + length),
  );
  const tools = { block, worker: worker as unknown as UcxWorker, tables };
  return { memory: storage.memory, link: new LinkHalves(tools, () => new Float64Array()), block, tables };
}

function isGuard(byte: number): boolean {
  return byte === GUARD_BYTE;
}

type Fields = Readonly<Partial<Record<keyof typeof ucxMessage.offset, number>>>;

function message(fields: Fields, inline = 0): Uint8Array {
  const bytes = new Uint8Array(ucxMessage.size + inline).fill(0x55, ucxMessage.size);
  const block = new Block(ucxMessage, bytes.buffer, 0);
  for (const [name, value] of Object.entries(fields)) block.set(name as keyof typeof ucxMessage.offset, value);
  const head = new Uint8Array(HEAD_BYTES);
  new DataView(head.buffer).setUint16(0, bytes.length, true);
  return joined(head, bytes);
}

const region = { region: REGION, key: KEY };
const { write, read, signal, notify, acknowledge, refuse, grant, withdraw, release } = ucxMessageKinds;

const seeds = (): readonly Uint8Array[] => [
  message({ kind: write, sequence: 1, operation: 1, offset: 8, bytes: 64, ...region }, 64),
  joined(
    message({ kind: write, sequence: 1, operation: 1, offset: 0, bytes: 64, messageBytes: 9, ...region }, 72),
    message({ kind: signal, sequence: 2, operation: 2, offset: 128, bytes: 1, ...region }),
    message({ kind: notify, sequence: 3, operation: 3, messageBytes: 6 }, 5),
    message({ kind: acknowledge, acknowledged: 0 }),
  ),
  joined(
    message({ kind: read, sequence: 1, operation: 4, offset: 0, bytes: 4096, ...region }),
    message({ kind: notify, sequence: 2, operation: 5, messageBytes: 20_001 }),
    message({ kind: refuse, operation: 1, reason: 1 }),
  ),
  joined(
    message({ kind: read, sequence: 1, operation: 6, offset: 0, bytes: 4000, ...region }),
    ...[grant, withdraw, release].map((kind) => message({ kind, ...region })),
  ),
];

export const ucxMessages: Decoder = {
  name: 'ucx-messages',
  codes: [],
  fields: Object.values(ucxMessage.offset).map((offset) => HEAD_BYTES + offset),
  weight: 0.05,
  seeds,
  run: (input) => {
    const { memory, link, tables } = createTarget();
    const view = new DataView(input.buffer, input.byteOffset, input.byteLength);
    const { receives } = tables;
    for (let at = 0, count = 0; at + HEAD_BYTES <= input.length && count < MAX_MESSAGES; count++) {
      const end = Math.min(input.length, at + HEAD_BYTES + view.getUint16(at, true));
      const bytes = input.subarray(at + HEAD_BYTES, end).subarray(0, UCX_CONTROL_BYTES);
      receives.bytes.fill(0, 0, UCX_CONTROL_BYTES);
      receives.bytes.set(bytes);
      const head = new Block(ucxMessage, receives.bytes.buffer, receives.bytes.byteOffset);
      head.set('link', LINK);
      head.set('secretLow', SECRET_LOW);
      head.set('secretHigh', SECRET_HIGH);
      link.take(receives.words, 0, receives.address, bytes.length);
      for (let step = 0; link.step(); step++) if (step > MAX_STEPS) throw new Fault('the link never comes to rest');
      link.acknowledge(true);
      at = end;
    }
    const ends = [memory.bytes.subarray(0, GUARD), memory.bytes.subarray(GUARD + REGION_BYTES)];
    if (!ends.every((bytes) => bytes.every(isGuard))) throw new Fault('bytes outside of the region were written');
    if ((tables.regionUses[REGION] as number) < 0) throw new Fault('a region is used less than never');
  },
};
