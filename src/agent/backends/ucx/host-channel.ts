// A channel as the UCX thread sees it: every put and signal is a job, delivered in order; after one fails, nothing follows.
import type { WeftlineError } from '../../../core/errors.ts';
import type { Command } from '../../../transport/host/shared-requests.ts';
import { ucxCommands } from './host-calls.ts';
import type { HostLink } from './host-link.ts';
import { Job } from './job.ts';

export const channelWords = { delivered: 0, failed: 1 } as const;

export interface HostChannelOptions {
  readonly channel: number;
  readonly link: HostLink;
  readonly words: SharedArrayBuffer;
  /** All operations of the channel are one operation for the peer. */
  readonly operation: number;
}

export interface HostChannel {
  readonly channel: number;
  readonly link: HostLink;
  /** The job of a command; undefined if the channel has failed. */
  take(command: Command): Job | undefined;
  /** Takes note of a job's end; the error if it is the channel's first. */
  ended(job: Job): WeftlineError | undefined;
  close(error: WeftlineError): void;
}

export function openHostChannel({ channel, link, words, operation }: HostChannelOptions): HostChannel {
  const shared = new Int32Array(words);
  const free: Record<'write' | 'signal', Job[]> = { write: [], signal: [] };
  const pending = new Set<Job>();
  let failure: WeftlineError | undefined;
  return {
    channel,
    link,
    take(command) {
      if (failure !== undefined) return undefined;
      const kind = command.kind === ucxCommands.put ? 'write' : 'signal';
      const job = free[kind].pop() ?? emptyJob(kind);
      job.localAddress[0] = command.offset;
      job.remoteRegion[0] = command.remoteRegion;
      job.remoteKey[0] = command.remoteKey;
      job.remoteOffset[0] = command.remoteOffset;
      job.bytes[0] = command.bytes;
      job.start(operation, 0, 0);
      pending.add(job);
      return job;
    },
    ended(job) {
      pending.delete(job);
      const isFirst = job.failure !== undefined && failure === undefined;
      failure ??= job.failure;
      if (failure === undefined) Atomics.add(shared, channelWords.delivered, 1);
      else Atomics.store(shared, channelWords.failed, 1);
      free[job.kind === 'signal' ? 'signal' : 'write'].push(job);
      return isFirst ? failure : undefined;
    },
    close(error) {
      failure ??= error;
      for (const job of pending) job.stop(error);
    },
  };
}

function emptyJob(kind: 'write' | 'signal'): Job {
  return new Job(kind, [{ localAddress: 0, remoteRegion: 0, remoteKey: 0, remoteOffset: 0, bytes: 0 }]);
}
