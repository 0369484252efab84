// The UCX context of one backend: its settings, and the memory that is registered with it.
import { randomBytes } from 'node:crypto';
import { Block, type Layout, wideAt } from '../../../abi/layout.ts';
import {
  openUcx,
  ucpMasks,
  ucpMemoryParams,
  ucpParams,
  ucsStatus,
  type Ucx,
  ucxError,
  withoutInheritance,
} from '../../../native/ucx.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { quote } from '../../../core/quote.ts';
import { NativeBlock, viewAt } from '../../../native/library.ts';
import type { RdmaRail } from '../../../rails/rdma-choice.ts';
import type { Settings } from '../../../settings/settings.ts';
import type { OwnMemory } from '../../rdma/rdma-device.ts';

export class UcxContext implements Disposable {
  readonly handle: number;
  readonly #calls: Ucx['calls'];
  readonly #out = new NativeBlock(16);
  #isDisposed = false;

  /** Fails with WL_UNSUPPORTED without libucp, with WL_NATIVE if UCX refuses. */
  constructor(settings: UcxSettings, hasAtomics: boolean) {
    const ucx = openUcx();
    this.#calls = ucx.calls;
    check('ucp_config_read', ucx.calls.ucp_config_read(0, 0, this.#out.address), 'reading its variables UCX_*');
    const config = this.#outNumber(0);
    try {
      for (const [name, value] of Object.entries(settings)) {
        const status = ucx.calls.ucp_config_modify(config, name, value);
        check('ucp_config_modify', status, `setting ${name} to ${value}`);
      }
      const { block, address } = struct(ucpParams);
      const { features } = ucpMasks;
      block.set('fieldMask', ucpMasks.params.features);
      const atomics = hasAtomics ? features.atomics64 : 0;
      block.set('features', features.tags + features.remoteMemory + features.wakeup + atomics);
      const status = withoutInheritance(() => ucx.init(address, config, this.#out.address));
      check('ucp_init', status, `starting UCX with the transports ${settings['TLS']}`);
      this.handle = this.#outNumber(0);
    } finally {
      ucx.calls.ucp_config_release(config);
    }
  }

  /** UCX's handle of registered memory. Fails with WL_CAPACITY. */
  map(address: number, bytes: number): number {
    const { block, address: params } = struct(ucpMemoryParams);
    block.set('fieldMask', ucpMasks.memory.address + ucpMasks.memory.bytes);
    block.set('address', address);
    block.set('bytes', bytes);
    const status = this.#calls.ucp_mem_map(this.handle, params, this.#out.address);
    check('ucp_mem_map', status, `registering ${bytes} bytes: the limit of locked memory (ulimit -l) must admit them`);
    return this.#outNumber(0);
  }

  /** What peers need to reach mapped memory. */
  pack(memory: number): Uint8Array {
    const { address } = this.#out;
    const status = this.#calls.ucp_rkey_pack(this.handle, memory, address, address + 8);
    check('ucp_rkey_pack', status, 'asking for the key of memory');
    const buffer = this.#outNumber(0);
    const key = new Uint8Array(viewAt(buffer, this.#outNumber(1))).slice();
    this.#calls.ucp_rkey_buffer_release(buffer);
    return key;
  }

  /** Once it has returned, the device refuses peers: there is no cache of registrations, see native/ucx.ts. */
  unmap(memory: number): void {
    if (!this.#isDisposed) this.#calls.ucp_mem_unmap(this.handle, memory);
  }

  /** Called after its workers and its memory are disposed. */
  [Symbol.dispose](): void {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    this.#calls.ucp_cleanup(this.handle);
  }

  #outNumber(index: number): number {
    return wideAt(this.#out.words, index * 2);
  }
}

/** Fails with WL_NATIVE. */
export function check(call: string, status: number, what: string): void {
  if (status !== ucsStatus.ok) throw ucxError(call, status, what);
}

export interface StructBlock<Name extends string = string> {
  readonly block: Block<Name>;
  readonly address: number;
  /** So that the memory lives as long. */
  readonly memory: NativeBlock;
}

export function struct<Name extends string>(layout: Layout<Name>): StructBlock<Name> {
  const memory = new NativeBlock(layout.size);
  const { buffer, byteOffset } = memory.bytes;
  return { block: new Block(layout, buffer, byteOffset), address: memory.address, memory };
}

// UCX may use transports whose puts, gets and atomics an RDMA device carries out and checks.

interface UcxSettings {
  /** UCX's name of a setting, for `ucp_config_modify`, and its value. */
  readonly [name: string]: string;
}

/** Queue pairs of a reliable connection, with the datagrams that UCX connects them by. */
const DEFAULT_TRANSPORTS: readonly string[] = ['rc', 'dc'];
/** The names that bring the datagrams, too. */
const withDatagrams: Readonly<Record<string, string>> = {
  ib: 'rc',
  rc_verbs: 'rc_v',
  rc_mlx5: 'rc_x',
  dc_mlx5: 'dc_x',
};
const reliable = /^(rc|dc)(_\w+)?$/;
const unprefixed: Readonly<Record<string, string>> = { IB_PCI_RELAXED_ORDERING: 'PCI_RELAXED_ORDERING' };

/**
 * Takes of UCX_TLS only what a device checks: over TCP, shared memory and datagrams UCX carries puts by messages, which its own
 * code writes to wherever they say. Fails with WL_UNSUPPORTED if nothing is left.
 */
export function chooseTransports(said: string | undefined): string {
  const words = (said ?? 'all')
    .replace(/^\^/, '')
    .split(',')
    .map((word) => word.trim().replace(/^\\/, ''))
    .map((word) => withDatagrams[word] ?? word);
  const isExcluding = said?.startsWith('^') === true;
  const isAny = isExcluding || words.includes('all');
  const names = isAny
    ? DEFAULT_TRANSPORTS.filter((name) => !isExcluding || !words.includes(name))
    : words.filter((word) => reliable.test(word));
  if (names.length > 0) return [...new Set(names)].join(',');
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `UCX_TLS=${quote(said ?? '')} leaves the backend ucx no transport: it needs reliable connections of an RDMA device (rc, dc), which check what peers write; use the backend local for peers of one host, and multipath for hosts without RDMA`,
    { details: { UCX_TLS: said } },
  );
}

/** Fails with WL_UNSUPPORTED. A variable of the user wins, but for the transports. */
export function ucxSettings(
  rail: RdmaRail,
  settings: Settings,
  env: Readonly<Record<string, string | undefined>> = process.env,
): UcxSettings {
  const wanted: readonly (readonly [variable: string, value: string])[] = [
    ['NET_DEVICES', `${rail.name}:${rail.port}`],
    ['IB_GID_INDEX', String(rail.gid.index)],
    ['IB_TRAFFIC_CLASS', String(settings.rdmaTrafficClass)],
    // Receivers look at memory: a write must not pass the one before it.
    ['IB_PCI_RELAXED_ORDERING', 'n'],
    // The backend verbs has the same: a peer that is silent, or whose refusal was lost, is given up after two seconds on most
    // devices. UCX has a second, which took half a minute in the guest.
    ['RC_TIMEOUT', '250ms'],
    // UCX's 7 is without end for rxe.
    ['RC_RETRY_COUNT', '6'],
    // Never by messages, which nobody checks.
    ['ATOMIC_MODE', 'device'],
  ];
  const unset = wanted.filter(([name]) => env[`UCX_${name}`] === undefined);
  // Up to some version the settings of memory have no prefix; a name that UCX does not know it leaves out.
  const names = unset.flatMap(([name, value]) =>
    name in unprefixed
      ? [
          [name, value],
          [unprefixed[name]!, value],
        ]
      : [[name, value]],
  );
  return { TLS: chooseTransports(env['UCX_TLS']), ...(Object.fromEntries(names) as UcxSettings) };
}

// Memory that is registered with UCX, by the numbers that requests name it by, and the names that peers ask for.

/** A key is the name of a region, by which its owner tells whether it is still registered, then UCX's key. */
export const KEY_NAME_BYTES = 8;

export class UcxMemories {
  readonly #context: UcxContext;
  readonly #handles: number[] = [];
  readonly #unused: number[] = [];
  readonly #names = new Set<string>();

  constructor(context: UcxContext) {
    this.#context = context;
  }

  /** Fails with WL_CAPACITY where a limit is reached. */
  register(address: number, bytes: number): OwnMemory {
    const handle = this.#map(address, bytes);
    const name = randomBytes(KEY_NAME_BYTES);
    const text = name.toString('hex');
    const number = this.#unused.pop() ?? this.#handles.length;
    this.#handles[number] = handle;
    this.#names.add(text);
    const remoteKey = new Uint8Array(Buffer.concat([name, this.#context.pack(handle)]));
    const close = (): void => {
      // ORDER: a peer that was refused asks, and must not hear that the memory is still there.
      if (!this.#names.delete(text)) return;
      this.#context.unmap(handle);
      this.#unused.push(number);
    };
    return { localKey: number, remoteKey, close };
  }

  isRegistered(name: string): boolean {
    return this.#names.has(name);
  }

  /** Hot path. */
  handleOf(number: number): number {
    return this.#handles[number]!;
  }

  /** All that is still registered. */
  close(): void {
    for (const [number, handle] of this.#handles.entries()) {
      if (!this.#unused.includes(number)) this.#context.unmap(handle);
    }
    this.#names.clear();
  }

  #map(address: number, bytes: number): number {
    try {
      return this.#context.map(address, bytes);
    } catch (cause) {
      if (!(cause instanceof WeftlineError)) throw cause;
      throw new WeftlineError('WL_CAPACITY', cause.message, { cause, details: cause.details });
    }
  }
}
