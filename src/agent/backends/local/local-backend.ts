// Transfers between agents of one host: one copy from memory to memory, by the caller's thread; of large ones, by two.
import { readFileSync, statSync } from 'node:fs';
import { BOOT_ID_BYTES, isOfProcess, LOCAL_INFO_VERSION, localConnectionInfo, LocalRegion } from './local-region.ts';
import { MAILBOX_MAGIC } from './mailbox-layout.ts';
import { Block } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { NativeBlock } from '../../../native/library.ts';
import { IovecList, whyCopyFailed } from '../../../native/process-memory.ts';
import { WatchThread } from '../../../threads/watch-thread.ts';
import { bootIdentity } from '../../../world/host-identity.ts';
import type {
  AgentMemory,
  Backend,
  BackendContext,
  BackendLink,
  BackendPeer,
  BackendRegion,
  ConnectOptions,
  CreateBackend,
  MemoryKind,
  RemoteRegionInfo,
} from '../../backend.ts';
import { CopyThread } from './copy-thread.ts';
import { LocalLink } from './local-link.ts';
import { Mailbox } from './mailbox.ts';
import { PeerMailbox } from './peer-mailbox.ts';

export const createBackend: CreateBackend<'local'> = (context) =>
  Promise.resolve().then(() => new LocalBackend(context));

/** How much is copied between two looks at everything else: a millisecond or two. Smaller steps make long copies slower. */
const TURN_BYTES = 8 << 20;
/** How often to check whether peers still live. */
const PEER_CHECK_MS = 50;
/** A look at the clock costs more than an empty poll. */
const POLLS_PER_CLOCK = 256;
/** The longest sleep while the thread on the doorbell starts. */
const SHORT_SLEEP_MS = 1;

class LocalBackend implements Backend<'local'> {
  readonly name = 'local';
  readonly connectionInfo: Uint8Array;
  readonly #context: BackendContext;
  readonly #mailbox: Mailbox;
  readonly #own: Place;
  readonly #links = new Set<LocalLink>();
  /** Ends of links that are being closed: until then GPUs may still touch memory. */
  readonly #leaving = new Set<Promise<void>>();
  #busy: LocalLink[] = [];
  /** Sleeps on the mailbox's doorbell. */
  #thread: WatchThread | undefined;
  #copyThread: CopyThread | undefined;
  #someDevice: CudaDevice | undefined;
  #isScheduled = false;
  #polls = 0;
  #checkedAt = 0;
  #closing: Promise<void> | undefined;

