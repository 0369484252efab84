// Everything that is checked on a machine, in the order it is shown. A new row is one function and one line here.
import { formatBytes } from '../../core/byte-size.ts';
import { countEqual } from '../../core/quote.ts';
import { asWeftlineError } from '../../core/errors.ts';
import { addressSpaceAdvice, wasm } from '../../device/cpu/kernels.ts';
import { driverVersionFile, parseDriverVersion } from '../../device/cuda/device-properties.ts';
import { bufferSize } from '../../ep/index.ts';
import {
  activeRdmaPorts,
  type FileProbe,
  findCudaLibrary,
  findLibrary,
  localFiles,
  orUndefined,
  rdmaDevices,
} from '../../native/file-probe.ts';
import { findUcx, openUcx } from '../../native/ucx.ts';
import { describePlan, planRails, type RailPlan } from '../../rails/rail-list.ts';
import { rdmaSettingsTable, readSettings, settingsTable } from '../../settings/settings.ts';
import { defaultEpWorkload } from '../bench/ep/ep-workload.ts';
import { statfsSync } from 'node:fs';
import { availableParallelism, cpus, totalmem } from 'node:os';
import { loadKoffi } from '../../native/library.ts';
import { type HostInterface, hostInterfaces } from '../../rails/rail-list.ts';
import {
  chooseRdma,
  type RdmaChoice,
  type RdmaDevice,
  railOfGpu,
  rdmaHardware,
  type RdmaSettings,
  whyTooFar,
} from '../../rails/rdma-choice.ts';
import { cudaDriver } from '../../native/cuda-driver.ts';
import {
  chooseGpuMemory,
  type GpuMemoryChoice,
  listGpuRdmaFacts,
  peermemModule,
  type ReachedGpu,
} from '../../native/verbs/gpu-memory.ts';
import { gpuDevices } from '../../rails/nearest-device.ts';

export interface Finding {
  readonly name: string;
  /** `short`: there, but less than a typical configuration needs; `absent`: not there. */
  readonly status: 'ok' | 'short' | 'absent';
  readonly value: string;
  /** What to do, or what does not work without it. */
  readonly advice?: string;
  /** True when not even CPU ranks run without it. */
  readonly blocksCpu?: true;
}

type Check = (machine: MachineProbe) => Finding;

const checks: readonly Check[] = [
  checkNodeVersion,
  checkCores,
  checkMemory,
  checkSharedMemory,
  checkHugePages,
  checkWebAssembly,
  checkNativeCalls,
  checkOpenFiles,
  checkLockedMemory,
  checkContainer,
  checkGpus,
  checkCudaDriver,
  checkNvrtc,
  checkCublas,
  checkRails,
  checkRdmaDevices,
  checkVerbs,
  checkUcx,
  (machine) => checkBuffer(machine, 'UDP receive buffer', 'rmem_max'),
  (machine) => checkBuffer(machine, 'UDP send buffer', 'wmem_max'),
  checkUdpMemory,
];

export type Examination = ReturnType<typeof examine>;

/** Looks at the machine; reads only, loads no driver. */
export function examine(machine: MachineProbe) {
  const findings = checks.map((check) => check(machine));
  return {
    schema: 'weftline.doctor/1' as const,
    /** False when CPU ranks cannot run on this machine. */
    cpuReady: !findings.some((finding) => finding.blocksCpu),
    findings: findings as readonly Finding[],
    /** Missing if the setting names what this machine does not have. */
    rails: orUndefined(() => readRails(machine)),
  };
}

/** `advice`: where there is less than enough. */
function judge(
  name: string,
  value: string,
  { isEnough, advice }: { readonly isEnough: boolean; readonly advice: string },
): Finding {
  return isEnough ? { name, status: 'ok', value } : { name, status: 'short', value, advice };
}

/** `advice`: where there is none. */
function library(name: string, path: string | undefined, advice: string): Finding {
  if (path === undefined) return { name, status: 'absent', value: 'not found', advice };
  return { name, status: 'ok', value: path };
}

// The version of Node.js.

