// What a process reads of files and of its environment: safetensors headers, launchers' variables, node lists, settings, etcd.
import { readSettings, type Settings } from 'weftline';
import { Deadline } from '#lib/core/deadline.js';
import { settingsTable } from '#lib/settings/settings.js';
import { layOutHeader, parseHeader } from '#lib/programs/moe/safetensors-header.js';
import { EtcdClient } from '#lib/agent/exchange/etcd-store.js';
import { listRails } from '#lib/rails/rail-list.js';
import { expandNodeList, readEnvironment } from '#lib/world/environment.js';
import { type Decoder, Fault } from '../decoder.ts';

const bytesOf = (text: string): Uint8Array => new Uint8Array(Buffer.from(text));
const json = (value: unknown): Uint8Array => bytesOf(JSON.stringify(value));

const DATA_BYTES = 96;

const safetensors: Decoder = {
  name: 'safetensors-headers',
  codes: ['WL_FILE_FORMAT'],
  isJson: true,
  weight: 0.5,
  seeds: () => [
    layOutHeader({ a: { dtype: 'F32', shape: [2, 8] }, b: { dtype: 'BF16', shape: [16] } }).bytes.slice(8),
    layOutHeader({ x: { dtype: 'I64', shape: [12] } }, { note: 'text', other: '' }).bytes.slice(8),
    layOutHeader({ 'ü\u0000"': { dtype: 'U8', shape: [0, 3] }, z: { dtype: 'U8', shape: [96] } }).bytes.slice(8),
    bytesOf(`{"x":${'['.repeat(3000)}${']'.repeat(3000)}}`),
  ],
  run: (input) => {
    const { tensors } = parseHeader(input, DATA_BYTES, 'FILE');
    for (const { name, start, bytes } of tensors.values()) {
      const isInside = Number.isSafeInteger(start + bytes) && start >= 8 + input.length;
      if (!isInside || start + bytes > 8 + input.length + DATA_BYTES)
        throw new Fault(`tensor ${name} lies outside of the file`);
    }
  },
};

const environments: readonly Readonly<Record<string, string>>[] = [
  {
    WEFTLINE_RANK: '1',
    WEFTLINE_WORLD_SIZE: '4',
    WEFTLINE_LOCAL_RANK: '1',
    WEFTLINE_LOCAL_WORLD_SIZE: '2',
    WEFTLINE_MASTER_ADDR: 'h',
    WEFTLINE_MASTER_PORT: '29500',
    WEFTLINE_JOB_ID: 'abc',
    WEFTLINE_TOKEN: 't',
    WEFTLINE_LAUNCHER_PID: '17',
    WEFTLINE_STORE: 'node0:29500',
    WEFTLINE_FAILURE_LOG: '/dev/shm/x',
  },
  {
    RANK: '0',
    WORLD_SIZE: '2',
    LOCAL_RANK: '0',
    LOCAL_WORLD_SIZE: '2',
    MASTER_ADDR: '10.0.0.1',
    MASTER_PORT: '29500',
    TORCHELASTIC_USE_AGENT_STORE: 'True',
    TORCHELASTIC_RUN_ID: 'x',
  },
  {
    SLURM_PROCID: '5',
    SLURM_STEP_ID: '0',
    SLURM_STEP_NUM_TASKS: '8',
    SLURM_LOCALID: '1',
    SLURM_STEP_NUM_NODES: '2',
    SLURM_STEP_NODELIST: 'node[01-03,7],login',
    SLURM_JOB_ID: '77',
  },
  {
    OMPI_COMM_WORLD_RANK: '2',
    OMPI_COMM_WORLD_SIZE: '4',
    OMPI_COMM_WORLD_LOCAL_RANK: '0',
    OMPI_COMM_WORLD_LOCAL_SIZE: '2',
    MASTER_ADDR: 'h',
    PMIX_NAMESPACE: 'n',
  },
];

/** Variables are texts: whatever else a changed tree holds becomes one. */
function asEnvironment(input: Uint8Array): Record<string, string> | undefined {
  let value: unknown;
  try {
    value = JSON.parse(Buffer.from(input).toString('utf8'));
  } catch {
    return undefined;
  }
  if (typeof value !== 'object' || value === null) return undefined;
  return Object.fromEntries(
    Object.entries(value).map(([name, text]) => [name, typeof text === 'string' ? text : JSON.stringify(text)]),
  );
}

