// Every knob of weftline, once: name, environment variable, flag, unit, range, default and what it does.
import { checkOptions } from '../core/check-options.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { setLogLevels } from '../core/log.ts';
import { quote } from '../core/quote.ts';
import { rdmaSettingsTable, type Setting, transportSettingsTable } from './transport-settings-table.ts';

interface ValueOf {
  number: number;
  boolean: boolean;
  text: string;
}

/** Every setting by its name: its variable, flag, range, default and a sentence on what it does. */
export const settingsTable = {
  device: {
    kind: 'choice',
    env: 'WEFTLINE_DEVICE',
    flag: '--device <kind>',
    choices: ['auto', 'cpu', 'cuda'],
    default: 'auto',
    sentence: 'Device of the ranks; auto is cuda if every rank finds a GPU of its own, else cpu.',
  },
  hosts: {
    kind: 'text',
    env: 'WEFTLINE_HOSTS',
    flag: '--hosts <hosts>',
    default: '1',
    sentence:
      'For trials: ranks of one machine behave as if they lived on so many hosts, without shared memory, CUDA IPC or the local backend between them; 2 splits them evenly, 3+1 says how many each host has.',
  },
  aggregators: {
    kind: 'text',
    env: 'WEFTLINE_AGGREGATORS',
    flag: '--aggregator-ranks <list>',
    default: '',
    sentence:
      'World ranks that only add up what sparse all-reduces send them, such as 4,5; weftline run --aggregators sets it.',
  },
  timeoutMs: {
    kind: 'number',
    env: 'WEFTLINE_TIMEOUT_MS',
    flag: '--timeout <ms>',
    unit: 'ms',
    min: 1,
    max: 86_400_000,
    default: 60_000,
    sentence: 'How long any wait for another rank may last before it fails with WL_TIMEOUT.',
  },
  log: {
    kind: 'text',
    env: 'WEFTLINE_LOG',
    flag: '--log <levels>',
    default: '',
    sentence:
      'Lines to stderr about what weftline does: debug, info, warn or off, for all parts or for some (agent:debug,transport:info; parts are agent, device, device-api, transport, world); if empty, none.',
  },
  trace: {
    kind: 'text',
    env: 'WEFTLINE_TRACE',
    flag: '--trace <file>',
    default: '',
    sentence:
      'File for a trace of where time goes: each process leaves FILE.HOST.PID.part with the last 65,536 records of each thread and 262,144 of each GPU, also if it is killed; commands that start the processes make FILE of them, "weftline trace FILE" does it elsewhere. If empty, nothing is traced.',
  },
  metrics: {
    kind: 'text',
    env: 'WEFTLINE_METRICS',
    flag: '--metrics <host:port>',
    default: '',
    sentence:
      'Where metrics are served for Prometheus, such as 127.0.0.1:9400: the first rank of a machine serves there, each further one on the next port; on collects them for "weftline stats" without a port. If empty, only counters are kept.',
  },
  spinUs: {
    kind: 'number',
    env: 'WEFTLINE_SPIN_US',
    flag: '--spin <us>',
    unit: 'µs',
    min: 0,
    max: 1_000_000,
    default: 500,
    sentence:
      'Maximum time that the ranks of an EpBuffer, an EPAll2AllLayer or another object with a window poll for each other before they sleep; between looks they lend their processor to other threads (sched_yield). They poll less after waits that took longer, and while other threads compute on their processor.',
  },
  agentSpinUs: {
    kind: 'number',
    env: 'WEFTLINE_AGENT_SPIN_US',
    flag: '--agent-spin <us>',
    unit: 'µs',
    min: 0,
    max: 1_000_000,
    default: 200,
    sentence:
      'Maximum time that a blocking wait of an agent polls before it sleeps, if the agent has peers on its host or over RDMA. The wait polls less after waits that took longer, and more after short ones. Without such peers it polls for at most 20 µs; asynchronous waits never poll.',
  },
  collectiveSpinUs: {
    kind: 'number',
    env: 'WEFTLINE_COLLECTIVE_SPIN_US',
    flag: '--collective-spin <us>',
    unit: 'µs',
    min: 0,
    max: 1_000_000,
    default: 500,
    sentence:
      'How long a call of a Communicator or an EpLowLatency polls without progress before it sleeps; between looks it lends its processor to other threads (sched_yield).',
  },
  collectiveTable: {
    kind: 'text',
    env: 'WEFTLINE_COLLECTIVE_TABLE',
    flag: '--collective-table <file>',
    default: '',
    sentence:
      'A file of measured algorithms by size, for Communicator; weftline bench collectives --tune writes it. Without it, or for other numbers of ranks and hosts, those built in are used.',
  },
  reserveSharedMemory: {
    kind: 'boolean',
    env: 'WEFTLINE_RESERVE_SHM',
    flag: '--no-reserve-shm',
    default: true,
    sentence:
      'Reserve the pages of every window at creation, so that a full /dev/shm is an error then rather than a crash later.',
  },
  addressSpaceMiB: {
    kind: 'number',
    env: 'WEFTLINE_ADDRESS_SPACE_MIB',
    flag: '--address-space <MiB>',
    unit: 'MiB',
    min: 16,
    max: 4096,
    default: 4096,
    sentence: 'Maximum memory that a CPU rank may address: its tensors and the windows of all ranks of its host.',
  },
  graceMs: {
    kind: 'number',
    env: 'WEFTLINE_GRACE_MS',
    flag: '--grace <ms>',
    unit: 'ms',
    min: 0,
    max: 600_000,
    default: 1_000,
    sentence:
      'After one rank ended with an error, how long the launcher lets the others report their own before it stops them.',
  },
  stopMs: {
    kind: 'number',
    env: 'WEFTLINE_STOP_MS',
    flag: '--stop <ms>',
    unit: 'ms',
    min: 0,
    max: 600_000,
    default: 10_000,
    sentence:
      'How long ranks may take to end after the signal that stops them, on all nodes; then the launcher kills those that are left. A second signal to the launcher kills them at once.',
  },
  storeMaxValueBytes: {
    kind: 'number',
    env: 'WEFTLINE_STORE_MAX_VALUE',
    flag: '--store-max-value <bytes>',
    unit: 'bytes',
    min: 1024,
    max: 1_073_741_824,
    default: 16_777_216,
    sentence: 'Largest value that the rendezvous store accepts.',
  },
  notificationBytes: {
    kind: 'number',
    env: 'WEFTLINE_NOTIFICATION_BYTES',
    flag: '--notification-bytes <bytes>',
    unit: 'bytes',
    min: 1,
    max: 1_073_741_824,
    default: 16_777_216,
    sentence:
      'Maximum unread notification bytes buffered per peer, counting 64 bytes of overhead per notification; beyond that, posts of the peer that carry a message fail with WL_BUSY.',
  },
  maxStrangers: {
    kind: 'number',
    env: 'WEFTLINE_MAX_STRANGERS',
    flag: '--max-strangers <n>',
    unit: 'connections',
    min: 1,
    max: 65_536,
    default: 1024,
    sentence:
      "Maximum connections of callers that have not authenticated yet, over all listeners of a thread, and at most a quarter of the process's limit of open files; when more callers come, the oldest are dropped.",
  },
  greetingMs: {
    kind: 'number',
    env: 'WEFTLINE_GREETING_MS',
    flag: '--greeting <ms>',
    unit: 'ms',
    min: 1,
    max: 600_000,
    default: 10_000,
    sentence: 'How long a caller may take to authenticate before it is dropped.',
  },
  localSenders: {
    kind: 'number',
    env: 'WEFTLINE_LOCAL_SENDERS',
    flag: '--local-senders <count>',
    unit: 'agents',
    min: 1,
    max: 32_768,
    default: 1024,
    sentence:
      'Maximum agents of the same host that are linked to one agent by the local backend at a time; further agents use another backend.',
  },
  nvrtcPath: {
    kind: 'text',
    env: 'WEFTLINE_NVRTC',
    flag: '--nvrtc <path>',
    default: '',
    sentence:
      'Path of libnvrtc.so, which compiles GPU kernels, or of its folder; if empty, CUDA_HOME, toolkits and Python packages are searched.',
  },
  expertProduct: {
    kind: 'choice',
    env: 'WEFTLINE_EXPERT_PRODUCT',
    flag: '--expert-product <kind>',
    choices: ['auto', 'cublas', 'kernel'],
    default: 'auto',
    sentence:
      "Matrix product of experts on GPUs; auto: weftline's kernel for small batches, cuBLAS (if found) for large ones.",
  },
  cublasPath: {
    kind: 'text',
    env: 'WEFTLINE_CUBLAS',
    flag: '--cublas <path>',
    default: '',
    sentence: 'Path of libcublas.so or of its folder; if empty, the places of NVRTC are searched.',
  },
  cacheFolder: {
    kind: 'text',
    env: 'WEFTLINE_CACHE',
    flag: '--cache <folder>',
    default: '',
    sentence:
      'Folder in which compiled GPU kernels are cached; if empty, $XDG_CACHE_HOME/weftline or ~/.cache/weftline.',
  },
  aotFolder: {
    kind: 'text',
    env: 'WEFTLINE_AOT_FOLDER',
    flag: '--aot-folder <folder>',
    default: '',
    sentence: 'Folder that "weftline compile" filled; its GPU kernels are used before any is compiled.',
  },
  useAot: {
    kind: 'boolean',
    env: 'WEFTLINE_USE_AOT',
    flag: '--use-aot',
    default: false,
    sentence: 'Run only GPU kernels of the AOT folder; never compile one.',
  },
  unpack: {
    kind: 'choice',
    env: 'WEFTLINE_UNPACK',
    flag: '--unpack <mode>',
    choices: ['kernel', 'd2d'],
    default: 'kernel',
    sentence:
      'How the server of "weftline bench unpack" moves received pages to their places: by the unpack kernel, or by copies one by one.',
  },
  proxySpinUs: {
    kind: 'number',
    env: 'WEFTLINE_PROXY_SPIN_US',
    flag: '--proxy-spin <us>',
    unit: 'µs',
    min: 0,
    max: 60_000_000,
    default: 5_000,
    sentence:
      "How long the thread that serves a device's command queues polls after the last command; then it looks once per millisecond.",
  },
  stagingPieceBytes: {
    kind: 'number',
    env: 'WEFTLINE_STAGING_PIECE',
    flag: '--staging-piece <bytes>',
    unit: 'bytes',
    min: 65_536,
    max: 16_777_216,
    default: 1_048_576,
    sentence:
      'Maximum size of the pieces in which memory of GPUs travels between hosts, through pinned memory of the host.',
  },
  stagingPieces: {
    kind: 'number',
    env: 'WEFTLINE_STAGING_PIECES',
    flag: '--staging-pieces <count>',
    unit: 'pieces',
    min: 0,
    max: 64,
    default: 0,
    sentence:
      'How many such pieces may be under way per peer and direction; each takes its size in pinned memory on both sides. 0: 4 for each engine of the transport, 8 at least.',
  },
  ...rdmaSettingsTable,
  ...transportSettingsTable,
} as const satisfies Record<string, Setting>;