function checkNodeVersion({ nodeVersion }: MachineProbe): Finding {
  const name = 'Node.js';
  const [major = 0, minor = 0] = nodeVersion.split('.').map(Number);
  if (major < 20 || (major === 20 && minor < 19)) {
    const advice = 'weftline needs Node.js 20.19 or newer, 22 or newer is recommended';
    return { name, status: 'short', value: nodeVersion, advice, blocksCpu: true };
  }
  return { name, status: 'ok', value: major < 22 ? `${nodeVersion} (22 or newer is recommended)` : nodeVersion };
}

// Processor cores: ranks that share one take turns.

function checkCores(machine: MachineProbe): Finding {
  const { model, present, usable } = machine.cores;
  const limit = cpuLimit(machine);
  const cores = Math.min(usable, limit ?? usable);
  const held = [
    usable < present ? `affinity allows ${usable}` : undefined,
    limit !== undefined && limit < usable ? `the control group allows ${limit.toFixed(1)}` : undefined,
  ].filter((part) => part !== undefined);
  const value = [`${present} (${model})`, ...held].join(', ');
  const { ranks } = typicalConfiguration;
  const advice = `${ranks} ranks take turns on ${cores} cores: results are right, times are longer; one core per rank is best`;
  return judge('cores', value, { isEnough: cores >= ranks, advice });
}

// Main memory and the limit that a control group puts on it.

function checkMemory(machine: MachineProbe): Finding {
  const limit = memoryLimit(machine);
  const usable = Math.min(machine.memoryBytes, limit ?? machine.memoryBytes);
  const total = formatBytes(machine.memoryBytes);
  const value = usable < machine.memoryBytes ? `${total}, the control group allows ${formatBytes(usable)}` : total;
  const { memoryBytes, sentence } = typicalConfiguration;
  const advice = `${sentence} take about ${formatBytes(memoryBytes)}, shared memory included: use fewer tokens per rank, or raise the limit`;
  return judge('memory', value, { isEnough: usable >= memoryBytes, advice });
}

// The file system that windows live in.

function checkSharedMemory(machine: MachineProbe): Finding {
  const name = 'shared memory (/dev/shm)';
  const space = machine.fileSystem('/dev/shm');
  // The last of several mounts at one place is the one that is seen.
  const mount = machine
    .readText('/proc/self/mounts')
    ?.split('\n')
    .findLast((line) => line.split(' ')[1] === '/dev/shm');
  if (machine.platform !== 'linux' || space === undefined) {
    const advice =
      'ranks share memory through /dev/shm, a tmpfs that Linux has: mount -t tmpfs -o size=50% tmpfs /dev/shm';
    return {
      name,
      status: 'absent',
      value: machine.platform === 'linux' ? 'no such folder' : machine.platform,
      advice,
      blocksCpu: true,
    };
  }
  const kind = mount === undefined ? 'not a mount of its own' : mount.split(' ')[2];
  const value = `${formatBytes(space.freeBytes)} free of ${formatBytes(space.totalBytes)} (${kind})`;
  const { windowBytes, windowBytesPerToken, sentence } = typicalConfiguration;
  const raise = inContainer(machine) ? 'start the container with --shm-size=4g' : 'mount -o remount,size=4G /dev/shm';
  const fits = Math.floor(space.freeBytes / windowBytesPerToken);
  const advice = `${sentence} need ${formatBytes(windowBytes)} at worst, about ${fits} tokens per rank fit: ${raise}, or remove what others left there`;
  return judge(name, value, { isEnough: space.freeBytes >= windowBytes, advice });
}

// Huge pages for shared memory, which spare large copies most of their page-table look-ups.

const HUGE_PAGES = '/sys/kernel/mm/transparent_hugepage/shmem_enabled';

function checkHugePages(machine: MachineProbe): Finding {
  const name = 'huge pages of /dev/shm';
  const modes = machine.readText(HUGE_PAGES)?.trim();
  if (modes === undefined) {
    return {
      name,
      status: 'absent',
      value: 'not offered',
      advice: 'this kernel has none; windows of large buffers are slower',
    };
  }
  // The present one of all modes is in brackets.
  const value = /\[(\w+)\]/.exec(modes)?.[1] ?? modes;
  const advice = `echo advise > ${HUGE_PAGES} makes windows of large buffers faster (1.5 times measured with 4096 tokens of 7168)`;
  return judge(name, value, { isEnough: value !== 'never' && value !== 'deny', advice });
}

// WebAssembly as the CPU kernels need it: SIMD, and one shared memory that spans the whole address space of a rank.

