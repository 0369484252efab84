// Plans of experts: the logical expert of each physical one, layer by layer, and the copies of each logical one.
import { checkOptions, isWhole, type OptionNames } from '../../core/check-options.ts';
import { invalidArgument } from '../../core/errors.ts';

/** How large the tables of a plan are. */
interface ExpertPlanShape {
  /** Layers of the model, each with experts of its own. */
  readonly layers: number;
  /** Logical experts of a layer: those that the router chooses from. */
  readonly experts: number;
  /** Ranks, of which each holds a contiguous part of the physical experts of every layer, all as many. */
  readonly ranks: number;
}

interface ExpertPlanOptions extends ExpertPlanShape {
  /**
   * [layers, physical]: the logical expert that each physical expert is a copy of. Copied. Without it there are no copies:
   * expert e is physical expert e, in every layer, and `ranks` divides `experts`.
   */
  readonly physicalToLogical?: ArrayLike<number>;
}

/**
 * Where the copies of all experts are. Physical expert p is on rank floor(p * ranks / physical); a logical expert has one
 * or more of them. The tables are the plan's own: do not write to them.
 */
export interface ExpertPlan extends ExpertPlanShape {
  /** Physical experts of a layer, on all ranks together. */
  readonly physical: number;
  /** Most copies that any expert of any layer has. */
  readonly maxReplicas: number;
  /** [layers, physical]: the logical expert of each physical one. */
  readonly physicalToLogical: Int32Array;
  /** [layers, experts, maxReplicas]: the physical experts of each logical one in ascending order, then -1. */
  readonly logicalToPhysical: Int32Array;
  /** [layers, experts]: how many copies each logical expert has, 1 or more. */
  readonly replicaCounts: Int32Array;
}

const optionNames: OptionNames<ExpertPlanOptions> = {
  layers: true,
  experts: true,
  ranks: true,
  physicalToLogical: true,
};

/** Far more than the layers of a model have experts, and little memory. */
const MAX_ENTRIES = 2 ** 24;

/**
 * The plan that a table of physical experts describes, such as one that another program made, or the one without copies. Fails with
 * WL_INVALID_ARGUMENT if the table has no such shape, names an expert that there is not, or leaves one out.
 * @param options The shape and the table.
 */
export function expertPlan(options: ExpertPlanOptions): ExpertPlan {
  checkOptions(options, optionNames, 'options of expertPlan');
  const { layers, experts, ranks } = options;
  checkShape(options);
  const { physicalToLogical: given = contiguousTable(options) } = options;
  // Callers in plain JavaScript may pass anything.
  requireFit('physicalToLogical.length', (given as Partial<typeof given> | null)?.length);
  // Entries of other types stand as 0 here, and differ from what was given.
  const physicalToLogical = Int32Array.from(given, (entry) => (isWhole(entry, 0) ? entry : 0));
  const physical = physicalToLogical.length / layers;
  if (!isWhole(physical, experts) || physical % ranks !== 0) {
    const expected = `${layers} layers of a multiple of ${ranks} physical experts (ranks), at least ${experts} each`;
    throw invalidArgument('physicalToLogical.length', physicalToLogical.length, expected);
  }
  const shape = { layers, experts, ranks, physical };
  const replicaCounts = countReplicas(physicalToLogical, given, shape);
  const maxReplicas = replicaCounts.reduce((most, count) => Math.max(most, count), 0);
  requireFit('maxReplicas * layers * experts', maxReplicas * layers * experts);
  const logicalToPhysical = invert(physicalToLogical, maxReplicas, shape);
  return Object.freeze({ ...shape, maxReplicas, physicalToLogical, logicalToPhysical, replicaCounts });
}

/** Fails with WL_INVALID_ARGUMENT for anything but a plan that this package made. */
export function requirePlan(plan: unknown): asserts plan is ExpertPlan {
  if (typeof plan === 'object' && plan !== null && fitsItself(plan)) return;
  throw invalidArgument('plan', plan, 'a plan of expertPlan() or rebalanceExperts()');
}

/** Whether the tables have the sizes that the numbers say; of a plan that was put together by hand they may not. */
function fitsItself(plan: Partial<ExpertPlan>): boolean {
  const { layers, experts, ranks, physical, maxReplicas } = plan;
  if (![layers, experts, ranks, physical, maxReplicas].every((value) => isWhole(value, 1))) return false;
  const { layers: count, experts: each, ranks: places, physical: all, maxReplicas: most } = plan as ExpertPlan;
  return (
    all % places === 0 &&
    isTable(plan.physicalToLogical, count * all) &&
    isTable(plan.logicalToPhysical, count * each * most) &&
    isTable(plan.replicaCounts, count * each)
  );
}

function isTable(table: unknown, entries: number): boolean {
  return table instanceof Int32Array && table.length === entries;
}

/** Every expert once, in every layer. */
function contiguousTable({ layers, experts }: ExpertPlanShape): Int32Array {
  requireFit('layers * experts', layers * experts);
  return Int32Array.from({ length: layers * experts }, (_, at) => at % experts);
}

function checkShape({ layers, experts, ranks }: ExpertPlanShape): void {
  for (const [name, value] of Object.entries({ layers, experts, ranks })) {
    if (!isWhole(value, 1)) throw invalidArgument(name, value, 'a whole number of at least 1');
  }
}

function requireFit(name: string, entries: unknown): void {
  if (isWhole(entries, 0) && entries <= MAX_ENTRIES) return;
  throw invalidArgument(name, entries, `at most the ${MAX_ENTRIES} entries that a table of a plan may have`);
}

type Shape = ExpertPlanShape & { readonly physical: number };

function countReplicas(table: Int32Array, given: ArrayLike<number>, { layers, experts, physical }: Shape): Int32Array {
  const counts = new Int32Array(layers * experts);
  for (let at = 0; at < table.length; at++) {
    const expert = table[at]!;
    if (expert !== given[at] || expert < 0 || expert >= experts) {
      const [layer, place] = [Math.floor(at / physical), at % physical];
      throw invalidArgument(`physicalToLogical[${layer}][${place}]`, given[at], `an expert, 0 to ${experts - 1}`);
    }
    const entry = Math.floor(at / physical) * experts + expert;
    counts[entry] = counts[entry]! + 1;
  }
  const missing = counts.indexOf(0);
  if (missing !== -1) {
    const [layer, expert] = [Math.floor(missing / experts), missing % experts];
    throw invalidArgument(`physicalToLogical[${layer}]`, `no copy of expert ${expert}`, 'at least one of each expert');
  }
  return counts;
}

function invert(table: Int32Array, maxReplicas: number, { layers, experts, physical }: Shape): Int32Array {
  const inverse = new Int32Array(layers * experts * maxReplicas).fill(-1);
  const found = new Int32Array(experts);
  for (let layer = 0; layer < layers; layer++) {
    found.fill(0);
    for (let place = 0; place < physical; place++) {
      const expert = table[layer * physical + place]!;
      inverse[(layer * experts + expert) * maxReplicas + found[expert]!] = place;
      found[expert] = found[expert]! + 1;
    }
  }
  return inverse;
}