export type SettingName = keyof typeof settingsTable;

type SettingValue<S extends Setting> = S extends { readonly kind: 'choice' }
  ? S['choices'][number]
  : ValueOf[Exclude<S['kind'], 'choice'>];

/** The value of every setting, as readSettings() returns them. */
export type Settings = {
  readonly [Name in SettingName]: SettingValue<(typeof settingsTable)[Name]>;
};

/**
 * Reads all settings: an override wins over the environment, which wins over the default. What `log` says holds for the
 * thread from then on. Fails with WL_CONFIG, and with WL_INVALID_ARGUMENT for an override of a setting that does not exist.
 * @param overrides Values by name; they win.
 * @param environment The variables; process.env by default.
 */
export function readSettings(
  overrides: Partial<Settings> = {},
  environment: Readonly<Record<string, string | undefined>> = process.env,
): Settings {
  checkOptions(overrides, settingsTable, 'settings');
  const result: Record<string, number | boolean | string> = {};
  for (const [name, setting] of Object.entries(settingsTable)) {
    const override = overrides[name as SettingName];
    const text = environment[setting.env];
    if (override !== undefined) result[name] = check(setting, name, override);
    else if (text !== undefined && text !== '') result[name] = check(setting, setting.env, parse(setting, text));
    else result[name] = setting.default;
  }
  const settings = Object.freeze(result) as Settings;
  setLogLevels(settings.log);
  return settings;
}

