// The address at which peers reach an agent: given, or in a job over several hosts that of the route to its master;
// whether a peer's leads to it.
import { createSocket, type Socket } from 'node:dgram';
import { isIP, isIPv6 } from 'node:net';
import { networkInterfaces } from 'node:os';
import { z } from '#zod';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { quote } from '../core/quote.ts';
import type { CredentialKind } from '../meeting/credentials.ts';
import { addressTowards, isLoopback, isUnspecified, reachedAddress, requireToken } from '../meeting/route.ts';
import { readToken } from '../settings/settings.ts';
import { readEnvironment } from '../world/environment.ts';

const DEFAULT_HOST = '127.0.0.1';
const MAX_EXAMPLES = 3;

/**
 * The address that was given, or the default. Fails with WL_INVALID_ARGUMENT unless `given` is a numeric address of this
 * host, WL_CONFIG for an address that others can reach without a token and for a master of the job that cannot be reached.
 */
export async function addressOfAgent(given: string | undefined, kind: CredentialKind): Promise<string> {
  if (given === undefined) return kind === 'token' ? await addressInWorld() : DEFAULT_HOST;
  if (typeof given !== 'string' || isIP(given) === 0) throw notOfThisHost(given);
  requireToken(given, kind, `an agent at ${given}`);
  if (isUnspecified(given)) throw notOfThisHost(given);
  const socket = createSocket({ type: isIPv6(given) ? 'udp6' : 'udp4' });
  try {
    await listening(socket, given);
  } catch {
    throw notOfThisHost(given);
  } finally {
    socket.close();
  }
  return given;
}

/**
 * 127.0.0.1 without a job, or if its master is on this host alone; that at which other hosts reach the master if it is on
 * this one. Fails if nothing leads to the master.
 */
async function addressInWorld(): Promise<string> {
  const { size, host } = jobOfProcess();
  if (size === 1 || isLoopback(host)) return DEFAULT_HOST;
  try {
    const towards = await addressTowards(host);
    // The host's own name may be a loopback address, also where other hosts have ranks.
    return isLoopback(towards) ? (reachedAddress() ?? towards) : towards;
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new WeftlineError(
      'WL_CONFIG',
      `Cannot find the address at which peers reach this host: the master of the job, ${quote(host)}, leads nowhere (${reason}). Correct the master's address, or give the option host`,
      { details: { master: host }, cause },
    );
  }
}

/** Wrong variables of a job mean that there is no job for an agent; join() reports them. */
function jobOfProcess(): { readonly size: number; readonly host: string } {
  try {
    return readEnvironment();
  } catch {
    return { size: 1, host: DEFAULT_HOST };
  }
}

function listening(socket: Socket, address: string): Promise<void> {
  return new Promise((resolve, reject) => {
    socket.once('error', reject);
    socket.once('listening', resolve);
    socket.bind({ address, port: 0 });
  });
}

/** Names some addresses of this host, those that others reach first. */
function notOfThisHost(host: unknown): WeftlineError {
  const all = Object.values(networkInterfaces()).flatMap((entries) => entries ?? []);
  const outside = all.filter(({ internal, scopeid }) => !internal && !scopeid).map(({ address }) => address);
  const examples = [...outside, DEFAULT_HOST].slice(0, MAX_EXAMPLES).join(', ');
  return invalidArgument('host', host, `a numeric address of this host that peers reach, such as ${examples}`);
}

const MAX_NETWORK_LENGTH = 200;

/** What backends publish that listen at a TCP port: where, and `networkIdentity()` there. */
export const publishedAddress = {
  host: z.string().refine((host) => isIP(host) !== 0),
  port: z.number().int().min(1).max(65_535),
  network: z.string().max(MAX_NETWORK_LENGTH),
};

/** What a backend published as JSON; undefined if it is not understood. */
export function readPublished<T>(schema: z.ZodType<T>, info: Uint8Array): T | undefined {
  try {
    return schema.parse(JSON.parse(Buffer.from(info).toString('utf8')));
  } catch {
    return undefined;
  }
}

interface AddressReader {
  /** `networkIdentity()` here. */
  readonly network: string;
  /** The option of the agent. */
  readonly token: string;
}

/** Undefined if it may be called there. */
export function whyNotAddress(
  { host, network }: { readonly host: string; readonly network: string },
  reader: AddressReader,
): string | undefined {
  if (!isLoopback(host)) {
    if (readToken(reader.token) !== '') return undefined;
    return `the peer is at ${host}, on another host, for which both need a token (WEFTLINE_TOKEN, or the option token)`;
  }
  if (network === reader.network) return undefined;
  return `the peer is on another machine but published ${host}, which only its own machine reaches: name the master of the job (--master, WEFTLINE_MASTER_ADDR, MASTER_ADDR) by an address at which others reach its host, or create the peer's agent with the option host`;
}