const PAGES_PER_MIB = 16;

const { env, max } = settingsTable.addressSpaceMiB;

function checkWebAssembly(machine: MachineProbe): Finding {
  const name = 'WebAssembly';
  let reason: unknown;
  for (const mib of [max, max / 2, max / 4, max / 16]) {
    try {
      machine.tryWebAssembly(mib * PAGES_PER_MIB);
    } catch (error) {
      reason ??= error;
      continue;
    }
    const value = `SIMD, shared memory of ${mib} MiB`;
    if (mib === max) return { name, status: 'ok', value };
    const advice = `${max} MiB of address space are refused: ${addressSpaceAdvice(`${env}=${mib}`, true)}`;
    return { name, status: 'short', value, advice };
  }
  const value = reason instanceof Error ? reason.message : String(reason);
  const advice = `the CPU kernels need WebAssembly with SIMD and shared memory: start node without flags that turn them off, and ${addressSpaceAdvice(`${env} to less`, false)}`;
  return { name, status: 'absent', value, advice, blocksCpu: true };
}

// Calls of C functions, which shared memory and waiting between processes need.

function checkNativeCalls(machine: MachineProbe): Finding {
  const name = 'native calls (koffi)';
  const value = `${machine.platform}-${machine.arch}`;
  try {
    machine.tryNativeCalls();
    return { name, status: 'ok', value };
  } catch (error) {
    const advice = error instanceof Error ? error.message : String(error);
    return { name, status: 'absent', value, advice, blocksCpu: true };
  }
}

// Limits of this process that later ranks inherit: open files and locked memory.

const OPEN_FILES_WANTED = 1024;
const LOCKED_BYTES_WANTED = 1_073_741_824;

function checkOpenFiles(machine: MachineProbe): Finding {
  const name = 'open files';
  const limit = softLimit(machine, 'Max open files');
  if (limit === undefined) return unknown(name);
  const advice = `the launcher of many ranks needs about ${OPEN_FILES_WANTED}: ulimit -n ${OPEN_FILES_WANTED}`;
  return judge(name, amount(limit, String), { isEnough: limit >= OPEN_FILES_WANTED, advice });
}

function checkLockedMemory(machine: MachineProbe): Finding {
  const name = 'locked memory';
  const limit = softLimit(machine, 'Max locked memory');
  if (limit === undefined) return unknown(name);
  const advice =
    'only RDMA pins memory, CPU ranks do not need it: ulimit -l unlimited, or memlock in /etc/security/limits.conf';
  return judge(name, amount(limit, formatBytes), { isEnough: limit >= LOCKED_BYTES_WANTED, advice });
}

function unknown(name: string): Finding {
  return { name, status: 'absent', value: 'unknown', advice: '/proc/self/limits cannot be read here' };
}

function amount(limit: number, show: (value: number) => string): string {
  return limit === Infinity ? 'unlimited' : show(limit);
}

/** The soft limit of one line of /proc/self/limits. */
function softLimit(machine: MachineProbe, label: string): number | undefined {
  const line = machine
    .readText('/proc/self/limits')
    ?.split('\n')
    .find((text) => text.startsWith(label));
  const word = line?.slice(label.length).trim().split(/\s+/)[0];
  if (word === 'unlimited') return Infinity;
  return word !== undefined && /^\d+$/.test(word) ? Number(word) : undefined;
}

// Whether we run in a container: its limits are set where it is started.

function checkContainer(machine: MachineProbe): Finding {
  const value = containerKind(machine) ?? 'none seen';
  return { name: 'container', status: 'ok', value };
}

function inContainer(machine: MachineProbe): boolean {
  return containerKind(machine) !== undefined;
}

function containerKind(machine: MachineProbe): string | undefined {
  if (machine.env['KUBERNETES_SERVICE_HOST'] !== undefined) return 'Kubernetes';
  if (machine.exists('/.dockerenv')) return 'Docker';
  if (machine.exists('/run/.containerenv')) return 'Podman';
  if (machine.env['APPTAINER_CONTAINER'] !== undefined || machine.env['SINGULARITY_CONTAINER'] !== undefined) {
    return 'Apptainer';
  }
  const group = machine.readText('/proc/1/cgroup') ?? '';
  return /docker|kubepods|containerd|libpod|lxc/.exec(group)?.[0];
}

