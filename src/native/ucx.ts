// UCX (libucp.so.0) as TypeScript functions: found at run time, opened once per process.
import { readdirSync } from 'node:fs';
import { defineLayout } from '../abi/layout.ts';
import { WeftlineError } from '../core/errors.ts';
import { type FileProbe, findLibrary, localFiles } from './file-probe.ts';
import {
  bindLazily,
  lazyFunction,
  linuxLibrary,
  type Out,
  type StatusCalls,
  symbolAddress,
  viewAt,
} from './library.ts';

// Environment variables for a library that reads them while it is loaded, beside threads that read the environment too.

const POINTER_BYTES = 8;
const RTLD_LAZY = 1;
const RTLD_NOLOAD = 4;

const dlopenFunction = lazyFunction(linuxLibrary, 'intptr_t dlopen(str, int)');
const callocFunction = lazyFunction(linuxLibrary, 'intptr_t calloc(size_t, size_t)');

/** True if a thread of this process has loaded the library. */
function isLoaded(path: string): boolean {
  return (dlopenFunction()(path, RTLD_LAZY | RTLD_NOLOAD) as number) !== 0;
}

/**
 * Runs native code that sees these variables beside those of the process.
 *
 * setenv and unsetenv are not for a process with threads: they move the table of variables and free the old one, and a
 * thread that is looking for a variable at that moment ends the process with SIGSEGV. Libraries, drivers and Node look for
 * variables on threads of their own. So a second table takes the place of the first by one store, and the first comes back
 * in the same way. The second is never freed, because a thread may still be reading it: for what happens once in a process.
 */
export function withVariables<T>(variables: Readonly<Record<string, string>>, run: () => T): T {
  const place = new BigUint64Array(viewAt(symbolAddress('environ'), POINTER_BYTES));
  let before: bigint;
  let own: bigint;
  do {
    before = Atomics.load(place, 0);
    own = tableWith(before, Object.entries(variables));
  } while (Atomics.compareExchange(place, 0, before, own) !== before);
  const known = pointersOf(Number(before));
  const added = pointersOf(Number(own)).slice(known.length);
  try {
    return run();
  } finally {
    const present = pointersOf(Number(own));
    const isUnchanged = known.every((pointer, index) => present[index] === pointer);
    const isRestored = isUnchanged && Atomics.compareExchange(place, 0, own, before) === own;
    // Another thread has set or removed a variable meanwhile: the table that has this stays, without what was added.
    if (!isRestored) remove(Number(Atomics.load(place, 0)), added);
  }
}

/** Takes entries out of a table, in place. */
function remove(table: number, entries: readonly bigint[]): void {
  const all = pointersOf(table);
  const left = all.filter((pointer) => !entries.includes(pointer));
  const place = new BigUint64Array(viewAt(table, (all.length + 1) * POINTER_BYTES));
  place.set(left);
  place.fill(0n, left.length);
}

/** The address of a table, pointers to "NAME=value" and then 0, that holds what another does and these. */
function tableWith(other: bigint, added: readonly (readonly [name: string, value: string])[]): bigint {
  const known = pointersOf(Number(other));
  const texts = added.map(([name, value]) => Buffer.from(`${name}=${value}\0`));
  const tableBytes = (known.length + texts.length + 1) * POINTER_BYTES;
  const bytes = texts.reduce((sum, text) => sum + text.length, tableBytes);
  const address = callocFunction()(1, bytes) as number;
  if (address === 0) throw new WeftlineError('WL_MEMORY', `No memory for ${bytes} bytes of environment variables`);
  const memory = viewAt(address, bytes);
  const pointers = new BigUint64Array(memory, 0, tableBytes / POINTER_BYTES);
  pointers.set(known);
  let end = tableBytes;
  for (const [index, text] of texts.entries()) {
    new Uint8Array(memory, end).set(text);
    pointers[known.length + index] = BigInt(address + end);
    end += text.length;
  }
  return BigInt(address);
}

function pointersOf(table: number): bigint[] {
  const pointers: bigint[] = [];
  for (let at = table; at !== 0; at += POINTER_BYTES) {
    const pointer = new BigUint64Array(viewAt(at, POINTER_BYTES))[0]!;
    if (pointer === 0n) break;
    pointers.push(pointer);
  }
  return pointers;
}

// Descriptors that a native library opens are inherited by the programs that this process starts, unless they are marked.

