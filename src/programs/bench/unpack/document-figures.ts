// The figures of the document whose analysis is checked, in µs of one chunk of 512 KiB, 4 MiB in all.

/** What the document says that each stage takes. */
export const documentStages = {
  'stream, launcher and memory per chunk, waited for': 53_000,
  'no stream per chunk': 45_000,
  asynchronous: 1_000,
  preallocated: 500,
  batched: 100,
  'copies one by one': 530,
} as const;

/** What the document says that each part takes per chunk. */
export const documentComponents = {
  'create and destroy a stream': 4_000,
  'make and close a launcher': 2_000,
  'take and free device memory': 2_000,
  'copy descriptors': 1_000,
  'launch and wait': 48_000,
} as const;

/** The document is confirmed within a factor of this. */
const AGREEMENT = 3;

export type Verdict = 'confirms' | 'refutes' | '';

/** What a measurement says of the document's figure. */
export function verdictOf(measured: number, document: number | undefined): Verdict {
  if (document === undefined) return '';
  const ratio = document / measured;
  return ratio <= AGREEMENT && ratio >= 1 / AGREEMENT ? 'confirms' : 'refutes';
}
