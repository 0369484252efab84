// Why a device refused to make something: which limit it is, and how to raise it.
import { formatBytes } from '../../core/byte-size.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { FileProbe } from '../file-probe.ts';
import { nativeError } from '../native-error.ts';
import type { DeviceAttributes } from './facts.ts';

const ENOMEM = 12;
const EAGAIN = 11;
const ENOSPC = 28;
const EDQUOT = 122;
const scarce: readonly number[] = [ENOMEM, EAGAIN, ENOSPC, EDQUOT];

/** What was asked for. `held`: how many of its kind this process has of the device. */
interface RefusedRequest {
  readonly call: string;
  /** "registering 64 KiB" */
  readonly what: string;
  readonly device: string;
  readonly attributes: DeviceAttributes;
  /** The attribute of the device that limits how many there are. */
  readonly limit: 'maxQp' | 'maxCq' | 'maxMr' | 'maxPd' | 'maxSrq' | 'maxAh';
  readonly held: number;
  /** Memory that the request would pin. */
  readonly bytes: number;
}

/** Names of the limits in libibverbs. */
const limitNames = {
  maxQp: 'max_qp',
  maxCq: 'max_cq',
  maxMr: 'max_mr',
  maxPd: 'max_pd',
  maxSrq: 'max_srq',
  maxAh: 'max_ah',
} as const;

/** The error of a call that returned `result`, a negative errno. Where resources are short, it is a WL_CAPACITY. */
export function refusalOf(request: RefusedRequest, result: number, files: FileProbe): WeftlineError {
  const { call, what, device, attributes, limit, held, bytes } = request;
  const plain = nativeError(call, `${what} on ${device}`, result);
  if (!scarce.includes(-result)) return plain;
  const most = attributes[limit];
  const memory = lockedMemory(files);
  const details = { call, errno: -result, device, [limitNames[limit]]: most, held, lockedLimitBytes: memory?.limit };
  const because = (reason: string): WeftlineError =>
    new WeftlineError('WL_CAPACITY', `${plain.message}: ${reason}`, { details, cause: plain });
  if (held >= most) {
    return because(
      `this process has all ${most} that the device offers (${limitNames[limit]}): close some, or use another device`,
    );
  }
  if (memory !== undefined && memory.limit !== Infinity && memory.pinned + bytes > memory.limit) {
    return because(
      `the limit of locked memory (RLIMIT_MEMLOCK) is ${formatBytes(memory.limit)}, of which ${formatBytes(memory.pinned)} are in use: raise it with "ulimit -l unlimited", with memlock in /etc/security/limits.conf, with LimitMEMLOCK= of a service, or with --ulimit memlock=-1 of a container`,
    );
  }
  const locked = memory === undefined || memory.limit === Infinity ? 'unlimited' : formatBytes(memory.limit);
  return because(
    `the device or the kernel is out of room: other processes may hold part of the ${most} that the device offers (${limitNames[limit]}; "rdma resource" tells), the limit of locked memory is ${locked}, or memory is short`,
  );
}

/** Fails with WL_CAPACITY if a size is beyond what the device offers. */
export function requireWithin(
  device: string,
  what: string,
  value: number,
  limit: readonly [name: string, most: number],
): void {
  const [name, most] = limit;
  if (value <= most) return;
  throw new WeftlineError(
    'WL_CAPACITY',
    `${device} cannot have ${value} ${what}: it offers at most ${most} (${name}), which is fixed by the device; ask for fewer`,
    { details: { device, [name]: most, asked: value } },
  );
}

/** In bytes: the soft limit, and what is pinned of it. Undefined where /proc cannot be read. */
function lockedMemory(files: FileProbe): { readonly limit: number; readonly pinned: number } | undefined {
  const limit = /^Max locked memory\s+(\S+)/m.exec(files.readText('/proc/self/limits') ?? '')?.[1];
  if (limit === undefined) return undefined;
  const status = files.readText('/proc/self/status') ?? '';
  const kib = (label: string): number => Number(new RegExp(`^${label}:\\s+(\\d+)`, 'm').exec(status)?.[1] ?? 0);
  // The kernel counts pages that a device pins apart from those that a process locks itself.
  const pinned = kib('VmPin') * 1024;
  return { limit: limit === 'unlimited' ? Infinity : Number(limit), pinned };
}
