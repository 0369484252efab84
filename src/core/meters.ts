// What this thread's objects have counted so far, for those who watch a job. Read when somebody asks; counting costs nothing here.

/** Sums over all objects since the process began; bytes and packets never decrease while an object is open. */
export interface Meters {
  readonly sentBytes: number;
  readonly receivedBytes: number;
  readonly sentPackets: number;
  readonly retransmittedPackets: number;
  /** Memory of windows that this rank has mapped. */
  readonly windowBytes: number;
}

type MeterSource = () => Partial<Meters> | Promise<Partial<Meters>>;

const sources = new Set<MeterSource>();

/** From now on the source is read too. Returns how to take it back. */
export function addMeter(source: MeterSource): () => void {
  sources.add(source);
  return () => sources.delete(source);
}

/** A source that fails, because its object is being closed, counts nothing. */
export async function readMeters(): Promise<Meters> {
  const ends = await Promise.allSettled([...sources].map(async (source) => source()));
  const sums = { sentBytes: 0, receivedBytes: 0, sentPackets: 0, retransmittedPackets: 0, windowBytes: 0 };
  for (const end of ends) {
    if (end.status === 'rejected') continue;
    for (const name of Object.keys(sums) as (keyof Meters)[]) sums[name] += end.value[name] ?? 0;
  }
  return sums;
}