  constructor(context: BackendContext) {
    this.#context = context;
    const [bootId, pidNamespace] = [bootIdentity(), pidNamespaceHere()];
    this.#mailbox = new Mailbox(context.incarnation, context.settings.localSenders);
    const { name, address } = this.#mailbox.memory;
    this.#own = { ...name, address, uid: process.geteuid?.() ?? 0, pidNamespace, bootId };
    this.connectionInfo = encodePlace(this.#own);
  }

  whyNotMemory({ kind, device }: AgentMemory): string | undefined {
    if (kind === 'host' || device instanceof CudaDevice) return undefined;
    return 'the memory belongs to a device that is not a GPU';
  }

  whyNotPeer(peer: BackendPeer): string | undefined {
    const info = decodePlace(peer.connectionInfo);
    if (info === undefined) return 'the peer has another version of weftline';
    if (info.bootId !== this.#own.bootId) return 'the peer is on another host';
    if (info.pidNamespace !== this.#own.pidNamespace) {
      return 'the peer is in a container with process numbers of its own (start both with the same, as docker run --pid=…)';
    }
    if (info.uid !== this.#own.uid) {
      return `the peer runs as user ${info.uid}, this process as ${this.#own.uid}`;
    }
    return whyNotFilesOf(info);
  }

  whyNotRemote(_kind: MemoryKind, region?: RemoteRegionInfo): string | undefined {
    if (region === undefined || !isOfProcess(region.info)) return undefined;
    const place = decodePlace(region.peer.connectionInfo);
    const outcome = place && tryCopy(place.pid, place.address);
    // If the process has ended, connecting to it reports that.
    if (place === undefined || (outcome !== 'forbidden' && outcome !== 'missing')) return undefined;
    return `the peer's memory is not from agent.allocate() there, and ${whyNot(place.pid, outcome)}`;
  }

  async register(memory: AgentMemory): Promise<BackendRegion> {
    if (memory.device instanceof CudaDevice) this.#someDevice ??= memory.device;
    return new LocalRegion(memory, this.#mailbox, {
      timeoutMs: this.#context.settings.timeoutMs,
      onRelease: async (region) => {
        await Promise.all([...[...this.#links].map((link) => link.dropUsing(region)), ...this.#leaving]);
      },
    });
  }

  async connect(peer: BackendPeer, { signal }: ConnectOptions): Promise<BackendLink> {
    signal?.throwIfAborted();
    const info = decodePlace(peer.connectionInfo);
    const why = this.whyNotPeer(peer);
    if (info === undefined || why !== undefined) {
      throw new WeftlineError('WL_UNSUPPORTED', `Cannot reach ${peer.name} within this host: ${why}`);
    }
    const mailbox = PeerMailbox.open({
      peer: peer.name,
      incarnation: peer.incarnation,
      place: info,
      sender: this.#context.agentName,
    });
    const link: LocalLink = new LocalLink({
      peerName: peer.name,
      pid: info.pid,
      mailbox,
      whyNotProcess: () => refusalOfProcess(peer.name, info.pid, info.address),
      someDevice: () => this.#someDevice,
      copyThread: () => (this.#copyThread ??= new CopyThread(this.#context)),
      onWork: () => this.#work(link),
      onClose: (closed) => this.#forget(link, closed),
    });
    this.#links.add(link);
    return link;
  }

  poll(): boolean {
    let any = this.#mailbox.poll(this.#context);
    if (this.#busy.length > 0) any = this.#advance() || any;
    for (const link of this.#links) any = link.lookAtChannels() || any;
    this.#polls += 1;
    if (this.#polls % POLLS_PER_CLOCK === 0) any = this.#checkPeers() || any;
    return any;
  }

  prepareSleep(): number {
    if (this.#needsTurns() || !this.#mailbox.arm(this.#context)) return 0;
    this.#polls = POLLS_PER_CLOCK - 1;
    this.#thread ??= new WatchThread({
      name: 'doorbell',
      wake: this.#context.wake,
      source: { futex: this.#mailbox.doorbellAddress },
      ring: () => this.#mailbox.ring(),
    });
    return this.#thread.isRunning ? PEER_CHECK_MS : SHORT_SLEEP_MS;
  }

  get prefersPolling(): boolean {
    return this.#links.size > 0 || this.#mailbox.hasSenders;
  }

  help(): boolean {
    let any = false;
    for (let index = 0; index < this.#busy.length; index += 1)
      any = (this.#busy[index] as LocalLink).shareWork() || any;
    return any;
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    for (const link of this.#links) await link.close();
    await Promise.all(this.#leaving);
    await this.#copyThread?.close();
    await this.#thread?.close();
    await this.#mailbox.close(this.#context.settings.timeoutMs);
  }

  #work(link: LocalLink): void {
    if (!this.#busy.includes(link)) this.#busy.push(link);
    if (this.#copyThread !== undefined) this.#copyThread.keepsAlive = true;
    this.#schedule();
  }

  #forget(link: LocalLink, closed: Promise<void>): void {
    this.#links.delete(link);
    this.#busy = this.#busy.filter((other) => other !== link);
    this.#allowExit();
    const ended = closed.catch(() => {}).finally(() => this.#leaving.delete(ended));
    this.#leaving.add(ended);
  }

  /** Lets the process end if no copies are under way. */
  #allowExit(): void {
    if (this.#copyThread !== undefined && this.#busy.length === 0) this.#copyThread.keepsAlive = false;
  }

  /** True if this thread has copies to go on with. */
  #needsTurns(): boolean {
    for (let index = 0; index < this.#busy.length; index += 1) {
      if ((this.#busy[index] as LocalLink).needsTurns) return true;
    }
    return false;
  }

  /** Copies go on although nobody waits for them, a turn of the event loop at a time. */
  readonly #turn = (): void => {
    this.#isScheduled = false;
    if (this.#busy.length === 0) return;
    if (this.#advance()) this.#context.wake.ring();
    this.#schedule();
  };

  #schedule(): void {
    if (this.#isScheduled || !this.#needsTurns()) return;
    this.#isScheduled = true;
    setImmediate(this.#turn);
  }

  #advance(): boolean {
    let any = false;
    for (let index = this.#busy.length - 1; index >= 0; index -= 1) {
      const link = this.#busy[index] as LocalLink;
      any = link.advance(TURN_BYTES) || any;
      if (link.isQuiet) this.#busy.splice(index, 1);
    }
    this.#allowExit();
    return any;
  }

  /** True if a peer was found dead. */
  #checkPeers(): boolean {
    const now = performance.now();
    if (now - this.#checkedAt < PEER_CHECK_MS) return false;
    this.#checkedAt = now;
    let any = false;
    for (const link of this.#links) any = link.checkPeer() || any;
    this.#mailbox.freeSenders(this.#context);
    return any;
  }
}

const placeFields = ['pid', 'uid', 'fd', 'device', 'inode', 'pidNamespace', 'address', 'bytes'] as const;

/** How peers reach an agent's mailbox; see localConnectionInfo. */
type Place = Readonly<Record<(typeof placeFields)[number], number>> & { readonly bootId: string };

/** Fails with WL_UNSUPPORTED where processes cannot be told apart. */
function pidNamespaceHere(): number {
  try {
    return statSync('/proc/self/ns/pid').ino;
  } catch (cause) {
    throw new WeftlineError('WL_UNSUPPORTED', 'The local backend needs Linux with /proc mounted', { cause });
  }
}

function encodePlace(place: Place): Uint8Array {
  const bytes = new Uint8Array(localConnectionInfo.size);
  const info = new Block(localConnectionInfo, bytes.buffer, 0);
  info.set('version', LOCAL_INFO_VERSION);
  for (const field of placeFields) info.set(field, place[field]);
  bytes.set(Buffer.from(place.bootId).subarray(0, BOOT_ID_BYTES), localConnectionInfo.offset.bootId);
  return bytes;
}

function decodePlace(bytes: Uint8Array): Place | undefined {
  if (bytes.length !== localConnectionInfo.size) return undefined;
  const info = Block.over(localConnectionInfo, bytes);
  if (info.get('version') !== LOCAL_INFO_VERSION) return undefined;
  const numbers = Object.fromEntries(placeFields.map((field) => [field, info.get(field)]));
  const bootId = Buffer.from(bytes.subarray(localConnectionInfo.offset.bootId)).toString('latin1');
  return { ...(numbers as Record<(typeof placeFields)[number], number>), bootId: bootId.replace(/\0.*$/s, '') };
}

// Whether this process may reach memory of another one: tried out, and if not, why not.

/**
 * The error for memory that a peer registered and that this process cannot reach; undefined if it can. `address`: of the
 * peer's mailbox in its own memory, which begins with a word that is known.
 */
function refusalOfProcess(peer: string, pid: number, address: number): WeftlineError | undefined {
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
function whyNotFilesOf({ pid, fd }: { readonly pid: number; readonly fd: number }): string | undefined {
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