const FIOCLEX = 0x5451;
const mark = lazyFunction(linuxLibrary, 'int ioctl(int, unsigned long)');

/** Runs native code; what it has opened when it returns stays with this process. Node marks what it opens itself. */
export function withoutInheritance<T>(run: () => T): T {
  const before = new Set(descriptors());
  try {
    return run();
  } finally {
    for (const descriptor of descriptors()) if (!before.has(descriptor)) mark()(Number(descriptor), FIOCLEX);
  }
}

function descriptors(): string[] {
  return readdirSync('/proc/self/fd');
}

// What UCX's status codes mean, as errors.

/** Names that weftline has met or expects; ucs_status_string has the others. */
const names: Readonly<Record<number, string>> = {
  [-1]: 'UCS_ERR_NO_MESSAGE',
  [-2]: 'UCS_ERR_NO_RESOURCE',
  [-3]: 'UCS_ERR_IO_ERROR',
  [-4]: 'UCS_ERR_NO_MEMORY',
  [-5]: 'UCS_ERR_INVALID_PARAM',
  [-6]: 'UCS_ERR_UNREACHABLE',
  [-8]: 'UCS_ERR_NOT_IMPLEMENTED',
  [-9]: 'UCS_ERR_MESSAGE_TRUNCATED',
  [-12]: 'UCS_ERR_NO_ELEM',
  [-15]: 'UCS_ERR_BUSY',
  [-17]: 'UCS_ERR_SHMEM_SEGMENT',
  [-16]: 'UCS_ERR_CANCELED',
  [-20]: 'UCS_ERR_TIMED_OUT',
  [-22]: 'UCS_ERR_UNSUPPORTED',
  [-23]: 'UCS_ERR_REJECTED',
  [-24]: 'UCS_ERR_NOT_CONNECTED',
  [-25]: 'UCS_ERR_CONNECTION_RESET',
  [-80]: 'UCS_ERR_ENDPOINT_TIMEOUT',
};

export function ucxStatusName(status: number): string {
  return names[status] ?? `status ${status}`;
}

/** `what` was being done. */
export function ucxError(call: string, status: number, what: string): WeftlineError {
  const name = ucxStatusName(status);
  return new WeftlineError('WL_NATIVE', `${call} failed with ${name}: ${what}`, { details: { call, status, name } });
}

/** True if a pointer status is an error, false if it is a request or 0. */
export function isErrorPointer(pointer: number): boolean {
  return pointer < 0 && pointer >= ucsStatus.last;
}

// The structures and numbers of UCX's C interface (ucp.h, API 1.12 and later), as far as weftline uses them.

// Each structure has room for the fields that weftline leaves out: zero, and not in the field mask.

export const ucpParams = defineLayout('ucp_params_t', {
  fieldMask: 'u64',
  features: 'u64',
  others: { of: 'u64', count: 8 },
});

export const ucpWorkerParams = defineLayout('ucp_worker_params_t', {
  fieldMask: 'u64',
  threadMode: 'u32',
  others: { of: 'u64', count: 19 },
  flags: 'u64',
  more: { of: 'u64', count: 3 },
});

export const ucpEndpointParams = defineLayout('ucp_ep_params_t', {
  fieldMask: 'u64',
  address: 'u64',
  errorMode: 'u32',
  errorCallback: 'u64',
  errorArgument: 'u64',
  others: { of: 'u64', count: 8 },
});

export const ucpRequestParam = defineLayout('ucp_request_param_t', {
  attributes: 'u32',
  flags: 'u32',
  others: { of: 'u64', count: 2 },
  dataType: 'u64',
  more: { of: 'u64', count: 4 },
  /** Flag of `ucp_mem_map`. Up to 1.12, UCX does not know it. */
  memory: 'u64',
});

export const ucpMemoryParams = defineLayout('ucp_mem_map_params_t', {
  fieldMask: 'u64',
  address: 'u64',
  bytes: 'u64',
  others: { of: 'u64', count: 4 },
});

/** What a receive tells of its message. */
export const ucpTagInfo = defineLayout('ucp_tag_recv_info_t', { tag: 'u64', bytes: 'u64' });

