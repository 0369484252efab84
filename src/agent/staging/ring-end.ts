// The end of a ring and of what it was used with: all of it is given back, but memory that something may still touch.
import type { BackendRegion } from '../backend.ts';
import type { LinkUse } from './inner-links.ts';
import type { RingMemory } from './ring-memory.ts';

interface RingParts {
  /** Resolves when no device touches the ring any more. */
  readonly fence: () => Promise<void>;
  readonly session: { close(): Promise<void> } | undefined;
  /** The ring. */
  readonly local: BackendRegion;
  readonly ring: Pick<RingMemory, 'free'>;
  readonly uses: readonly LinkUse[];
}

/** Fails with the first error, having tried everything; the ring is then kept. */
export async function endRing({ fence, session, local, ring, uses }: RingParts): Promise<void> {
  const steps = [fence, () => session?.close(), () => local.release()];
  const errors: unknown[] = [];
  for (const step of steps) {
    try {
      await step();
    } catch (error) {
      errors.push(error);
    }
  }
  if (errors.length === 0) ring.free();
  const ends = await Promise.allSettled(uses.map((use) => use.giveBack()));
  for (const end of ends) if (end.status === 'rejected') errors.push(end.reason);
  if (errors.length > 0) throw errors[0];
}