// NVIDIA GPUs, the driver's library, NVRTC, which compiles kernels at run time, and cuBLAS. Nothing is loaded.

function checkGpus(machine: MachineProbe): Finding {
  const name = 'NVIDIA GPUs';
  const models = machine.list('/proc/driver/nvidia/gpus').map((bus) => {
    const text = machine.readText(`/proc/driver/nvidia/gpus/${bus}/information`) ?? '';
    return /^Model:\s*(.+)$/m.exec(text)?.[1]?.trim() ?? 'unknown model';
  });
  const usable = machine.list('/dev').filter((file) => /^nvidia\d+$/.test(file)).length;
  if (models.length === 0 && usable === 0) {
    return { name, status: 'absent', value: 'none', advice: 'ranks run on the CPU; a GPU needs the NVIDIA driver' };
  }
  const version = parseDriverVersion(machine.readText(driverVersionFile) ?? '');
  const what = models.length === 0 ? `${usable}, models unknown` : countEqual(models);
  const value = version === undefined ? what : `${what}, driver ${version}`;
  const advice = `only ${usable} of ${models.length} have a device file here: start the container with --gpus all`;
  return judge(name, value, { isEnough: usable >= models.length, advice });
}

function checkCudaDriver(machine: MachineProbe): Finding {
  const path = findLibrary(machine, /^libcuda\.so\.1$/, ['/usr/local/nvidia/lib64', '/usr/lib/wsl/lib']);
  const advice = 'it comes with the NVIDIA driver; in a container it needs the NVIDIA container toolkit';
  return library('CUDA driver (libcuda)', path, advice);
}

function checkNvrtc(machine: MachineProbe): Finding {
  const path = findCudaLibrary(machine, 'nvrtc', machine.env['WEFTLINE_NVRTC']);
  const advice =
    'it compiles GPU kernels: install the CUDA toolkit and set CUDA_HOME, or "pip install nvidia-cuda-nvrtc" into the active environment';
  return library('NVRTC', path, advice);
}

function checkCublas(machine: MachineProbe): Finding {
  const path = findCudaLibrary(machine, 'cublas', machine.env['WEFTLINE_CUBLAS']);
  const advice =
    'weftline moe multiplies by a kernel of its own instead; the CUDA toolkit has it, or "pip install nvidia-cublas"';
  return library('cuBLAS', path, advice);
}

// Rails of the transport: which network interfaces they are, and which of them is nearest to each GPU.

function checkRails(machine: MachineProbe): Finding {
  const list = listOf(machine);
  const name = list === '' ? 'network interfaces' : 'rails';
  try {
    const plan = readRails(machine);
    if (plan.rails.length > 0) return { name, status: 'ok', value: describePlan(plan).join('\n') };
    return { name, status: 'absent', value: 'none but loopback', advice: 'ranks and agents reach no other machine' };
  } catch (error) {
    return { name, status: 'short', value: list, advice: asWeftlineError(error).message };
  }
}

/** The rails of the setting, or all that this machine has. Fails with WL_CONFIG for a wrong list. */
function readRails(machine: MachineProbe): RailPlan {
  return planRails(listOf(machine), machine, machine.interfaces);
}

function listOf(machine: MachineProbe): string {
  return machine.env[settingsTable.transportRails.env]?.trim() ?? '';
}

// RDMA devices and the libraries that drive them: verbs, and UCX.

function checkRdmaDevices(machine: MachineProbe): Finding {
  const name = 'RDMA devices';
  const devices = rdmaDevices(machine);
  if (devices.length === 0) {
    return { name, status: 'absent', value: 'none', advice: 'transfers between machines go over TCP and UDP' };
  }
  const value = devices.map(({ device, ports }) => `${device} (${ports.join(', ') || 'no active port'})`).join(', ');
  if (!machine.exists('/dev/infiniband')) {
    const advice = 'no /dev/infiniband here: start the container with --device=/dev/infiniband';
    return { name, status: 'short', value, advice };
  }
  if (devices.some(({ ports }) => ports.length > 0)) return { name, status: 'ok', value };
  return { name, status: 'short', value, advice: 'no port is active: see cables, switch and "rdma link"' };
}