export const ucpMasks = {
  params: { features: 1 },
  features: { tags: 1, remoteMemory: 2, atomics64: 8, wakeup: 16 },
  worker: { flags: 32 },
  /** No warning about requests of a peer that died. */
  workerFlags: { ignoreRequestLeak: 1 },
  endpoint: { address: 1, errorMode: 2, errorHandler: 4 },
  memory: { address: 1, bytes: 2 },
  /** `noImmediate`: a call that ends at once returns a request all the same. */
  request: { dataType: 8, flags: 16, memory: 2 ** 8, noImmediate: 2 ** 16 },
  closeFlags: { force: 1 },
} as const;

/** ucp_atomic_op_t: adds, without the old value. */
export const UCP_ATOMIC_OP_ADD = 0;
/** ucp_dt_make_contig(8): one number of 64 bits. */
export const UCP_WORD_TYPE = 8 << 3;

/** An endpoint tells when its peer is lost, and can be closed at once. */
export const UCP_ERR_HANDLING_MODE_PEER = 1;

/** ucs_status_t, one byte. A pointer status is 0 (done), a request, or one of the negative ones. */
export const ucsStatus = {
  ok: 0,
  inProgress: 1,
  unreachable: -6,
  busy: -15,
  canceled: -16,
  /** Shared memory of the peer, which this process may not open. */
  noSegment: -17,
  last: -100,
} as const;

/** Handles, requests and addresses are numbers: user-space addresses stay below 2^53. */
const statusFunctions = {
  ucp_get_version: 'void ucp_get_version(_Out_ uint32_t* major, _Out_ uint32_t* minor, _Out_ uint32_t* release)',
  ucp_config_read: 'int8_t ucp_config_read(intptr_t prefix, intptr_t file, intptr_t config)',
  ucp_config_modify: 'int8_t ucp_config_modify(intptr_t config, const char* name, const char* value)',
  ucp_config_release: 'void ucp_config_release(intptr_t config)',
  ucp_init_version:
    'int8_t ucp_init_version(uint32_t major, uint32_t minor, intptr_t params, intptr_t config, intptr_t context)',
  ucp_cleanup: 'void ucp_cleanup(intptr_t context)',
  ucp_mem_map: 'int8_t ucp_mem_map(intptr_t context, intptr_t params, intptr_t memory)',
  ucp_mem_unmap: 'int8_t ucp_mem_unmap(intptr_t context, intptr_t memory)',
  ucp_rkey_pack: 'int8_t ucp_rkey_pack(intptr_t context, intptr_t memory, intptr_t buffer, intptr_t bytes)',
  ucp_rkey_buffer_release: 'void ucp_rkey_buffer_release(intptr_t buffer)',
  ucp_ep_rkey_unpack: 'int8_t ucp_ep_rkey_unpack(intptr_t endpoint, intptr_t buffer, intptr_t key)',
  ucp_rkey_destroy: 'void ucp_rkey_destroy(intptr_t key)',
  ucp_put_nbx:
    'intptr_t ucp_put_nbx(intptr_t endpoint, intptr_t data, size_t bytes, uint64_t remote, intptr_t key, intptr_t params)',
  ucp_get_nbx:
    'intptr_t ucp_get_nbx(intptr_t endpoint, intptr_t data, size_t bytes, uint64_t remote, intptr_t key, intptr_t params)',
  ucp_ep_flush_nbx: 'intptr_t ucp_ep_flush_nbx(intptr_t endpoint, intptr_t params)',
  ucp_atomic_op_nbx:
    'intptr_t ucp_atomic_op_nbx(intptr_t endpoint, int operation, intptr_t value, size_t count, uint64_t remote, intptr_t key, intptr_t params)',
  ucp_worker_fence: 'int8_t ucp_worker_fence(intptr_t worker)',
  ucp_worker_create: 'int8_t ucp_worker_create(intptr_t context, intptr_t params, intptr_t worker)',
  ucp_worker_destroy: 'void ucp_worker_destroy(intptr_t worker)',
  ucp_worker_get_address: 'int8_t ucp_worker_get_address(intptr_t worker, intptr_t address, intptr_t bytes)',
  ucp_worker_release_address: 'void ucp_worker_release_address(intptr_t worker, intptr_t address)',
  ucp_worker_progress: 'uint32_t ucp_worker_progress(intptr_t worker)',
  ucp_worker_get_efd: 'int8_t ucp_worker_get_efd(intptr_t worker, _Out_ int* fd)',
  ucp_worker_arm: 'int8_t ucp_worker_arm(intptr_t worker)',
  ucp_ep_create: 'int8_t ucp_ep_create(intptr_t worker, intptr_t params, intptr_t endpoint)',
  ucp_ep_close_nbx: 'intptr_t ucp_ep_close_nbx(intptr_t endpoint, intptr_t params)',
  ucp_tag_send_nbx:
    'intptr_t ucp_tag_send_nbx(intptr_t endpoint, intptr_t data, size_t bytes, uint64_t tag, intptr_t params)',
  ucp_tag_recv_nbx:
    'intptr_t ucp_tag_recv_nbx(intptr_t worker, intptr_t data, size_t bytes, uint64_t tag, uint64_t mask, intptr_t params)',
  ucp_tag_recv_request_test: 'int8_t ucp_tag_recv_request_test(intptr_t request, intptr_t info)',
  ucp_request_cancel: 'void ucp_request_cancel(intptr_t worker, intptr_t request)',
  ucp_request_check_status: 'int8_t ucp_request_check_status(intptr_t request)',
  ucp_request_free: 'void ucp_request_free(intptr_t request)',
} as const;

