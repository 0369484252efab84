// The specification of EPAll2AllLayer, slow and obvious: one row per (token, expert), grouped by expert.
import { sumBf16 } from '../buffer/reference.ts';

/** What one rank passes to dispatch, as plain arrays. */
export interface ReferenceLayerInput {
  /** bf16 rows [T][H]. */
  readonly input: readonly (readonly number[])[];
  /** [T][K]; -1 or numExperts for dropped choices. */
  readonly expIndices: readonly (readonly number[])[];
  readonly weight?: readonly (readonly number[])[];
}

/** One row of a rank's output, with where it came from. */
export interface ReferenceLayerRow {
  readonly x: readonly number[];
  readonly weight: number;
  readonly sourceRank: number;
  readonly token: number;
  readonly choice: number;
  readonly expert: number;
}

export interface ReferenceLayerReceived {
  readonly rows: readonly ReferenceLayerRow[];
  readonly numRecvTokensPerExpert: readonly number[];
}

/** Rows of each rank's experts: by expert, then source rank, then token. */
export function referenceLayerDispatch(
  inputs: readonly ReferenceLayerInput[],
  numExperts: number,
): ReferenceLayerReceived[] {
  const perRank = numExperts / inputs.length;
  return inputs.map((_, rank) => {
    const experts = Array.from({ length: perRank }, (_unused, local) => rank * perRank + local);
    const blocks = experts.map((expert) => rowsOfExpert(inputs, expert));
    return { rows: blocks.flat(), numRecvTokensPerExpert: blocks.map((block) => block.length) };
  });
}

function rowsOfExpert(inputs: readonly ReferenceLayerInput[], expert: number): ReferenceLayerRow[] {
  return inputs.flatMap((input, sourceRank) =>
    input.expIndices.flatMap((choices, token) =>
      choices.flatMap((chosen, choice) =>
        chosen === expert
          ? [
              {
                x: input.input[token] ?? [],
                weight: input.weight?.[token]?.[choice] ?? 0,
                sourceRank,
                token,
                choice,
                expert,
              },
            ]
          : [],
      ),
    ),
  );
}

export interface ReferenceLayerToken {
  readonly rank: number;
  readonly token: number;
  readonly hidden: number;
  readonly localCombine: boolean;
}

/**
 * The combined bf16 row of one token. `outputs[rank][row]` is what the experts made of each received row. Without local
 * combine: the sum over the choices in order. With it: per rank first, ranks in the order of the token's first choice.
 */
export function referenceLayerCombine(
  received: readonly ReferenceLayerReceived[],
  outputs: readonly (readonly (readonly number[])[])[],
  of: ReferenceLayerToken,
): number[] {
  const mine = received
    .flatMap(({ rows }, rank) => rows.map((row, index) => ({ ...row, rank, output: outputs[rank]?.[index] ?? [] })))
    .filter((row) => row.sourceRank === of.rank && row.token === of.token)
    .toSorted((a, b) => a.choice - b.choice);
  if (!of.localCombine)
    return sumBf16(
      mine.map((row) => row.output),
      of.hidden,
    );
  const ranks = [...new Set(mine.map((row) => row.rank))];
  const perRank = ranks.map((rank) =>
    sumBf16(
      mine.filter((row) => row.rank === rank).map((row) => row.output),
      of.hidden,
    ),
  );
  return sumBf16(perRank, of.hidden);
}
