// The cases of every backend over several engines and rails of the transport.
import { lanesConfigurations } from './support/agent-configurations.ts';
import { isWhole } from '../support/extent.ts';
import { testConformance } from './support/agent-conformance.ts';

for (const configuration of isWhole ? lanesConfigurations : lanesConfigurations.slice(0, 1)) {
  await testConformance(configuration, !isWhole);
}
