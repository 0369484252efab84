// In the guest: the cases of every backend of the agent, over the backend verbs, as it is and with memory that is staged.
import type { AgentOptions } from 'weftline/agent';
import type { AgentConfiguration } from '../../local/support/agent-configurations.ts';
import { testConformance } from '../../local/support/agent-conformance.ts';
import { testDeregister } from '../../local/support/deregister-cases.ts';
import { testMemoryCycles } from '../../local/support/memory-cycles-case.ts';

/** Two agents on the two ports of the wire. */
function overTheWire(how: string, here: AgentOptions = {}, there: AgentOptions = {}): AgentConfiguration {
  return {
    name: `verbs${how}`,
    backend: 'verbs',
    here: { ...here, settings: { rdmaDevices: 'rxe0' } },
    there: { ...there, settings: { rdmaDevices: 'rxe1' } },
  };
}

const staged: AgentOptions = { stagesHostMemory: true };
const plain = overTheWire('');
const stagedOnBothSides = overTheWire(', staged on both sides', staged, staged);

await testConformance(plain);
await testConformance(stagedOnBothSides);
await testConformance(overTheWire(', staged here', staged));
for (const configuration of [plain, stagedOnBothSides]) {
  await testDeregister(configuration);
  await testMemoryCycles(configuration);
}
