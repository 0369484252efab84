// In the guest: the cases of every backend of the agent, over those that drive an RDMA device, as they are and with memory
// that is staged.
import type { AgentOptions } from 'weftline/agent';
import type { AgentConfiguration } from '../../local/support/agent-configurations.ts';
import { testConformance } from '../../local/support/agent-conformance.ts';
import { testDeregister } from '../../local/support/deregister-cases.ts';
import { testMemoryCycles } from '../../local/support/memory-cycles-case.ts';

const staged: AgentOptions = { stagesHostMemory: true };

/** Two agents on the two ports of the wire. */
function overTheWire(
  backend: 'verbs' | 'ucx',
  how = '',
  here: AgentOptions = {},
  there: AgentOptions = {},
): AgentConfiguration {
  return {
    name: `${backend}${how}`,
    backend,
    here: { ...here, settings: { rdmaDevices: 'rxe0' } },
    there: { ...there, settings: { rdmaDevices: 'rxe1' } },
  };
}

/** Registers the tests. */
export async function testBackend(backend: 'verbs' | 'ucx'): Promise<void> {
  const plain = overTheWire(backend);
  const stagedOnBothSides = overTheWire(backend, ', staged on both sides', staged, staged);
  await testConformance(plain);
  await testConformance(stagedOnBothSides);
  await testConformance(overTheWire(backend, ', staged here', staged));
  for (const configuration of [plain, stagedOnBothSides]) {
    await testDeregister(configuration);
    await testMemoryCycles(configuration);
  }
}
