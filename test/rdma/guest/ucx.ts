// In the guest: the cases of every backend of the agent, over the backend ucx with a reliable connection (rc_verbs).
import type { AgentConfiguration } from '../../local/support/agent-configurations.ts';
import { testConformance } from '../../local/support/agent-conformance.ts';
import { testDeregister } from '../../local/support/deregister-cases.ts';

const configuration: AgentConfiguration = { name: 'ucx over rc_verbs', backend: 'ucx', here: {}, there: {} };

await testConformance(configuration);
await testDeregister(configuration);
