// The cases of every backend over several engines and rails of the transport.
import { lanesConfigurations } from './support/agent-configurations.ts';
import { isWhole } from '../support/extent.ts';
import { testConformance } from './support/agent-conformance.ts';

for (const [index, configuration] of lanesConfigurations.entries())
  await testConformance(configuration, index > 0 && !isWhole);
