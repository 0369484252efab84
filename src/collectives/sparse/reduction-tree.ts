// Trees that say which aggregator adds up for whom: one for each slot, whose leaves are workers and whose nodes lie on aggregators.
import { contribution, partial } from './slot-shape.ts';

/** A worker, or the node below. */
export interface TreeChild {
  /** Rank of the group, and which of its messages it sends up. */
  readonly rank: number;
  readonly kind: typeof contribution | typeof partial;
  /** Rank of the first worker below it. */
  readonly worker: number;
}

export interface TreeNode {
  readonly rank: number;
  /** Children in the order of addition, which is that of the workers. */
  readonly children: readonly TreeChild[];
  /** Rank of the node above; undefined at the root. */
  readonly parent: number | undefined;
  /** Nodes below it on the longest way to a worker. */
  readonly level: number;
}

export interface ReductionTree {
  /** Nodes from the workers up; the root comes last. */
  readonly nodes: readonly TreeNode[];
  readonly nodeOf: ReadonlyMap<number, TreeNode>;
  /** The rank of the node that takes a worker's blocks, by the worker's rank. */
  readonly parentOf: ReadonlyMap<number, number>;
}

export interface TreesOptions {
  readonly workers: readonly number[];
  readonly aggregators: readonly number[];
  /** Children of a node at most; from 2 on. */
  readonly fanIn: number;
  readonly hostOf: (rank: number) => number;
}

interface Member {
  /** Number of the first worker. */
  readonly worker: number;
  /** Number of the node; undefined for a worker. */
  readonly node: number | undefined;
}

interface ShapedNode {
  readonly children: readonly Member[];
  readonly level: number;
}

/**
 * Neighbours are joined, `fanIn` at a time, until one node is left; who stays alone at the end of a row goes up a row as it is.
 * Pure: this alone decides the order of addition.
 */
function shapeOf(workers: number, fanIn: number): readonly ShapedNode[] {
  const nodes: ShapedNode[] = [];
  let row: readonly Member[] = Array.from({ length: workers }, (_, worker) => ({ worker, node: undefined }));
  do {
    const above: Member[] = [];
    for (let at = 0; at < row.length; at += fanIn) {
      const children = row.slice(at, at + fanIn);
      const [first] = children as [Member];
      if (children.length === 1 && row.length > 1) {
        above.push(first);
        continue;
      }
      const below = children.map(({ node }) => (node === undefined ? -1 : nodes[node]!.level));
      nodes.push({ children, level: Math.max(...below) + 1 });
      above.push({ worker: first.worker, node: nodes.length - 1 });
    }
    row = above;
  } while (row.length > 1);
  return nodes;
}

/** Aggregators that a tree needs, of which none has two nodes. */
export function nodesNeeded(workers: number, fanIn: number): number {
  return shapeOf(workers, fanIn).length;
}

/** Slot s uses tree s modulo their number. */
export function treeOf(trees: readonly ReductionTree[], slot: number): ReductionTree {
  return trees[slot % trees.length]!;
}

/** Levels above the lowest nodes; the same in all trees. */
export function topLevel(trees: readonly ReductionTree[]): number {
  return trees[0]!.nodes.at(-1)!.level;
}

/**
 * Trees of one shape, as many as there are aggregators; each begins with another aggregator, so that all do the same. A node
 * lies on the host of its first worker where an aggregator is free there. Pure: all ranks get the same.
 */
export function reductionTrees(options: TreesOptions): readonly ReductionTree[] {
  const shape = shapeOf(options.workers.length, options.fanIn);
  return options.aggregators.map((_, first) => place(shape, first, options));
}

function place(
  shape: readonly ShapedNode[],
  first: number,
  { workers, aggregators, hostOf }: TreesOptions,
): ReductionTree {
  const free = [...aggregators.slice(first), ...aggregators.slice(0, first)];
  const ranks = shape.map(({ children }) => {
    const host = hostOf(workers[children[0]!.worker]!);
    const near = free.findIndex((rank) => hostOf(rank) === host);
    return free.splice(Math.max(0, near), 1)[0]!;
  });
  const childOf = ({ worker, node }: Member): TreeChild =>
    node === undefined
      ? { rank: workers[worker]!, kind: contribution, worker: workers[worker]! }
      : { rank: ranks[node]!, kind: partial, worker: workers[worker]! };
  const parents = shape.map((_, number) =>
    shape.findIndex(({ children }) => children.some(({ node }) => node === number)),
  );
  const nodes = shape.map(({ children, level }, number) => ({
    rank: ranks[number]!,
    children: children.map(childOf),
    parent: ranks[parents[number]!],
    level,
  }));
  const pairs = nodes.flatMap(({ rank, children }) =>
    children.flatMap((child) => (child.kind === contribution ? [[child.rank, rank] as const] : [])),
  );
  return { nodes, nodeOf: new Map(nodes.map((node) => [node.rank, node])), parentOf: new Map(pairs) };
}
