// The same cases for every backend of the agent.
import { plainConfigurations } from './support/agent-configurations.ts';
import { testConformance } from './support/agent-conformance.ts';

for (const configuration of plainConfigurations) await testConformance(configuration);
