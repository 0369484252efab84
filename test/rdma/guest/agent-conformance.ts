// In the guest: the cases of every backend of the agent, over the backend verbs.
import type { AgentConfiguration } from '../../local/support/agent-configurations.ts';
import { testConformance } from '../../local/support/agent-conformance.ts';

/** Two agents on the two ports of the wire. */
const overTheWire: AgentConfiguration = {
  name: 'verbs',
  backend: 'verbs',
  here: { settings: { rdmaDevices: 'rxe0' } },
  there: { settings: { rdmaDevices: 'rxe1' } },
};

await testConformance(overTheWire);