function checkVerbs(machine: MachineProbe): Finding {
  const path = findLibrary(machine, /^libibverbs\.so\.1$/);
  const advice = 'only RDMA needs it: install rdma-core (Debian and Ubuntu: libibverbs1 ibverbs-providers)';
  return library('verbs (libibverbs)', path, advice);
}

function checkUcx(machine: MachineProbe): Finding {
  const name = 'UCX (libucp)';
  const path = findUcx(machine);
  if (path !== undefined) {
    const version = machine.ucxVersion();
    const value = `${version === undefined ? '' : `${version}, `}${path} (${ucxTransports(machine, path)})`;
    if (version !== undefined) {
      if (activeRdmaPorts(machine).length > 0) return { name, status: 'ok', value };
      return { name, status: 'ok', value: `${value}; the backend ucx needs an active RDMA port` };
    }
    return { name, status: 'short', value, advice: 'it cannot be used: 1.12 or a later 1.x is needed' };
  }
  const advice = 'optional, drives RDMA devices for the backend ucx of agents: "apt-get install libucx0"';
  return { name, status: 'absent', value: 'not found', advice };
}

/** What drives RDMA devices lies beside UCX as modules. The backend uses nothing else. */
function ucxTransports(machine: MachineProbe, path: string): string {
  const folder = `${path.slice(0, path.lastIndexOf('/'))}/ucx`;
  const modules = machine.list(folder).flatMap((file) => /^libuct_(\w+)\.so\.0$/.exec(file)?.[1] ?? []);
  const rdma = modules.filter((module) => /^(ib|rdmacm|mlx)/.test(module));
  return rdma.length === 0 ? 'no module for RDMA: in Debian libucx0 has it' : `modules ${rdma.join(', ')}`;
}

// How much the kernel lets a UDP socket buffer, and all of them together.

/** Holds some milliseconds of a 100 Gbps link while the receiver is busy. */
const WANTED_BYTES = 33_554_432;
const PAGE_BYTES = 4096;

/** Beyond the third number of udp_mem, in pages, the kernel drops what arrives for any socket of the machine. */
function checkUdpMemory(machine: MachineProbe): Finding {
  const name = 'UDP memory, all sockets';
  const pages = Number(machine.readText('/proc/sys/net/ipv4/udp_mem')?.trim().split(/\s+/)[2] ?? Number.NaN);
  if (!Number.isFinite(pages))
    return { name, status: 'absent', value: 'unknown', advice: 'net.ipv4.udp_mem cannot be read here' };
  const bytes = pages * PAGE_BYTES;
  const advice = `many connections over UDP need more, or packets are lost: raise net.ipv4.udp_mem to ${(8 * WANTED_BYTES) / PAGE_BYTES} pages`;
  return judge(name, formatBytes(bytes), { isEnough: bytes >= 8 * WANTED_BYTES, advice });
}

function checkBuffer(machine: MachineProbe, name: string, key: string): Finding {
  const bytes = Number(machine.readText(`/proc/sys/net/core/${key}`)?.trim() ?? Number.NaN);
  // A container may hide the limits of its host.
  if (!Number.isFinite(bytes))
    return { name, status: 'absent', value: 'unknown', advice: `net.core.${key} cannot be read here` };
  const advice = `only transfers over UDP between machines need more: sysctl -w net.core.${key}=${WANTED_BYTES}`;
  return judge(name, formatBytes(bytes), { isEnough: bytes >= WANTED_BYTES, advice });
}

// Limits that a control group (a container, a service, a batch job) puts on this process.

/** Memory limit in bytes, the smallest on the way from our group to the root; undefined without one. */
function memoryLimit(machine: MachineProbe): number | undefined {
  const limits = groupFolders(machine, 'memory').flatMap((folder) => {
    const text = machine.readText(`${folder}/memory.max`) ?? machine.readText(`${folder}/memory.limit_in_bytes`);
    const bytes = Number(text?.trim());
    // The first version of control groups writes "no limit" as a number near 2^63.
    return Number.isFinite(bytes) && bytes > 0 && bytes < 2 ** 60 ? [bytes] : [];
  });
  return limits.length === 0 ? undefined : Math.min(...limits);
}

