// How a rank reaches the store: the launcher serves it, or rank 0 from a thread; a world of one keeps it in the process.
import { randomBytes } from 'node:crypto';
import { isIP } from 'node:net';
import { hostname } from 'node:os';
import { Deadline } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import { printTo } from '../core/print.ts';
import { type Credentials, credentialsOf, derive, tokenCredential } from '../meeting/credentials.ts';
import type { ListenTarget } from '../meeting/listener.ts';
import { isLoopback } from '../meeting/route.ts';
import type { Settings } from '../settings/settings.ts';
import type { RankEnvironment } from './environment.ts';
import { type FailureReporter, reportFailures } from './failure-log.ts';
import { PeerWatch } from './peer-watch.ts';
import { StoreClient } from './store-client.ts';
import { StoreCore } from './store-core.ts';
import { StoreHost } from './store-host.ts';
import type { StoreLink } from './store.ts';

interface MeetOptions {
  readonly settings: Settings;
  /** The job's id, should this be the rank that serves the store. */
  readonly jobId: string;
  /** Deadline of join(). */
  readonly deadline: Deadline;
  readonly signal?: AbortSignal;
}

/** How long to look who holds a port that cannot be listened on. */
const LOOK_MS = 5_000;

export async function meet(environment: RankEnvironment, options: MeetOptions): Promise<Rendezvous> {
  const { rank, size, failureLog } = environment;
  const reporter = failureLog === undefined ? undefined : reportFailures({ rank, log: failureLog });
  const rendezvous = await findStore(environment, options);
  if (size === 1) return rendezvous;
  return leaveAtExit(rendezvous, { rank, size, reporter, waitMs: options.settings.timeoutMs });
}

async function findStore(environment: RankEnvironment, options: MeetOptions): Promise<Rendezvous> {
  const { size, token, host } = environment;
  if (size === 1) return meetAlone(environment, options);
  if (token === '' && !isLoopback(host)) throw tokenMissing(host);
  const hosts = environment.rank === 0 && !environment.launcherServes;
  return hosts ? hostStore(environment, options) : joinStore(environment, options);
}

function tokenMissing(host: string): WeftlineError {
  return new WeftlineError(
    'WL_CONFIG',
    `Environment variable WEFTLINE_TOKEN is missing: ranks meet at ${host}, which other hosts can reach, so they must prove that they belong to the job. Set it to the same secret on all ranks, for example from "openssl rand -hex 32"; ranks of one host that the launcher gives the address 127.0.0.1 need none`,
    { details: { variable: 'WEFTLINE_TOKEN', host } },
  );
}

/** Secret that follows from the key that the ranks have proven to each other, and is of this job alone. */
function jobSecret(key: Uint8Array, jobId: string): string {
  return Buffer.from(derive(key, jobId, 'world secret')).toString('hex');
}

function meetAlone({ token }: RankEnvironment, { settings, jobId }: MeetOptions): Rendezvous {
  const core = new StoreCore({ size: 1, maxValueBytes: settings.storeMaxValueBytes });
  core.join(0, { pid: process.pid, host: hostname() });
  const closed = new WeftlineError('WL_CLOSED', 'This rank has closed its world');
  let open = true;
  return {
    link: {
      request: (request, parts, signal) => (open ? core.request(0, request, parts, signal) : Promise.reject(closed)),
    },
    jobId,
    secret: jobSecret(token === '' ? randomBytes(32) : tokenCredential(token).key, jobId),
    peers: new PeerWatch(),
    close: () => {
      open = false;
      core.leave(0, { how: 'closed' });
      return Promise.resolve();
    },
    closeAtExit: () => undefined,
  };
}

async function hostStore(environment: RankEnvironment, options: MeetOptions): Promise<Rendezvous> {
  const { size, token, scope } = environment;
  const { jobId, settings } = options;
  const { maxStrangers, greetingMs, timeoutMs } = settings;
  // Read once: all ranks must get the same secret.
  const credential = credentialsOf(token, scope).read();
  const credentials: Credentials = { kind: credential.kind, read: () => credential };
  const listen = listenTarget(environment.host, environment.port);
  let host: StoreHost;
  try {
    host = await StoreHost.start({
      listen,
      size,
      credential,
      jobId,
      maxValueBytes: settings.storeMaxValueBytes,
      settings: { maxStrangers, greetingMs, timeoutMs },
    });
  } catch (error) {
    // Perhaps another process is rank 0 of this very job: then its store says so, which is the better error.
    await tellTaken(environment, credentials);
    throw error;
  }
  try {
    const own = { host: listen.host ?? '127.0.0.1', port: host.port };
    const client = await connect(environment, { ...options, credentials }, own);
    return {
      link: client,
      jobId: client.jobId,
      calledAt: client.calledAt,
      secret: jobSecret(credential.key, client.jobId),
      peers: client.peers,
      close: async (waitMs, error) => {
        await client.close(error);
        await host.stop(waitMs);
      },
      closeAtExit: () => 'ranks that still use the store, which rank 0 serves, lose it',
    };
  } catch (error) {
    await host.stop(0);
    throw error;
  }
}

