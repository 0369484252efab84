// Host memory that a staging thread's backend sends from in place, without a copy to a ring.
import type { Deadline } from '../../core/deadline.ts';
import { viewAt } from '../../native/library.ts';
import type { AgentMemory, Backend, BackendRegion } from '../backend.ts';
import type { StagedMemory } from './memory-table.ts';
import { untilTrue } from './patience.ts';
import type { SendLane } from './send-lane.ts';

/** A view of more aborts Node 20. */
const MAX_BYTES = 2 ** 32 - 65_536;

/** Undefined where the backend cannot send from it: pieces of it are then copied to the ring. */
export async function registerSent(
  backend: Backend,
  { address, bytes }: Pick<AgentMemory, 'address' | 'bytes'>,
): Promise<BackendRegion | undefined> {
  if (bytes > MAX_BYTES) return undefined;
  const view = new Uint8Array(viewAt(address, bytes));
  const memory: AgentMemory = { kind: 'host', address, bytes, view, device: undefined, shared: undefined };
  if (backend.whyNotMemory(memory) !== undefined) return undefined;
  return backend.register(memory).catch(() => undefined);
}

/** Resolves when nothing that is on its way now is read from that memory any more. Fails with WL_TIMEOUT. */
export async function untilSent(
  memory: readonly StagedMemory[],
  lanes: Iterable<SendLane>,
  deadline: Deadline,
): Promise<void> {
  if (memory.every(({ region }) => region === undefined)) return;
  const fences = [...lanes].flatMap(({ session }) => (session === undefined ? [] : [session.fence()]));
  await untilTrue(() => fences.every((isOver) => isOver()), deadline, 'What is sent from host memory');
}
