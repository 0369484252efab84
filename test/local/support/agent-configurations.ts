// The ways in which two agents can be set up, for tests that hold for all of them: each backend, and staging over some.
import type { AgentOptions, BackendName } from 'weftline/agent';
import { backendNames } from '#lib/agent/backends/backend-table.js';

export interface AgentConfiguration {
  /** For the names of tests. */
  readonly name: string;
  readonly backend: BackendName;
  /** Options of the test's own agent, and of its peer. */
  readonly here: AgentOptions;
  readonly there: AgentOptions;
}

const staged: AgentOptions = { stagesHostMemory: true };

/** Every backend as it is. */
export const plainConfigurations: readonly AgentConfiguration[] = backendNames.map((backend) => ({
  name: backend,
  backend,
  here: {},
  there: {},
}));

/** Every backend as it is, and one on both sides of which memory is staged. */
export const oneStagedConfiguration = (): readonly AgentConfiguration[] => [
  ...plainConfigurations,
  ...stagedConfigurations.slice(0, 1),
];

const split: AgentOptions = {
  settings: {
    transportEngines: 2,
    transportSpread: 'split',
    transportRails: '127.0.0.1,127.0.0.2,127.0.0.3',
  },
};
const inTurn: AgentOptions = { settings: { transportEngines: 4, transportRails: '127.0.0.1,127.0.0.2' } };

/** Several engines and rails of the transport. */
export const lanesConfigurations: readonly AgentConfiguration[] = [
  { name: 'multipath on 2 engines and 3 rails, split', backend: 'multipath', here: split, there: split },
  { name: 'multipath on 4 engines and 2 rails', backend: 'multipath', here: inTurn, there: inTurn },
];

const stagedOnLanes: AgentOptions = { ...staged, settings: { transportEngines: 3, stagingPieces: 8 } };

/** Host memory is staged as memory of GPUs is, on both sides or on one. */
export const stagedConfigurations: readonly AgentConfiguration[] = [
  { name: 'multipath, staged on both sides', backend: 'multipath', here: staged, there: staged },
  { name: 'multipath, staged here', backend: 'multipath', here: staged, there: {} },
  { name: 'multipath, staged there', backend: 'multipath', here: {}, there: staged },
  {
    name: 'multipath on 3 engines, staged on both sides',
    backend: 'multipath',
    here: stagedOnLanes,
    there: stagedOnLanes,
  },
];
