// Where the ranks of a group may be: the shapes that conformance programs run on, on hosts that this machine pretends.

/** How a program's group is made of the world: see testGroup(). */
export type GroupShape = 'each' | 'all' | 'mixed' | 'alternate';

export interface Topology {
  /** Hosts × ranks. */
  readonly name: string;
  readonly ranks: number;
  /** The setting hosts. */
  readonly hosts: string;
  readonly shape: GroupShape;
}

/** Groups over several hosts; and one on one host, which is what they are compared with. */
export const topologies: readonly Topology[] = [
  { name: '1×4', ranks: 4, hosts: '1', shape: 'all' },
  { name: '2×2', ranks: 4, hosts: '2', shape: 'all' },
  { name: '2×2 with ranks in turn', ranks: 4, hosts: '2', shape: 'mixed' },
  { name: '4×1', ranks: 4, hosts: '4', shape: 'all' },
  { name: '3+1', ranks: 4, hosts: '3+1', shape: 'all' },
  { name: '1+3', ranks: 4, hosts: '1+3', shape: 'mixed' },
  { name: '3×2', ranks: 6, hosts: '3', shape: 'all' },
];

/** Two groups of two ranks on each of two hosts, at work at once. */
export const twoGroups: Topology = { name: 'two groups of 2×2', ranks: 8, hosts: '2', shape: 'alternate' };

/** The environment of a job's ranks. */
export function environmentOf({ hosts, shape }: Topology): Readonly<Record<string, string>> {
  return { WEFTLINE_HOSTS: hosts, WEFTLINE_TEST_GROUP: shape };
}
