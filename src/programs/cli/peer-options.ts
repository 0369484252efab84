// What commands with two ends on two machines share: which end this is, where the other one is, where this one listens, and the GPU
// that it may need.
import { networkInterfaces } from 'node:os';
import { type Command, Option } from 'commander';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { isLoopback, isUnspecified } from '../../meeting/route.ts';
import { readToken } from '../../settings/settings.ts';
import { integerArgument, switchArgument, option } from './argument-values.ts';
import { cudaDeviceCount } from '../../device/cuda/cuda-context.ts';

/** All addresses of this host, IPv4. */
const ALL_ADDRESSES = '0.0.0.0';
const LOOPBACK = '127.0.0.1';

/** What the options parse to. The names behind `peerIp` are those of the programs that users come from. */
export interface PeerFlags {
  readonly role?: string;
  readonly server?: boolean;
  readonly peerIp?: string;
  readonly serverIp?: string;
  readonly serverip?: string;
  readonly remoteIp?: string;
  readonly host?: string;
  readonly port: number;
}

export type BenchRole = 'server' | 'client';

/** Adds --peer-ip with its other names, --host and --port. */
export function addAddressOptions(command: Command, port: number): Command {
  return command
    .option('--peer-ip <address>', `where the other side is (default: ${LOOPBACK}); also --server-ip, --remote-ip`)
    .addOption(new Option('--server-ip <address>').hideHelp())
    .addOption(new Option('--serverip <address>').hideHelp())
    .addOption(new Option('--remote-ip <address>').hideHelp())
    .option(
      '--host <address>',
      `address of this host to listen at; by default ${LOOPBACK}, or all addresses where WEFTLINE_TOKEN is set`,
    )
    .option('--port <number>', 'TCP port of the side that listens', integerArgument(1, 65_535), port);
}

/** Adds --role server|client, and --server as transport_test has it. */
export function addBenchRoleOptions(command: Command, port: number): Command {
  command
    .addOption(option('--role <role>', 'which end this is', ['server', 'client']))
    .addOption(option('--server [bool]', '', switchArgument).preset('true').hideHelp());
  return addAddressOptions(command, port);
}

/** The role; where nothing says it, the command ends and explains what to start. */
export function benchRole(command: Command, { role, server, serverip }: PeerFlags): BenchRole {
  if (role === 'server' || role === 'client') return role;
  if (server !== undefined) return server ? 'server' : 'client';
  if (serverip !== undefined) return 'client';
  const name = `weftline bench ${command.name()}`;
  return command.error(
    `error: ${name} has two ends, and --role says which one this is. Start the server first:\n` +
      `  ${name} --role server\n` +
      `then, in another terminal, the client, which decides what is measured:\n` +
      `  ${name} --role client\n` +
      `Between two machines set the same WEFTLINE_TOKEN (openssl rand -hex 32) on both, and give the client\n` +
      `--peer-ip with the address of the server.`,
  );
}

/** The address of the other side. */
export function peerAddress({ peerIp, serverIp, serverip, remoteIp }: PeerFlags): string {
  return peerIp ?? serverIp ?? serverip ?? remoteIp ?? LOOPBACK;
}

/**
 * Where a server listens: at the address that it was given, else at all where a token keeps strangers out, else at
 * loopback, where only processes of this machine call.
 */
export function listenAddress({ host, serverIp, serverip }: PeerFlags): string {
  return host ?? serverIp ?? serverip ?? (readToken(undefined) === '' ? LOOPBACK : ALL_ADDRESSES);
}

/** What a server says of where it listens, and what a client on another machine must be given. */
export function listeningLine(host: string, port: number): string {
  if (isUnspecified(host)) {
    const own = ownAddresses();
    const reached = own.length === 0 ? '' : `; other machines reach it at --peer-ip ${own.join(' or ')}`;
    return `listening at all addresses of this host, port ${port}${reached}`;
  }
  if (isLoopback(host)) {
    const advice = readToken(undefined) === '' ? 'set WEFTLINE_TOKEN on both' : 'leave out --host';
    return `listening at ${host} port ${port}: this machine only; for others ${advice}`;
  }
  return `listening at ${host} port ${port}`;
}

/** Fails with WL_INVALID_ARGUMENT for an address that means "all of them": nobody can be called there. */
export function checkPeerAddress(peer: string): void {
  if (isUnspecified(peer)) throw invalidArgument('--peer-ip', peer, 'the address of one host');
}

/** The addresses that other machines may reach. */
function ownAddresses(): string[] {
  const all = Object.values(networkInterfaces()).flatMap((addresses) => addresses ?? []);
  return all.filter(({ family, internal }) => family === 'IPv4' && !internal).map(({ address }) => address);
}

// Commands that need a GPU say at once that this machine has none, and what to do.

/** Fails with WL_UNSUPPORTED and what to do, instead of with the name of a library that is missing. */
export function requireGpu(ordinal = 0): void {
  const count = cudaDeviceCount();
  if (ordinal < count) return;
  const why =
    count === 0
      ? 'this machine has no GPU or no driver for it ("weftline doctor" tells); use --device cpu or WEFTLINE_DEVICE=cpu'
      : `this machine has ${count === 1 ? 'GPU 0 only' : `GPUs 0 to ${count - 1}`}, not GPU ${ordinal}`;
  throw new WeftlineError('WL_UNSUPPORTED', `Cannot run on a GPU: ${why}`, { details: { ordinal, count } });
}