/** How many cores' worth of time we may use; undefined without a limit. */
function cpuLimit(machine: MachineProbe): number | undefined {
  const limits = groupFolders(machine, 'cpu').flatMap((folder) => {
    const [quota, period] =
      machine.readText(`${folder}/cpu.max`)?.trim().split(' ') ??
      ['cpu.cfs_quota_us', 'cpu.cfs_period_us'].map((file) => machine.readText(`${folder}/${file}`)?.trim());
    const cores = Number(quota) / Number(period);
    return Number.isFinite(cores) && cores > 0 ? [cores] : [];
  });
  return limits.length === 0 ? undefined : Math.min(...limits);
}

/** The folders of our group and of those above it, for both versions of control groups. */
function groupFolders(machine: MachineProbe, controller: string): string[] {
  const folders: string[] = [];
  for (const line of machine.readText('/proc/self/cgroup')?.split('\n') ?? []) {
    const [, controllers, ...rest] = line.split(':');
    const unified = controllers === '';
    if (!unified && !controllers?.split(',').includes(controller)) continue;
    const mount = unified ? '/sys/fs/cgroup' : `/sys/fs/cgroup/${controller}`;
    const parts = rest
      .join(':')
      .split('/')
      .filter((part) => part !== '');
    for (let depth = parts.length; depth >= 0; depth -= 1) folders.push([mount, ...parts.slice(0, depth)].join('/'));
  }
  return folders;
}

// The configuration that the checks measure a machine against: an EpBuffer for what `weftline bench ep` runs by default.

const BYTES_PER_RANK_BESIDE_WINDOWS = 256 * 1_048_576;

function typical() {
  const { ranks, tokens, hidden, experts, topk } = defaultEpWorkload;
  const { addressSpaceBytes } = bufferSize(
    { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk },
    ranks,
  );

  return {
    ranks,
    /** Shared memory of all ranks together. */
    windowBytes: addressSpaceBytes,
    windowBytesPerToken: addressSpaceBytes / tokens,
    /** The same, and what each process holds for itself. */
    memoryBytes: addressSpaceBytes + ranks * BYTES_PER_RANK_BESIDE_WINDOWS,
    sentence: `${ranks} ranks of ${tokens} tokens of ${hidden}`,
  };
}

const typicalConfiguration = typical();

// What the checks ask of the machine; tests put another machine in its place.

/** Reading never throws: what is missing or forbidden is undefined or empty. */
export interface MachineProbe extends FileProbe {
  readonly platform: string;
  readonly nodeVersion: string;
  /** Logical processors of the machine, and how many of them this process may use. */
  readonly cores: { readonly model: string; readonly present: number; readonly usable: number };
  readonly memoryBytes: number;
  readonly interfaces: readonly HostInterface[];
  fileSystem(path: string): { readonly totalBytes: number; readonly freeBytes: number } | undefined;
  /** Throws when the kernels cannot run here: compiles a SIMD module, reserves a shared memory of so many pages. */
  tryWebAssembly(maximumPages: number): void;
  /** Throws when native functions cannot be called here. */
  tryNativeCalls(): void;
  /** Devices that libibverbs knows. Throws where there is none. */
  rdmaHardware(): readonly RdmaDevice[];
  /** GPUs that the CUDA driver shows to this process; empty without a driver. */
  reachedGpus(): readonly ReachedGpu[];
  /** The version of the UCX that an agent would use; undefined if none can be. */
  ucxVersion(): string | undefined;
}

/** The machine we run on. */
export function thisMachine(): MachineProbe {
  return {
    ...localFiles(),
    platform: process.platform,
    nodeVersion: process.versions.node,
    cores: { model: cpus()[0]?.model.trim() ?? 'unknown', present: cpus().length, usable: availableParallelism() },
    memoryBytes: totalmem(),
    interfaces: hostInterfaces(),
    fileSystem: (path) =>
      orUndefined(() => {
        const { bsize, blocks, bavail } = statfsSync(path);
        return { totalBytes: bsize * blocks, freeBytes: bsize * bavail };
      }),
    tryWebAssembly,
    tryNativeCalls: () => void loadKoffi(),
    rdmaHardware: () => rdmaHardware(localFiles()),
    reachedGpus: () => orUndefined(() => listGpuRdmaFacts(cudaDriver)) ?? [],
    ucxVersion: () => orUndefined(() => openUcx().version),
  };
}

