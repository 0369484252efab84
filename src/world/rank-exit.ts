// How a rank leaves its job: noted for its launcher if it failed, and with goodbye also if its script forgets close().
import { WeftlineError } from '../core/errors.ts';
import { printTo } from '../core/print.ts';
import type { FailureReporter } from './failure-reporter.ts';
import type { PeerWatch } from './peer-watch.ts';
import type { StoreLink } from './store.ts';

export interface Rendezvous {
  readonly link: StoreLink;
  readonly jobId: string;
  /** Of an elastic world: how often this rank has joined it before. */
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
  /** Of a rank of weftline's launcher. */
  readonly reporter: FailureReporter | undefined;
  /** How long a rank that serves the store stays for the others. */
  readonly waitMs: number;
}

/** The same rendezvous, which ends in order with the process: by then the other ranks have got what they waited for. */
export function leaveAtExit(rendezvous: Rendezvous, { rank, size, reporter, waitMs }: LeaveOptions): Rendezvous {
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
  /** Of process.exit(): nothing can be waited for. A rank that failed is lost without goodbye. */
  const exits = (exitCode: number): void => {
    const lost = exitCode === 0 ? rendezvous.closeAtExit() : undefined;
    if (lost === undefined) return;
    printTo(process.stderr, `weftline: rank ${rank} called process.exit() before world.close(): ${lost}\n`);
  };
  process.on('beforeExit', ended);
  process.on('exit', exits);
  return { ...rendezvous, close };
}