const launchers: Decoder = {
  name: 'launcher-variables',
  codes: ['WL_CONFIG'],
  isJson: true,
  seeds: () => environments.map(json),
  run: (input) => {
    const variables = asEnvironment(input);
    if (variables === undefined) return;
    const { rank, size, port, jobPrefix } = readEnvironment(variables);
    const isSound = Number.isInteger(rank) && rank >= 0 && rank < size && port >= 0 && port < 65_536;
    if (!isSound || !/^[a-z0-9]{1,20}$/.test(jobPrefix))
      throw new Fault(`rank ${rank} of ${size}, port ${port}, job ${jobPrefix}`);
  },
};

const nodeLists: Decoder = {
  name: 'node-lists',
  codes: ['WL_CONFIG'],
  memoryBytes: 2 ** 26,
  weight: 0.3,
  seeds: () =>
    ['node[01-03,7],login', 'a', 'rack[1-2]n[3-4]', 'n[1-9][1-9]', 'x[00001-00300]', '[1-2],[3]', 'a,b,c[1-3'].map(
      bytesOf,
    ),
  run: (input) => {
    const names = expandNodeList('LIST', Buffer.from(input).toString('utf8'));
    if (names.length > 65_536) throw new Fault(`${names.length} nodes`);
  },
};

const interfaces = [
  { name: 'lo', addresses: ['127.0.0.1', '::1'] },
  { name: 'eth0', addresses: ['10.0.0.1', 'fd00::1'] },
  { name: 'eth1', addresses: ['169.254.3.4', 'fd01::1'] },
  { name: 'eth10', addresses: ['10.0.2.1'] },
  { name: 'docker0', addresses: ['172.17.0.1'] },
];

const railLists: Decoder = {
  name: 'rail-lists',
  codes: ['WL_CONFIG'],
  weight: 0.3,
  seeds: () =>
    ['eth', 'eth0,10.0.2.1', '=eth1, 127.0.0.5', '^docker,=eth1', '^=eth0', 'fd00:0::1,=lo', 'eth10,^lo', '^', ','].map(
      bytesOf,
    ),
  run: (input) => {
    const rails = listRails(Buffer.from(input).toString('utf8'), interfaces);
    const isKnown = rails.every(({ name }) => interfaces.some((one) => one.name === name));
    if (!isKnown || new Set(rails.map(({ address }) => address)).size !== rails.length)
      throw new Fault(`rails ${JSON.stringify(rails)}`);
  },
};

const names = Object.entries(settingsTable);

const settings: Decoder = {
  name: 'settings',
  // From the environment, and from a program.
  codes: ['WL_CONFIG', 'WL_INVALID_ARGUMENT'],
  isJson: true,
  weight: 0.5,
  seeds: () => {
    const texts = names.map(([, setting]) => [setting.env, String(setting.default)] as const);
    const some = Math.ceil(texts.length / 3);
    return [0, 1, 2].map((part) => json(Object.fromEntries(texts.slice(part * some, (part + 1) * some))));
  },
  run: (input) => {
    const variables = asEnvironment(input);
    if (variables === undefined) return;
    const read = readSettings({}, variables);
    for (const [name, setting] of names) {
      const value = read[name as keyof Settings];
      if (typeof value !== typeof setting.default) throw new Fault(`${name} became ${String(value)}`);
      if (setting.kind === 'number' && !((value as number) >= setting.min && (value as number) <= setting.max)) {
        throw new Fault(`${name} became ${String(value)}`);
      }
    }
    // The same words given by a program.
    void readSettings(JSON.parse(Buffer.from(input).toString('utf8')) as Partial<Settings>, {});
  },
};

const etcdAnswers = [
  { kvs: [{ key: 'YQ==', value: 'YWI=' }], count: '1' },
  { header: { revision: '3' } },
  { ID: '7587', TTL: '120' },
  { result: { TTL: '60', ID: '7' } },
];

/** Every answer is given to every question. */
const etcd: Decoder = {
  name: 'etcd-answers',
  codes: ['WL_PROTOCOL', 'WL_PEER_LOST'],
  isJson: true,
  weight: 0.2,
  seeds: () => etcdAnswers.map(json),
  run: async (input) => {
    const { fetch } = globalThis;
    globalThis.fetch = () =>
      Promise.resolve(new Response(input.slice(), { status: input.length % 7 === 0 ? 500 : 200 }));
    try {
      const client = new EtcdClient('http://127.0.0.1:2379');
      const wait = { deadline: new Deadline(1000) };
      const calls = [
        () => client.get('k', wait),
        () => client.grant(60, wait),
        () => client.keepAlive('7', wait),
        () => client.delete('k', wait),
      ];
      await (calls[input.length % calls.length] as () => Promise<unknown>)();
    } finally {
      globalThis.fetch = fetch;
    }
  },
};

export const textDecoders: readonly Decoder[] = [safetensors, launchers, nodeLists, railLists, settings, etcd];