/** The oldest interface that has all of these, and `ucp_config_modify` for settings of transports. */
const API = { major: 1, minor: 12 } as const;

export interface Ucx {
  readonly path: string;
  /** "1.13.1" */
  readonly version: string;
  readonly calls: StatusCalls<typeof statusFunctions>;
  /** `ucp_init_version` with the version that weftline speaks. */
  init(params: number, config: number, context: number): number;
}

const fileName = /^libucp\.so\.0$/;
let opened: Ucx | undefined;

/** Path of the library, which is not opened. */
export function findUcx(machine: FileProbe): string | undefined {
  return findLibrary(machine, fileName);
}

/** Opens the library. Fails with WL_UNSUPPORTED when there is none or it is too old. */
export function openUcx(): Ucx {
  opened ??= open();
  return opened;
}

function open(): Ucx {
  const path = findUcx(localFiles());
  if (path === undefined) {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      'UCX (libucp.so.0) was not found: install it (Debian and Ubuntu: "apt-get install libucx0"), or add its folder to LD_LIBRARY_PATH',
    );
  }
  loadQuietly(path);
  const calls = bindLazily(() => path, statusFunctions);
  const major: Out = [0];
  const minor: Out = [0];
  const release: Out = [0];
  calls.ucp_get_version(major, minor, release);
  const version = `${major[0]}.${minor[0]}.${release[0]}`;
  if (major[0] !== API.major || minor[0] < API.minor) {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      `UCX ${version} at ${path} cannot be used: weftline needs ${API.major}.${API.minor} or a later one of ${API.major}.x`,
      { details: { path, version } },
    );
  }
  const init = (params: number, config: number, context: number): number =>
    calls.ucp_init_version(API.major, API.minor, params, config, context);
  return { path, version, calls, init };
}

/**
 * What UCX must not do in this process unless the user wants it; it reads the variables while it is loaded.
 *
 * - It catches SIGSEGV and its like to print where it happened. Node needs SIGSEGV for WebAssembly.
 * - It catches SIGHUP to print what it does from then on. A program whose terminal is gone is to end.
 * - It rewrites mmap, munmap and brk of the running process to hear when memory goes. Other threads of Node are in them
 *   at that moment, and crashes seen before this was set are thought to come from it. Without, UCX keeps no cache of registered memory for RDMA.
 * - It offers its state to a monitoring daemon, on a thread of its own.
 * - It logs to stdout, which is the program's: that a peer is lost, for one, of which weftline tells by an error.
 */
const quietly: Readonly<Record<string, string>> = {
  UCX_HANDLE_ERRORS: 'none',
  UCX_DEBUG_SIGNO: '0',
  UCX_MEM_EVENTS: 'n',
  UCX_VFS_ENABLE: 'n',
};
const silently: Readonly<Record<string, string>> = { ...quietly, UCX_LOG_LEVEL: 'fatal' };

function loadQuietly(path: string): void {
  // Another thread of the process, for instance, has loaded it: UCX reads these variables no more.
  if (isLoaded(path)) return;
  // A log file was named, so UCX's messages are wanted.
  const wanted = process.env['UCX_LOG_FILE'] === undefined ? silently : quietly;
  const variables = Object.fromEntries(Object.entries(wanted).filter(([name]) => process.env[name] === undefined));
  withVariables(variables, () => lazyFunction(path, 'void ucp_get_version(intptr_t, intptr_t, intptr_t)')());
}
