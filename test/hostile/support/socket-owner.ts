// Creates what its argument names and prints, as JSON, which sockets the process then has and whether it loaded UCX.
import { CpuDevice } from 'weftline';
import { Agent, Endpoint, MetadataListener } from 'weftline/agent';
import { DeviceHost } from 'weftline/device-api';
import { EpBuffer } from 'weftline/ep';
import { Transport } from 'weftline/transport';
import { join } from 'weftline/world';
import { loadedLibraries, reachableSockets } from './sockets.js';

const token = 'secret';
const host = '127.0.0.1';
const open: AsyncDisposable[] = [];

function keep<T extends AsyncDisposable>(made: T): T {
  open.push(made);
  return made;
}

const creations = {
  agent: async () => keep(await Agent.create('a', { token })),
  endpoint: async () => keep(await Endpoint.create({ token })),
  transport: async () => keep(await Transport.create({ token })),
  'transport that listens': async () => {
    await keep(await Transport.create({ token })).listen({ host, port: 0 });
  },
  'metadata listener': async () =>
    keep(await MetadataListener.open(keep(await Agent.create('a', { token, backends: ['local'] })), { host, port: 0 })),
  world: async () => keep(await join()),
  'device host': async () =>
    keep(await DeviceHost.create({ name: 'a', token, device: keep(await CpuDevice.create()) })),
  'EP buffer': async () => {
    const config = { maxTokensPerRank: 16, hidden: 64, numExperts: 8, maxTopk: 2 };
    keep(await EpBuffer.create(keep(await join()), keep(await CpuDevice.create()), config));
  },
} as const;
export type Creation = keyof typeof creations;

await (creations satisfies Readonly<Record<string, () => Promise<unknown>>>)[process.argv[2] as Creation]();
const hasUcx = loadedLibraries().some((name) => /^lib(ucp|ucs|uct)/.test(name));
process.stdout.write(`${JSON.stringify({ sockets: reachableSockets(), hasUcx })}\n`);
for (const made of open.toReversed()) await made[Symbol.asyncDispose]();