/** (module (func (export "f") (result v128) (v128.const i32x4 0 0 0 0))): compiles only where SIMD is supported. */
const simdModule = Buffer.from(
  `0061736d01000000 0105016000017b 03020100 07050101660000 0a16011400fd0c${'00'.repeat(16)}0b`
    .replaceAll(' ', '')
    .replace(' ', ''),
  'hex',
);

function tryWebAssembly(maximumPages: number): void {
  if (!wasm.validate(simdModule)) throw new Error('WebAssembly SIMD is not supported');
  const memory = new wasm.Memory({ initial: 1, maximum: maximumPages, shared: true });
  if (!(memory.buffer instanceof SharedArrayBuffer)) throw new Error('WebAssembly memory is not shared');
}

// What "weftline doctor --rdma" tells: every RDMA device and port, which of them would be used, and why.

export interface RdmaExamination {
  readonly schema: 'weftline.doctor.rdma/1';
  /** True if there is a port that would be used. */
  readonly rdmaReady: boolean;
  /** Why there is none, and what to do. */
  readonly problem?: string;
  readonly devices: readonly RdmaDevice[];
  readonly choice?: RdmaChoice;
  /** How memory of each GPU that the CUDA driver shows is reached, and by which device. */
  readonly gpuMemory?: readonly (GpuMemoryChoice & { readonly gpu: string; readonly device: string })[];
  readonly settings: RdmaSettings;
}

/** Opens every RDMA device for a moment. Fails with WL_CONFIG for a setting with a wrong value. */
export function examineRdma(machine: MachineProbe): RdmaExamination {
  const settings = rdmaSettingsOf(machine);
  const schema = 'weftline.doctor.rdma/1';
  let devices: readonly RdmaDevice[] = [];
  try {
    devices = machine.rdmaHardware();
  } catch (error) {
    return { schema, rdmaReady: false, problem: asWeftlineError(error).message, devices, settings };
  }
  const choice = chooseRdma({ devices, gpus: gpuDevices(machine), interfaces: machine.interfaces }, settings);
  const rdmaReady = choice.rails.length > 0;
  const gpuMemory = gpuMemoryOf(machine, choice, devices);
  const problem = rdmaReady ? undefined : whyNone(machine, devices);
  return { schema, rdmaReady, ...(problem === undefined ? {} : { problem }), devices, choice, ...gpuMemory, settings };
}

function gpuMemoryOf(
  machine: MachineProbe,
  { rails }: RdmaChoice,
  devices: readonly RdmaDevice[],
): Pick<RdmaExamination, 'gpuMemory'> {
  const peermem = peermemModule(machine);
  const places = gpuDevices(machine);
  const { rdmaGpuMemory } = rdmaSettingsOf(machine);
  const gpuMemory = machine.reachedGpus().flatMap(({ gpu, facts }) => {
    const rail = railOfGpu(rails, gpu, places);
    if (rail === undefined) return [];
    const dmabufProblem = devices.find(({ name }) => name === rail.name)?.dmabufProblem;
    const place = places.find(({ address }) => address === gpu);
    const distanceProblem = whyTooFar(rail, place);
    const choice = chooseGpuMemory({ gpu: facts, dmabufProblem, peermem, distanceProblem }, rdmaGpuMemory);
    return [{ gpu, device: rail.name, ...choice }];
  });
  return rails.length === 0 ? {} : { gpuMemory };
}

function whyNone(machine: MachineProbe, devices: readonly RdmaDevice[]): string {
  if (devices.length > 0) {
    return 'no port of the RDMA devices can be used, for the reasons above: see cables, switch and "rdma link", or the flags that were given';
  }
  if (!machine.exists('/sys/class/infiniband_verbs')) {
    return 'the kernel of this machine has no RDMA device: load the driver of the network card and ib_uverbs ("modprobe ib_uverbs"), and start a container with --device=/dev/infiniband; without RDMA nothing has to be done, as hosts reach each other over TCP and UDP';
  }
  return 'there is no RDMA device, or none that libibverbs has a provider for: install it (Debian and Ubuntu: "apt-get install ibverbs-providers")';
}

function rdmaSettingsOf(machine: MachineProbe): RdmaSettings {
  const all = Object.entries(readSettings({}, machine.env));
  return Object.fromEntries(all.filter(([name]) => Object.hasOwn(rdmaSettingsTable, name))) as RdmaSettings;
}
