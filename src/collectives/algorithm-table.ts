// The algorithm of a call follows from its size: built in, measured (`weftline bench collectives --tune`) or as an option says.
import { z } from '#zod';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { readInput } from '../core/guarded-file.ts';
import { printable } from '../core/quote.ts';

const MAX_REASON = 200;

export const algorithmNames = ['oneStep', 'shares', 'chain'] as const;

/**
 * How a reduction is made; results are the same bytes.
 *
 * - `oneStep`: every rank reduces everything.
 * - `shares`: every rank reduces a share, then all take the results.
 * - `chain`: of an allReduce over several hosts with as many ranks each, in rank order: sums go from host to host, and the
 *   result comes back. Where it cannot be, also for sums of bf16, the call goes in shares.
 */
export type AlgorithmName = (typeof algorithmNames)[number];

/** Up to so many bytes of a rank; the last entry of a list has no limit. */
export interface AlgorithmRange {
  readonly upToBytes?: number | undefined;
  readonly algorithm: AlgorithmName;
}

export const tunedKinds = ['allReduce', 'reduce'] as const;
export type TunedKind = (typeof tunedKinds)[number];

/** Ranges from the smallest calls to the largest, by collective. */
export type AlgorithmTable = Readonly<Record<TunedKind, readonly AlgorithmRange[]>>;

export const TABLE_SCHEMA = 'weftline.collectives.table/1';

const range = z.object({ upToBytes: z.number().int().nonnegative().optional(), algorithm: z.enum(algorithmNames) });
const ranges = z.array(range).min(1).refine(isAscending, 'limits that ascend, and none in the last entry alone');
const tableFile = z.object({
  schema: z.literal(TABLE_SCHEMA),
  shapes: z.array(
    z.object({
      ranks: z.number().int().positive(),
      hosts: z.number().int().positive(),
      allReduce: ranges,
      reduce: ranges,
    }),
  ),
});
const override = z.strictObject({ allReduce: ranges.optional(), reduce: ranges.optional() });

/** Measured tables, by number of ranks and hosts. */
export type AlgorithmTableFile = z.infer<typeof tableFile>;

interface TableShape {
  readonly ranks: number;
  readonly hosts: number;
}

/** Measured with 4 ranks on 2 processors. A chain pays where hosts have many ranks, which a measured table finds. */
const usual: readonly AlgorithmRange[] = [{ upToBytes: 16_384, algorithm: 'oneStep' }, { algorithm: 'shares' }];
const builtIn: AlgorithmTable = { allReduce: usual, reduce: usual };

/**
 * What the option says, else the file's row for this shape, else what is built in. Fails with WL_INVALID_ARGUMENT, or with
 * WL_FILE if the file cannot be read or is no table.
 */
export function algorithmTable(
  shape: TableShape,
  { option, file }: { readonly option: Partial<AlgorithmTable> | undefined; readonly file: string },
): AlgorithmTable {
  const measured = file === '' ? undefined : readTableFile(file).shapes.find((one) => isSame(one, shape));
  const { allReduce, reduce } = measured ?? builtIn;
  if (option === undefined) return { allReduce, reduce };
  const { data, error } = override.safeParse(option);
  if (error !== undefined) throw invalidArgument('algorithms', option, describe(error));
  return { allReduce: data.allReduce ?? allReduce, reduce: data.reduce ?? reduce };
}

/** Fails with WL_FILE. */
export function readTableFile(file: string): AlgorithmTableFile {
  let reason: string;
  try {
    const { data, error } = tableFile.safeParse(JSON.parse(readInput(file).toString('utf8')));
    if (data !== undefined) return data;
    reason = describe(error);
  } catch (cause) {
    // The message about JSON that is none has some of the text, which may have several lines.
    reason = printable(cause instanceof Error ? cause.message : String(cause), MAX_REASON);
  }
  throw new WeftlineError(
    'WL_FILE',
    `Cannot use ${file} as a table of collective algorithms: ${reason}; name another file, or write one with: weftline bench collectives --tune FILE`,
    { details: { file } },
  );
}

export function isSame(one: TableShape, other: TableShape): boolean {
  return one.ranks === other.ranks && one.hosts === other.hosts;
}

/** Hot path. */
export function algorithmFor(list: readonly AlgorithmRange[], bytes: number): AlgorithmName {
  for (const { upToBytes, algorithm } of list) if (upToBytes === undefined || bytes <= upToBytes) return algorithm;
  return list.at(-1)!.algorithm;
}

function isAscending(list: readonly AlgorithmRange[]): boolean {
  return list.every(({ upToBytes }, at) => {
    if (at === list.length - 1) return upToBytes === undefined;
    return upToBytes !== undefined && upToBytes > (list[at - 1]?.upToBytes ?? -1);
  });
}

/** The place of the first problem, and what is expected. */
function describe({ issues: [first] }: z.ZodError): string {
  const place = first!.path.length === 0 ? '' : ` at ${first!.path.join('.')}`;
  return printable(`${first!.message}${place}`, MAX_REASON);
}
