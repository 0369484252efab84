// Whether this process may reach memory of another one: tried out, and if not, why not.
import { readFileSync, statSync } from 'node:fs';
import { MAILBOX_MAGIC } from '../../../abi/agent-mailbox.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import { IovecList, whyCopyFailed } from '../../../native/process-memory.ts';

/**
 * The error for memory that a peer registered and that this process cannot reach; undefined if it can. `address`: of the
 * peer's mailbox in its own memory, which begins with a word that is known.
 */
export function refusalOfProcess(peer: string, pid: number, address: number): WeftlineError | undefined {
  const outcome = tryCopy(pid, address);
  if (outcome === 'permitted') return undefined;
  const details = { peer, pid };
  // The memory of a process that ends goes before its locks, by which its links see that it has ended.
  if (outcome === 'gone' || outcome === 'stranger') {
    return new WeftlineError('WL_PEER_LOST', `${peer} is gone: its process ${pid} ended`, { details });
  }
  const advice = 'Take memory from agent.allocate() there, or another backend';
  return new WeftlineError(
    'WL_UNSUPPORTED',
    `The memory that ${peer} registered cannot be reached: ${whyNot(pid, outcome)}. ${advice}`,
    { details },
  );
}

/** The same for processes that exist. If one has ended, connecting to it reports that. */
export function whyForbidden(pid: number, address: number): string | undefined {
  const outcome = tryCopy(pid, address);
  return outcome === 'forbidden' || outcome === 'missing' ? whyNot(pid, outcome) : undefined;
}

function whyNot(pid: number, outcome: 'forbidden' | 'missing' | 'fault'): string {
  if (outcome === 'fault') return `reading memory of process ${pid} failed`;
  if (outcome === 'forbidden') return `the system forbids copies between processes of one user here (${forbiddenBy()})`;
  return 'this container forbids copies between processes (process_vm_readv): its seccomp profile must allow them';
}

function tryCopy(pid: number, address: number): 'permitted' | 'stranger' | ReturnType<typeof whyCopyFailed> {
  const word = new NativeBlock(4);
  const range = new IovecList(1);
  range.set(0, { local: word.address, remote: address, bytes: 4 });
  const copied = range.copy(pid, true, 0, 1);
  if (copied !== 4) return whyCopyFailed(-copied);
  return word.words[0] === MAILBOX_MAGIC ? 'permitted' : 'stranger';
}

/** `fd`: of a memory file of the process, which others open through its /proc entry. Undefined if the process has ended. */
export function whyNotFilesOf({ pid, fd }: { readonly pid: number; readonly fd: number }): string | undefined {
  try {
    statSync(`/proc/${pid}/fd/${fd}`);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'EACCES' || code === 'EPERM') return `the system forbids to open files of process ${pid} (${code})`;
  }
  return undefined;
}

function forbiddenBy(): string {
  try {
    const scope = readFileSync('/proc/sys/kernel/yama/ptrace_scope', 'utf8').trim();
    return `kernel.yama.ptrace_scope is ${scope}, and containers need CAP_SYS_PTRACE or a seccomp profile that allows it`;
  } catch {
    return 'containers need CAP_SYS_PTRACE or a seccomp profile that allows it';
  }
}