async function joinStore(environment: RankEnvironment, options: MeetOptions): Promise<Rendezvous> {
  const found = credentialsOf(environment.token, environment.scope);
  let used = found.read();
  // The last that was read is the one that rank 0 has accepted.
  const credentials: Credentials = { kind: found.kind, read: () => (used = found.read()) };
  const client = await connect(environment, { ...options, credentials }, environment);
  return {
    link: client,
    jobId: client.jobId,
    life: client.life,
    calledAt: client.calledAt,
    secret: jobSecret(used.key, client.jobId),
    peers: client.peers,
    close: (_waitMs, error) => client.close(error),
    closeAtExit: () => {
      client.closeAtExit();
      return undefined;
    },
  };
}

interface CallerOptions extends Pick<MeetOptions, 'deadline' | 'signal'>, Partial<Pick<MeetOptions, 'settings'>> {
  readonly credentials: Credentials;
}

function connect(
  { rank, size, launcherServes }: RankEnvironment,
  { credentials, deadline, signal, settings }: CallerOptions,
  { host, port }: { readonly host: string; readonly port: number },
): Promise<StoreClient> {
  return StoreClient.connect({
    host,
    port,
    rank,
    size,
    server: launcherServes ? 'the launcher of node 0' : 'rank 0',
    credentials,
    deadline,
    timeoutMs: deadline.timeoutMs,
    ...(settings === undefined ? {} : { silenceMs: settings.timeoutMs }),
    ...(signal === undefined ? {} : { signal }),
  });
}

/** Target that the ranks call: a loopback address as it is, otherwise all addresses of this host. */
export function listenTarget(host: string, port: number): ListenTarget {
  if (!isLoopback(host)) return { port };
  return { host: isIP(host) === 0 ? '127.0.0.1' : host, port };
}

async function tellTaken(environment: RankEnvironment, credentials: Credentials): Promise<void> {
  try {
    const client = await connect(environment, { deadline: new Deadline(LOOK_MS), credentials }, environment);
    await client.close();
  } catch (error) {
    if (error instanceof WeftlineError && error.code === 'WL_RANK_TAKEN') throw error;
  }
}

export interface Rendezvous {
  readonly link: StoreLink;
  readonly jobId: string;
  /** How often this rank has joined an elastic world before. */
  readonly life?: number | undefined;
  /** The numeric address at which this rank has called the store; none in a world of one. */
  readonly calledAt?: string;
  /** See World. */
  readonly secret: string;
  /** Hears of lost ranks. */
  readonly peers: PeerWatch;
  /** Says goodbye, with the error that ended this rank if any; rank 0 then serves the others for up to `waitMs`. */
  close(waitMs: number, error?: unknown): Promise<void>;
  /** Says goodbye while the process ends; returns what others lose by that, if anything. */
  closeAtExit(): string | undefined;
}

interface LeaveOptions {
  readonly rank: number;
  readonly size: number;
  /** Reporter of a rank of weftline's launcher. */
  readonly reporter: FailureReporter | undefined;
  /** How long a rank that serves the store stays for the others. */
  readonly waitMs: number;
}

/** The same rendezvous, which ends in order with the process: by then the other ranks have got what they waited for. */
function leaveAtExit(rendezvous: Rendezvous, { rank, size, reporter, waitMs }: LeaveOptions): Rendezvous {
  const peerLost = rendezvous.peers.watch(Array.from({ length: size }, (_, other) => other));
  peerLost.addEventListener('abort', () => reporter?.peerLost(peerLost.reason));
  const close = (closeMs: number, error?: unknown): Promise<void> => {
    process.off('beforeExit', ended);
    process.off('exit', exits);
    // ORDER: the others may fail, and note it, as soon as they hear of the error.
    if (error !== undefined) reporter?.failed(error);
    return rendezvous.close(closeMs, error);
  };
  const ended = (): void => {
    const { exitCode = 0 } = process;
    const failed = exitCode === 0 ? undefined : new WeftlineError('WL_LAUNCH', `the script set exit code ${exitCode}`);
    void close(failed === undefined ? waitMs : 0, failed);
  };
  /** Hears of process.exit(): nothing can be waited for. A rank that failed is lost without goodbye. */
  const exits = (exitCode: number): void => {
    const lost = exitCode === 0 ? rendezvous.closeAtExit() : undefined;
    if (lost === undefined) return;
    printTo(process.stderr, `weftline: rank ${rank} called process.exit() before world.close(): ${lost}\n`);
  };
  process.on('beforeExit', ended);
  process.on('exit', exits);
  return { ...rendezvous, close };
}
