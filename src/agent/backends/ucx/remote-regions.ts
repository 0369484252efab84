// Regions of peers that may be used directly, as UCX knows them. The agent's thread, under the lock.
import { linkWord, remoteStates, tableWord } from '../../../abi/ucx-words.ts';
import { type LinkBlock, SENDS } from './link-block.ts';
import type { UcxContext } from './ucx-context.ts';
import type { UcxRegionName } from './ucx-info.ts';
import { REMOTES, type UcxTables } from './ucx-tables.ts';

interface Closing {
  readonly place: number;
  readonly link: number;
  readonly block: LinkBlock;
  /** Sends of the link after which nothing uses it. */
  readonly mark: number;
}

export class RemoteRegions {
  readonly #context: UcxContext;
  readonly #tables: UcxTables;
  readonly #free: number[] = [];
  readonly #closing: Closing[] = [];

  constructor(context: UcxContext, tables: UcxTables) {
    this.#context = context;
    this.#tables = tables;
  }

  /** Its place in the tables; -1 if it can be used by messages only. */
  open(block: LinkBlock, { number, key, address, packed }: UcxRegionName): number {
    const { words } = this.#tables;
    if (words[tableWord.putsAreNative] === 0 || !isKeyOfDevice(packed)) return -1;
    this.#sweep();
    const made = words[tableWord.remotesMade]!;
    const place = this.#free.pop() ?? made;
    if (place === REMOTES) return -1;
    const handle = this.#context.unpack(block.endpoint[0]!, packed);
    if (handle === 0) {
      if (place !== made) this.#free.push(place);
      return -1;
    }
    const tables = this.#tables;
    tables.remoteLink[place] = block.words[linkWord.number]!;
    tables.remoteRegion[place] = number;
    tables.remoteKey[place] = key;
    tables.remoteAddress[place] = address;
    tables.remoteHandle[place] = handle;
    tables.remoteState[place] = this.#stateOf(place, made);
    if (place === made) words[tableWord.remotesMade] = made + 1;
    return place;
  }

  /** Nothing uses it from the next post on. */
  close(block: LinkBlock, place: number): void {
    if (place < 0 || this.#tables.remoteLink[place] !== block.words[linkWord.number]) return;
    if (this.#closing.some((closing) => closing.place === place)) return;
    this.#tables.remoteState[place] = remoteStates.withdrawn;
    const { words } = block;
    this.#closing.push({ place, block, link: words[linkWord.number]!, mark: words[linkWord.sendsPushed]! });
  }

  /** The link with this number has ended, and UCX has returned all its requests. */
  linkEnded(link: number): void {
    const tables = this.#tables;
    const made = tables.words[tableWord.remotesMade]!;
    for (let at = this.#closing.length - 1; at >= 0; at--) {
      if ((this.#closing[at] as Closing).link === link) this.#closing.splice(at, 1);
    }
    for (let place = 0; place < made; place++) if (tables.remoteLink[place] === link) this.#forget(place);
  }

  /** The same region may have been imported before. */
  #stateOf(place: number, made: number): number {
    const { remoteState, remoteLink, remoteRegion, remoteKey } = this.#tables;
    for (let other = 0; other < made; other++) {
      const isSame =
        other !== place &&
        remoteState[other] === remoteStates.granted &&
        remoteLink[other] === remoteLink[place] &&
        remoteRegion[other] === remoteRegion[place] &&
        remoteKey[other] === remoteKey[place];
      if (isSame) return remoteStates.granted;
    }
    return remoteStates.unknown;
  }

  #sweep(): void {
    for (let at = this.#closing.length - 1; at >= 0; at--) {
      const { place, block, mark } = this.#closing[at] as Closing;
      const sends = (mark - block.words[linkWord.sendsPopped]!) | 0;
      if (sends > 0 && sends <= SENDS) continue;
      this.#closing.splice(at, 1);
      this.#forget(place);
    }
  }

  #forget(place: number): void {
    const tables = this.#tables;
    if (tables.remoteState[place] === remoteStates.free) return;
    tables.remoteState[place] = remoteStates.free;
    tables.remoteLink[place] = 0;
    this.#context.forgetKey(tables.remoteHandle[place]!);
    this.#free.push(place);
  }
}

const MAX_KEY_BYTES = 512;
const MAP_BYTES = 8;

/** UCX packs the devices that have a key, as bits of 8 bytes, then the kind of memory, which is 0 for that of the host. */
function isKeyOfDevice(packed: Uint8Array): boolean {
  if (packed.length <= MAP_BYTES || packed.length > MAX_KEY_BYTES || packed[MAP_BYTES] !== 0) return false;
  return packed.subarray(0, MAP_BYTES).some((byte) => byte !== 0);
}