/** Counts and sizes are whole: they end up in layouts that others read. */
const fractionalUnits: ReadonlySet<string> = new Set(['ms', 'µs', 'Gbps']);

function parse(setting: Setting, text: string): unknown {
  if (setting.kind === 'text') return text;
  if (setting.kind === 'choice') return text.trim();
  if (setting.kind === 'number') return /^[0-9]+(\.[0-9]+)?$/.test(text.trim()) ? Number(text) : text;
  const word = text.trim().toLowerCase();
  if (['1', 'true', 'yes', 'on'].includes(word)) return true;
  if (['0', 'false', 'no', 'off'].includes(word)) return false;
  return text;
}

function check(setting: Setting, source: string, value: unknown): number | boolean | string {
  if (setting.kind === 'text') {
    if (typeof value !== 'string') throw wrong(source, value, 'a string');
    const { pattern } = setting;
    if (value === '' || pattern === undefined || pattern.of.test(value)) return value;
    throw wrong(source, value, pattern.expected);
  }
  if (setting.kind === 'choice') {
    if (typeof value === 'string' && setting.choices.includes(value)) return value;
    throw wrong(source, value, setting.choices.join(', '));
  }
  if (setting.kind === 'boolean') {
    if (typeof value === 'boolean') return value;
    throw wrong(source, value, '1, 0, true, false, yes, no, on or off');
  }
  return checkNumber(setting, source, value);
}

function checkNumber(
  { unit, min, max, leastButZero: least = min }: Extract<Setting, { kind: 'number' }>,
  source: string,
  value: unknown,
): number {
  const mayBeFraction = fractionalUnits.has(unit);
  const isInRange = typeof value === 'number' && value >= min && value <= max && (value === 0 || value >= least);
  if (isInRange && (mayBeFraction || Number.isInteger(value))) return value;
  const kind = mayBeFraction ? 'a number' : 'a whole number';
  throw wrong(source, value, `${least > min ? '0, or ' : ''}${kind} of ${unit} from ${least} to ${max}`);
}

function wrong(source: string, value: unknown, expected: string): WeftlineError {
  return new WeftlineError('WL_CONFIG', `Invalid setting ${source}: expected ${expected}, got ${quote(value)}`, {
    details: { setting: source, value, expected },
  });
}

/** The option, else WEFTLINE_TOKEN; an empty string means that there is none. */
export function readToken(
  option: string | undefined,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): string {
  if (option !== undefined && typeof option !== 'string') {
    throw invalidArgument('token', typeof option, 'a string, best of 32 random bytes in hexadecimal digits');
  }
  if (option !== undefined && option !== '') return option;
  return environment['WEFTLINE_TOKEN']?.trim() ?? '';
}
