// The cases of every backend over several engines and rails of the transport.
import { lanesConfigurations } from './support/agent-configurations.ts';
import { testConformance } from './support/agent-conformance.ts';

for (const configuration of lanesConfigurations) await testConformance(configuration);
